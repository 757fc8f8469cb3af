"""The chain of authorization providers, in the order of the configuration.

    for each provider:  ALLOW or DENY ends the chain  |  NO_OPINION continues  |  an error ends it, or continues
    end of the chain:   a denial, or a `ProviderError` if a provider failed

`decide` returns immediately, or None; `authorize` waits. The names are those of the provider interface. The results of
each provider are cached (`authorization.cached_provider`). Neither a denial nor a `ProviderError` lets a request pass,
and only the second is worth a retry.
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
# The verbs whose denial may look like a missing object. Clients treat a 404 as "deleted": to a delete that is success,
# to a watch or a controller the end of the object.
READS = frozenset(("get", "list", "head"))
# Subresources of pods. They start something, and may be requested by GET with the verb get.
CONNECTS = frozenset(("exec", "attach", "portforward"))


def may_be_hidden(request: RequestInfo) -> bool:
    """Whether a denial may be a 404: only for plain reads, never for writes, watches or connections."""
    return request.verb in READS and not request.modifier and request.subresource not in CONNECTS


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one provider. Neither explanation nor error: an earlier provider has decided."""

    name: str
    explanation: Explanation | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class ChainExplanation:
    """The explanation of a decision. `decision` is None if the chain ended with `error`."""

    decision: Decision | None
    steps: tuple[Step, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class WhoCan:
    """All subjects that some provider allows a request. `unknown` names the providers that cannot list subjects.

    A provider earlier in the chain may still deny it to one of them.
    """

    subjects: tuple[Subject, ...]
    unknown: tuple[str, ...] = ()


class Authorizer:
    """Authorizes requests by a chain of providers. Used by one event loop."""

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
        """Create the chain of a configuration. *refusals* are the recent denials of the previous one."""
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
        """A number that increases when a provider's policy changes. Read for every request."""
        generation = 0
        for provider in self._providers:
            # Each epoch only increases, so equal sums mean equal epochs.
            generation += provider.epoch()
        return generation

    @property
    def cache_seconds(self) -> float:
        """How long a decision is cached."""
        return self._ttl

    def is_valid(self, ruling: CachedDecision) -> bool:
        """Return whether *ruling* may be used again for the same attributes."""
        return ruling.generation == self.generation and self._clock.monotonic() < ruling.until

    def question_key(self, attributes: Attributes) -> Hashable:
        """Return a key that is equal for attributes with the same decision; raises `ProviderError`.

        For callers with many queries that need to send equal ones only once.
        """
        attributes = _complete(attributes)
        return tuple(provider.key(attributes) for provider in self._providers if provider.is_for(attributes.upstream))

    # --- decisions ---

    def decide(self, *questions: Attributes) -> CachedDecision | None:
        """Return the decision on all of *questions*, or None if that requires waiting; then call `authorize`.

        For callers that serve many requests and start a task only if necessary. Raises `ProviderError`.
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
        """Return whether the fresh decision on *attributes* could differ for an object with another name.

        Considers the providers that the decision depends on: up to the one that ended the chain.
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
        """Return the decision on all of *questions*; raises `ProviderError` if a provider fails.

        For callers that run in a task. Includes decisions that require no waiting.
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
        """Return every group that a policy mentions; raises `ProviderError` if a provider fails.

        That applies to `OnError.NO_OPINION`, too: a token without a group may lack the one that denies.
        """
        groups: frozenset[str] = frozenset()
        for provider in self._providers:
            groups |= await provider.relevant_groups()
        return groups

    def _walk(self, attributes: Attributes) -> _Walk:
        hide = self._hide_denied and may_be_hidden(attributes.request)
        # Read the generation first: if a policy changes during the queries, the decision is outdated.
        return _Walk(self.generation, self._clock.monotonic() + self._ttl, hide=hide)

    # --- queries of operators ---

    async def explain(self, attributes: Attributes) -> ChainExplanation:
        """Explain a decision: query every provider without caches, up to the one that ends the chain.

        For a request with capabilities, explain the first of its queries that is not allowed.
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
        """Return all subjects that may do this, as far as providers can list them; raises `ProviderError`.

        Attributes without an upstream are queried at all providers.
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
        """Return the rules of *user* in *namespace* of *upstream*.

        Never raises: an error makes the result incomplete.
        """
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
        """Return whether a policy for *upstream* allows *user* more than discovery; None if unknown.

        A provider earlier in the chain may still deny it. Raises `ProviderError`.
        """
        user = with_implied_groups(user)
        rights = [provider.gives_rights(user) for provider in self._providers if provider.is_for(upstream)]
        return True if True in rights else None if None in rights else False

    # --- denials, for ``ostiary-gateway explain <decision id>`` ---

    def record(self, attributes: Attributes, decision: Decision, decision_id: str | None = None) -> str:
        """Record a denial under the id of its request or a new one. Return the id, which may be sent to the client."""
        return self._refusals.record(_complete(attributes), decision, decision_id)

    def recall(self, decision_id: str) -> Refusal | None:
        return self._refusals.recall(decision_id)

    def recent_refusals(self, limit: int) -> list[Refusal]:
        """Return recent denials, newest first."""
        return self._refusals.recent(limit)


class _Walk:
    """The state of one evaluation of the chain."""

    __slots__ = ("_ended", "_errors", "_generation", "_hidden", "_hide", "_reasons", "_until")

    def __init__(self, generation: int, until: float, *, hide: bool) -> None:
        self._generation, self._until, self._hide = generation, until, hide
        self._ended: Decision | None = None
        self._hidden = True
        self._reasons: list[str] = []
        self._errors: list[ProviderError] = []

    def take(self, name: str, timed: TimedDecision) -> bool:
        """Add the decision of provider *name*. Return whether it ends the chain."""
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
        """Skip provider *name*, whose policy is for other upstreams."""
        self._reasons.append(f"{name}: {NOT_ITS_UPSTREAM}")

    def fail(self, provider: CachedAuthorizationProvider, error: ProviderError) -> None:
        """Handle the error of a provider: raise it, unless the chain may continue without the provider."""
        if provider.on_error is not OnError.NO_OPINION:
            raise error
        self._errors.append(error)

    def end(self) -> CachedDecision:
        """Return the decision; raises `ProviderError` if no provider has decided and one has failed."""
        if self._ended is None and self._errors:
            first, *others = self._errors
            if not others:
                raise first
            cause = "; ".join(f"{error.summary}: {error.cause}" for error in self._errors)
            raise ProviderError("an authorization provider is unavailable", cause=cause) from first
        # Do not cache a decision made without one of the providers: query it again next time.
        until = self._until if not self._errors else float("-inf")
        if self._ended is None:
            verdict, reason, is_hidden = Verdict.NO_OPINION, "; ".join(self._reasons), self._hidden
        else:
            verdict, reason, is_hidden = self._ended.verdict, self._ended.reason, self._ended.hidden
        return CachedDecision(verdict, reason, self._hide and is_hidden, until, self._generation)


def _complete(attributes: Attributes) -> Attributes:
    """Add implied groups, so that providers need not know them."""
    user = with_implied_groups(attributes.user)
    return attributes if user is attributes.user else Attributes(user, attributes.request)


def _steps_after(providers: Iterator[CachedAuthorizationProvider]) -> Iterator[Step]:
    """Yield steps for the providers that were not queried."""
    return (Step(provider.name) for provider in providers)
