"""Attributes to Decision: the chain of authorization providers, in the order of the configuration.

    for each provider:  ALLOW or DENY ends the chain  |  NO_OPINION moves on  |  could not ask: ends it, or moves on
    the end of the chain: a refusal, or an error if somebody could not be asked

Called by the engine (`request.judge`) for every request whose decision it does not hold already, by the webhooks and
by the self reviews. Everybody asks in one of two ways: `decide` answers at once or returns None, `authorize` waits. The
names are those of the providers' own interface. What each provider said is cached by `authorize.cached_provider`. A
refusal is a Decision; "could not ask" is a `ProviderError`. Neither lets a request pass, and only the second is worth
trying again.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.cached_decision import NOTHING_ASKED, CachedDecision, stricter
from ostiary_gateway.authorization.cached_provider import CachedAuthorizationProvider, Link, TimedDecision
from ostiary_gateway.authorization.capabilities import questions_of
from ostiary_gateway.authorization.denials import RecentDenials, Refusal
from ostiary_gateway.authorization.implied_groups import with_implied_groups
from ostiary_gateway.config.gateway_config import AuthorizationSettings, DecisionSettings
from ostiary_gateway.config.provider import OnError
from ostiary_gateway.interfaces.authorization import Explanation, Rules, Subject

__all__ = ["Authorizer", "ChainExplanation", "Link", "OnError", "Step", "WhoCan", "may_be_hidden"]

_DEFAULTS = DecisionSettings()
CACHE_SECONDS = _DEFAULTS.cache_ttl.total_seconds()
ENTRIES = _DEFAULTS.cache_entries
TIMEOUT_SECONDS = _DEFAULTS.timeout.total_seconds()
NOT_ITS_UPSTREAM = "its policy applies to other upstreams"
# The verbs whose refusal may look like a missing object. Clients take a 404 for "it is gone": to a delete that is
# success, to a watch or a controller the end of the object.
READS = frozenset(("get", "list", "head"))
# Of pods. These begin something, and may be asked for by GET, with the verb get.
CONNECTS = frozenset(("exec", "attach", "portforward"))


def may_be_hidden(request: RequestInfo) -> bool:
    """Whether a refusal of *request* may be a 404: for what only reads, never for what changes, waits or connects."""
    return request.verb in READS and not request.modifier and request.subresource not in CONNECTS


@dataclass(frozen=True, slots=True)
class Step:
    """What one provider says to a question. Neither explanation nor error: an earlier provider has decided."""

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
    """Everyone whom some provider allows this. `unknown` names the providers that cannot tell.

    A provider before the one that allows may still deny it to one of them.
    """

    subjects: tuple[Subject, ...]
    unknown: tuple[str, ...] = ()


class Authorizer:
    """Decides by a chain of providers. One event loop uses an instance."""

    def __init__(
        self,
        chain: Sequence[Link],
        *,
        cache_ttl: float = CACHE_SECONDS,
        hide_denied: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        max_entries: int = ENTRIES,
        timeout: float = TIMEOUT_SECONDS,
        refusals: RecentDenials | None = None,
    ) -> None:
        self._providers = tuple(
            CachedAuthorizationProvider(link, ttl=cache_ttl, timeout=timeout, max_entries=max_entries, clock=clock)
            for link in chain
        )
        self._ttl = cache_ttl
        self._hide_denied = hide_denied
        self._clock = clock
        self._refusals = refusals or RecentDenials(clock=clock)

    @classmethod
    def from_settings(
        cls, configured: AuthorizationSettings, *, clock: Clock = SYSTEM_CLOCK, refusals: RecentDenials | None = None
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
        """A number that rises whenever the policy of a provider changes. Cheap: it is read for every request."""
        generation = 0
        for provider in self._providers:
            # Each only rises, so the sum stays the same only if all of them do.
            generation += provider.epoch()
        return generation

    @property
    def cache_seconds(self) -> float:
        """How long a decision is used again."""
        return self._ttl

    def is_valid(self, ruling: CachedDecision) -> bool:
        """Whether *ruling* may be used again for the very same attributes."""
        return ruling.generation == self.generation and self._clock.monotonic() < ruling.until

    def question_key(self, attributes: Attributes) -> Hashable:
        """Equal for questions that this policy must answer alike, whatever else differs; raises `ProviderError`.

        For those who ask about many requests at once, and may ask each question once.
        """
        attributes = _complete(attributes)
        return tuple(provider.key(attributes) for provider in self._providers if provider.is_for(attributes.upstream))

    # --- deciding ---

    def decide(self, *questions: Attributes) -> CachedDecision | None:
        """The ruling on all of *questions* if nothing must be waited for, else None: call `authorize` then.

        For callers that serve many requests and start a task only if they must. Raises `ProviderError`.
        """
        ruling = NOTHING_ASKED
        for attributes in questions:
            part = self._decide_one(attributes)
            if part is None:
                return None
            ruling = part if ruling is NOTHING_ASKED else stricter(ruling, part)
            if not ruling.allowed:
                break
        return ruling

    def name_matters(self, attributes: Attributes) -> bool:
        """Whether the ruling on *attributes*, just decided, could be another one for an object of another name.

        Asked of those that the ruling depends on: up to the one that ended the chain.
        """
        attributes = _complete(attributes)
        for provider in self._providers:
            if not provider.is_for(attributes.upstream):
                continue
            try:
                timed = None if provider.name_matters(attributes) else provider.decide(attributes)
            except ProviderError:
                return True
            if timed is None:
                return True
            if timed.decision.verdict is not Verdict.NO_OPINION:
                return False
        return False

    async def authorize(self, *questions: Attributes) -> CachedDecision:
        """The ruling on all of *questions*, waited for; raises `ProviderError` if a provider cannot be asked.

        For callers that run in a task anyway: it also takes what can be decided at once.
        """
        ruling = NOTHING_ASKED
        for attributes in questions:
            part = await self._authorize_one(attributes)
            ruling = part if ruling is NOTHING_ASKED else stricter(ruling, part)
            if not ruling.allowed:
                break
        return ruling

    def _decide_one(self, attributes: Attributes) -> CachedDecision | None:
        attributes = _complete(attributes)
        walk = self._walk(attributes)
        for provider in self._providers:
            if not provider.is_for(attributes.upstream):
                walk.pass_by(provider.name)
                continue
            try:
                decision = provider.decide(attributes)
            except ProviderError as error:
                walk.fail(provider, error)
                continue
            if decision is None:
                return None
            if walk.take(provider.name, decision):
                break
        return walk.end()

    async def _authorize_one(self, attributes: Attributes) -> CachedDecision:
        attributes = _complete(attributes)
        walk = self._walk(attributes)
        for provider in self._providers:
            if not provider.is_for(attributes.upstream):
                walk.pass_by(provider.name)
                continue
            try:
                decision = await provider.authorize(attributes)
            except ProviderError as error:
                walk.fail(provider, error)
                continue
            if walk.take(provider.name, decision):
                break
        return walk.end()

    async def relevant_groups(self) -> frozenset[str]:
        """Every group that some policy mentions; raises `ProviderError` if one provider cannot say.

        That holds for `OnError.NO_OPINION` too: a token that lacks a group may lack the one that denies.
        """
        groups: frozenset[str] = frozenset()
        for provider in self._providers:
            groups |= await provider.relevant_groups()
        return groups

    def _walk(self, attributes: Attributes) -> _Walk:
        hide = self._hide_denied and may_be_hidden(attributes.request)
        # The generation comes first: a policy that changes while we ask makes the ruling an old one.
        return _Walk(self.generation, self._clock.monotonic() + self._ttl, hide=hide)

    # --- what an operator asks ---

    async def explain(self, attributes: Attributes) -> ChainExplanation:
        """Why: every provider is asked anew, up to the one that ends the chain.

        Of a request with capabilities it is the first of its questions that is not answered with yes.
        """
        explanations = list[ChainExplanation]()
        for question in questions_of(attributes.request):
            explanation = await self._explain(Attributes(attributes.user, question))
            if explanation.decision is None or not explanation.decision.allowed:
                return explanation
            explanations.append(explanation)
        return explanations[0]

    async def _explain(self, attributes: Attributes) -> ChainExplanation:
        attributes = _complete(attributes)
        walk, steps, providers = self._walk(attributes), list[Step](), iter(self._providers)
        try:
            for provider in providers:
                if not provider.is_for(attributes.upstream):
                    walk.pass_by(provider.name)
                    steps.append(Step(provider.name, Explanation(Decision(Verdict.NO_OPINION, NOT_ITS_UPSTREAM))))
                    continue
                try:
                    explanation = await provider.explain(attributes)
                except ProviderError as error:
                    steps.append(Step(provider.name, error=error.cause or error.summary))
                    walk.fail(provider, error)
                    continue
                steps.append(Step(provider.name, explanation))
                if walk.take(provider.name, TimedDecision(explanation.decision, 0.0)):
                    break
            decision = walk.end()
        except ProviderError as error:
            return ChainExplanation(None, (*steps, *_steps_after(providers)), f"{error.summary}: {error.cause}")
        return ChainExplanation(decision, (*steps, *_steps_after(providers)))

    def who_can(self, attributes: Attributes) -> WhoCan:
        """Everyone who may do this, as far as the providers can tell; raises `ProviderError`.

        Where the question names no upstream, all providers tell.
        """
        subjects, unknown = list[Subject](), list[str]()
        for provider in self._providers:
            if attributes.upstream and not provider.is_for(attributes.upstream):
                continue
            allowed = provider.who_can(attributes)
            if allowed is None:
                unknown.append(provider.name)
            for subject in allowed or ():
                via = f"{provider.name}: {subject.via}" if subject.via else provider.name
                subjects.append(replace(subject, via=via))
        return WhoCan(tuple(subjects), tuple(unknown))

    def rules_for(self, user: UserInfo, namespace: str, *, upstream: str = "") -> Rules:
        """What *user* may do in *namespace* of *upstream*. It never raises: what cannot be told makes it incomplete."""
        user = with_implied_groups(user)
        merged, errors = Rules(), list[str]()
        for provider in self._providers:
            if not provider.is_for(upstream):
                continue
            try:
                rules = provider.rules_for(user, namespace)
            except ProviderError as error:
                rules = Rules(incomplete=True, error=error.cause or error.summary)
            rules = rules or Rules(incomplete=True, error="this provider cannot list rules")
            if rules.error:
                errors.append(f"{provider.name}: {rules.error}")
            merged = Rules(
                merged.resource_rules + rules.resource_rules,
                merged.non_resource_rules + rules.non_resource_rules,
                merged.incomplete or rules.incomplete,
            )
        return replace(merged, error="; ".join(errors))

    def gives_rights(self, user: UserInfo, *, upstream: str) -> bool | None:
        """Whether some policy for *upstream* allows *user* more than discovery; None if that cannot be told.

        A provider before the one that allows it may still deny it. Raises `ProviderError`.
        """
        user = with_implied_groups(user)
        rights = [provider.gives_rights(user) for provider in self._providers if provider.is_for(upstream)]
        return True if True in rights else None if None in rights else False

    # --- refusals, for ``ostiary-gateway explain <decision id>`` ---

    def record(self, attributes: Attributes, decision: Decision, decision_id: str | None = None) -> str:
        """Remember a refusal, under the id of its request if it has one; returns the id that the caller may be told."""
        return self._refusals.record(_complete(attributes), decision, decision_id)

    def recall(self, decision_id: str) -> Refusal | None:
        return self._refusals.recall(decision_id)

    def recent_refusals(self, limit: int) -> list[Refusal]:
        """The latest refusals, the newest first."""
        return self._refusals.recent(limit)


class _Walk:
    """One walk along the chain: what the providers have said so far, and what follows from it."""

    __slots__ = ("_ended", "_errors", "_generation", "_hidden", "_hide", "_reasons", "_until")

    def __init__(self, generation: int, until: float, *, hide: bool) -> None:
        self._generation, self._until, self._hide = generation, until, hide
        self._ended: Decision | None = None
        self._hidden = True
        self._reasons: list[str] = []
        self._errors: list[ProviderError] = []

    def take(self, name: str, timed: TimedDecision) -> bool:
        """Take the decision of provider *name*; returns whether that ends the chain."""
        decision = timed.decision
        self._until = min(self._until, timed.until)
        if decision.verdict is not Verdict.NO_OPINION:
            self._ended = decision
            return True
        self._hidden = self._hidden and decision.hidden
        if decision.reason:
            self._reasons.append(f"{name}: {decision.reason}")
        return False

    def pass_by(self, name: str) -> None:
        """Provider *name* is not asked: its policy is for other upstreams."""
        self._reasons.append(f"{name}: {NOT_ITS_UPSTREAM}")

    def fail(self, provider: CachedAuthorizationProvider, error: ProviderError) -> None:
        """A provider could not be asked: raises, unless the chain may go on without it."""
        if provider.on_error is not OnError.NO_OPINION:
            raise error
        self._errors.append(error)

    def end(self) -> CachedDecision:
        """The ruling; raises `ProviderError` if no provider has decided and one could not be asked."""
        if self._ended is None and self._errors:
            first, *others = self._errors
            if not others:
                raise first
            cause = "; ".join(f"{error.summary}: {error.cause}" for error in self._errors)
            raise ProviderError("an authorization provider is unavailable", cause=cause) from first
        # A decision that was made without one of the providers is not kept: that provider is asked again next time.
        until = self._until if not self._errors else float("-inf")
        if self._ended is None:
            verdict, reason, is_hidden = Verdict.NO_OPINION, "; ".join(self._reasons), self._hidden
        else:
            verdict, reason, is_hidden = self._ended.verdict, self._ended.reason, self._ended.hidden
        return CachedDecision(verdict, reason, self._hide and is_hidden, until, self._generation)


def _complete(attributes: Attributes) -> Attributes:
    """With all groups that the user is in, so that no provider has to know which ones are implied."""
    user = with_implied_groups(attributes.user)
    return attributes if user is attributes.user else Attributes(user, attributes.request)


def _steps_after(providers: Iterator[CachedAuthorizationProvider]) -> Iterator[Step]:
    """The steps of those that were not asked, because an earlier one has decided."""
    return (Step(provider.name) for provider in providers)
