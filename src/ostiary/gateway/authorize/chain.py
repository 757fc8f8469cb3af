"""Attributes to Decision: the chain of authorization providers, in the order written.

    for each link:  ALLOW or DENY ends the chain  |  NO_OPINION moves on  |  could not ask: ends it, or moves on
    the end of the chain: a refusal, or an error if somebody could not be asked

Called by the engine for every request whose decision it does not hold already, by the webhooks and by the self
reviews. What each provider said is remembered by its link (`ostiary.gateway.authorize.cached_provider`). A "no" is
a Decision; "could not ask" is a `ProviderError`. Neither opens the door, and only the second is worth trying again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.implied_groups import with_implied_groups
from ostiary.errors import ProviderError
from ostiary.gateway.authorize.cached_provider import Answer, AskedLink, Link
from ostiary.gateway.authorize.refusals import Refusal, Refusals
from ostiary.gateway.config.settings import AuthorizationSettings, OnError
from ostiary.interfaces.authorization import Explanation, Rules, Subject
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict

__all__ = ["Authorizer", "ChainExplanation", "Link", "OnError", "Ruling", "Step", "WhoCan", "may_be_hidden"]

CACHE_SECONDS = 10.0
ENTRIES = 100_000
TIMEOUT_SECONDS = 10.0
NOT_ITS_UPSTREAM = "its policy applies to other upstreams"
# The verbs whose refusal may look like a missing object. Clients take a 404 for "it is gone": to a delete that is
# success, to a watch or a controller the end of the object.
READS = frozenset(("get", "list", "head"))
# These begin something, though their verb is get.
_CONNECTS = frozenset(("exec", "attach", "portforward"))


def may_be_hidden(request: RequestInfo) -> bool:
    """Whether a refusal of *request* may be a 404: for what only reads, never for what changes, waits or connects."""
    return request.verb in READS and not request.modifier and request.subresource not in _CONNECTS


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision, and for how long it may be used again for the same attributes: see `Authorizer.still_holds`."""

    decision: Decision
    until: float
    generation: int


@dataclass(frozen=True, slots=True)
class Step:
    """What one link says to a question. Neither explanation nor error: an earlier provider decided it."""

    name: str
    explanation: Explanation | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class ChainExplanation:
    """`decision` is None where the chain ended with `error`."""

    decision: Decision | None
    steps: tuple[Step, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class WhoCan:
    """Everyone whom some link allows this. `unknown` names the links that cannot tell.

    A link before the one that allows may still deny it to one of them.
    """

    subjects: tuple[Subject, ...]
    unknown: tuple[str, ...] = ()


class Authorizer:
    """Decides. One event loop uses an instance."""

    def __init__(
        self,
        chain: Sequence[Link],
        *,
        cache_ttl: float = CACHE_SECONDS,
        hide_denied: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        max_entries: int = ENTRIES,
        timeout: float = TIMEOUT_SECONDS,
        refusals: Refusals | None = None,
    ) -> None:
        self._links = tuple(
            AskedLink(link, ttl=cache_ttl, timeout=timeout, max_entries=max_entries, clock=clock) for link in chain
        )
        self._ttl = cache_ttl
        self._hide_denied = hide_denied
        self._clock = clock
        self._refusals = refusals or Refusals(clock=clock)

    @classmethod
    def from_settings(
        cls, configured: AuthorizationSettings, *, clock: Clock = SYSTEM_CLOCK, refusals: Refusals | None = None
    ) -> Authorizer:
        """The chain of a configuration, as the gateway asks it. *refusals* are those of the chain before it."""
        return cls(
            [
                Link(provider.name, provider.instance, provider.on_error, provider.upstreams)
                for provider in configured.chain
            ],
            cache_ttl=configured.cache_ttl.total_seconds(),
            hide_denied=configured.hide_denied,
            clock=clock,
            max_entries=configured.cache_entries,
            timeout=configured.timeout.total_seconds(),
            refusals=refusals,
        )

    @property
    def generation(self) -> int:
        """Another number whenever the policy of some provider changed. Cheap: read it for every request."""
        generation = 0
        for link in self._links:
            # Each only rises, so the sum stays the same only if all of them do.
            generation += link.epoch()
        return generation

    @property
    def cache_seconds(self) -> float:
        """How long a decision is used again."""
        return self._ttl

    def still_holds(self, ruling: Ruling) -> bool:
        """Whether *ruling* may be used again for the very same attributes."""
        return ruling.generation == self.generation and self._clock.monotonic() < ruling.until

    # --- deciding ---

    def decide(self, attributes: Attributes) -> Decision | None:
        """The decision if nothing must be waited for, else None: call `authorize` then. Raises `ProviderError`."""
        ruling = self.ruling(attributes)
        return None if ruling is None else ruling.decision

    async def authorize(self, attributes: Attributes) -> Decision:
        """The decision; raises `ProviderError` if it cannot be had."""
        return (await self.rule(attributes)).decision

    def ruling(self, attributes: Attributes) -> Ruling | None:
        """As `decide`, and for how long the decision holds."""
        attributes = _complete(attributes)
        walk = self._walk(attributes)
        for link in self._links:
            if not link.is_for(attributes.upstream):
                walk.pass_by(link.name)
                continue
            try:
                answer = link.at_once(attributes)
            except ProviderError as error:
                walk.fail(link, error)
                continue
            if answer is None:
                return None
            if walk.take(link.name, answer):
                break
        return walk.end()

    async def rule(self, attributes: Attributes) -> Ruling:
        """As `authorize`, and for how long the decision holds."""
        attributes = _complete(attributes)
        walk = self._walk(attributes)
        for link in self._links:
            if not link.is_for(attributes.upstream):
                walk.pass_by(link.name)
                continue
            try:
                answer = await link.ask(attributes)
            except ProviderError as error:
                walk.fail(link, error)
                continue
            if walk.take(link.name, answer):
                break
        return walk.end()

    async def relevant_groups(self) -> frozenset[str]:
        """Every group that some policy mentions; raises `ProviderError` if one provider cannot say.

        That holds for `OnError.NO_OPINION` too: a token that lacks a group may lack the one that denies.
        """
        groups: frozenset[str] = frozenset()
        for link in self._links:
            groups |= await link.relevant_groups()
        return groups

    def _walk(self, attributes: Attributes) -> _Walk:
        hide = self._hide_denied and may_be_hidden(attributes.request)
        # The generation comes first: a policy that changes while we ask makes the ruling an old one.
        return _Walk(self.generation, self._clock.monotonic() + self._ttl, hide=hide)

    # --- what an operator asks ---

    async def explain(self, attributes: Attributes) -> ChainExplanation:
        """Why: every link asked anew, up to the one that ends the chain."""
        attributes = _complete(attributes)
        walk, steps, links = self._walk(attributes), list[Step](), iter(self._links)
        try:
            for link in links:
                if not link.is_for(attributes.upstream):
                    walk.pass_by(link.name)
                    steps.append(Step(link.name, Explanation(Decision(Verdict.NO_OPINION, NOT_ITS_UPSTREAM))))
                    continue
                try:
                    explanation = await link.explain(attributes)
                except ProviderError as error:
                    steps.append(Step(link.name, error=error.cause or error.summary))
                    walk.fail(link, error)
                    continue
                steps.append(Step(link.name, explanation))
                if walk.take(link.name, Answer(explanation.decision, 0.0)):
                    break
            decision = walk.end().decision
        except ProviderError as error:
            return ChainExplanation(None, (*steps, *_not_asked(links)), f"{error.summary}: {error.cause}")
        return ChainExplanation(decision, (*steps, *_not_asked(links)))

    def who_can(self, attributes: Attributes) -> WhoCan:
        """Everyone who may do this, as far as the providers can tell; raises `ProviderError`.

        Where the question names no upstream, all providers tell.
        """
        subjects, unknown = list[Subject](), list[str]()
        for link in self._links:
            if attributes.upstream and not link.is_for(attributes.upstream):
                continue
            found = link.who_can(attributes)
            if found is None:
                unknown.append(link.name)
            for subject in found or ():
                subjects.append(replace(subject, via=f"{link.name}: {subject.via}" if subject.via else link.name))
        return WhoCan(tuple(subjects), tuple(unknown))

    def rules_for(self, user: UserInfo, namespace: str, *, upstream: str = "") -> Rules:
        """What *user* may do in *namespace* of *upstream*. It never raises: what cannot be told makes it incomplete."""
        user = with_implied_groups(user)
        merged, errors = Rules(), list[str]()
        for link in self._links:
            if not link.is_for(upstream):
                continue
            try:
                rules = link.rules_for(user, namespace)
            except ProviderError as error:
                rules = Rules(incomplete=True, error=error.cause or error.summary)
            rules = rules or Rules(incomplete=True, error="this provider cannot list rules")
            if rules.error:
                errors.append(f"{link.name}: {rules.error}")
            merged = Rules(
                merged.resource_rules + rules.resource_rules,
                merged.non_resource_rules + rules.non_resource_rules,
                merged.incomplete or rules.incomplete,
            )
        return replace(merged, error="; ".join(errors))

    # --- refusals, for ``ostiary explain <decision id>`` ---

    def record(self, attributes: Attributes, decision: Decision, decision_id: str | None = None) -> str:
        """Remember a refusal, under the id of its request if it has one; returns the id that the caller may be told."""
        return self._refusals.record(_complete(attributes), decision, decision_id)

    def recall(self, decision_id: str) -> Refusal | None:
        return self._refusals.recall(decision_id)

    def recent_refusals(self, limit: int) -> list[Refusal]:
        """The latest refusals, the newest first."""
        return self._refusals.recent(limit)


class _Walk:
    """One way along the chain: what was heard so far, and what follows from it."""

    __slots__ = ("_ended", "_errors", "_generation", "_hidden", "_hide", "_reasons", "_until")

    def __init__(self, generation: int, until: float, *, hide: bool) -> None:
        self._generation, self._until, self._hide = generation, until, hide
        self._ended: Decision | None = None
        self._hidden = True
        self._reasons: list[str] = []
        self._errors: list[ProviderError] = []

    def take(self, name: str, answer: Answer) -> bool:
        """Hear what link *name* says; tells whether that ends the chain."""
        decision = answer.decision
        self._until = min(self._until, answer.until)
        if decision.verdict is not Verdict.NO_OPINION:
            self._ended = decision
            return True
        self._hidden = self._hidden and decision.hidden
        if decision.reason:
            self._reasons.append(f"{name}: {decision.reason}")
        return False

    def pass_by(self, name: str) -> None:
        """Link *name* is not asked: what it has a policy for lies elsewhere, which tells nothing about this request."""
        self._reasons.append(f"{name}: {NOT_ITS_UPSTREAM}")

    def fail(self, link: AskedLink, error: ProviderError) -> None:
        """A link could not be asked: raises, unless the chain may go on without it."""
        if link.on_error is not OnError.NO_OPINION:
            raise error
        self._errors.append(error)

    def end(self) -> Ruling:
        """Raises `ProviderError` where nobody decided and somebody could not be asked: that is no "no"."""
        if self._ended is None and self._errors:
            first, *others = self._errors
            if not others:
                raise first
            cause = "; ".join(f"{error.summary}: {error.cause}" for error in self._errors)
            raise ProviderError("an authorization provider is unavailable", cause=cause) from first
        # What was decided without somebody is asked again next time: an error is never part of what is kept.
        until = self._until if not self._errors else float("-inf")
        return Ruling(self._decision(), until, self._generation)

    def _decision(self) -> Decision:
        if self._ended is None:
            return Decision(Verdict.NO_OPINION, "; ".join(self._reasons), self._hide and self._hidden)
        if self._ended.hidden and not self._hide:
            return replace(self._ended, hidden=False)
        return self._ended


def _complete(attributes: Attributes) -> Attributes:
    """With all groups that the user is in, so that no provider has to know which ones are implied."""
    user = with_implied_groups(attributes.user)
    return attributes if user is attributes.user else replace(attributes, user=user)


def _not_asked(links: Iterator[AskedLink]) -> Iterator[Step]:
    return (Step(link.name) for link in links)
