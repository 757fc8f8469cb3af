"""Caches the decisions of one authorization provider, and protects the chain from its failures.

    cached?  ->  decides at once? then call it  ->  else one call for all who wait, bounded in time  ->  keep

Called by `ostiary_gateway.authorization.chain`. Decisions are cached by exact arguments and for one lifetime, which
bounds how old a decision can be. The provider may choose a coarser key, and may raise its revision, which drops what
was decided before. Whatever it does against its contract (raise, hang, return something else) is a `ProviderError`: it
is never kept, and it allows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from ostiary.core.cache import Cache, size_of
from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway.authorization.cached_decision import FIXED_BYTES, attributes_size
from ostiary_gateway.capabilities import ability, has_trait
from ostiary_gateway.config.provider import OnError
from ostiary_gateway.interfaces.authorization import (
    AuthorizationProvider,
    ChoosesCacheKey,
    DecidesAtOnce,
    DecidesQuickly,
    Explains,
    Explanation,
    ListsRules,
    ListsSubjects,
    NameIndependent,
    Revised,
    Rules,
    Subject,
    TellsRights,
)
from ostiary_gateway.observability.reasons import reason_of

# About ten times the attributes of an ordinary request. Selectors count: a few huge ones must not fill the memory.
KEY_BYTES = 16_384
# What one provider's decisions may take, in all and for one user.
SIZE = 32 * 1024 * 1024
SIZE_PER_USER = 2 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Link:
    """A provider and its place in the chain. With `OnError.NO_OPINION` the chain goes on when it cannot be asked.

    `upstreams` are those that its policy is for; None for all of them and for our own APIs.
    """

    name: str
    provider: AuthorizationProvider
    on_error: OnError = OnError.DENY
    upstreams: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class TimedDecision:
    """A decision, and until when it may be used, on the monotonic clock. Its lifetime began with the question."""

    decision: Decision
    until: float


class CachedAuthorizationProvider:
    """A provider of the chain with its cache. One event loop uses it."""

    def __init__(self, link: Link, *, ttl: float, timeout: float, max_entries: int, clock: Clock) -> None:
        provider = link.provider
        self.name, self.on_error, self._upstreams = link.name, link.on_error, link.upstreams
        self._provider = provider
        self._ttl, self._timeout, self._clock = ttl, timeout, clock
        deciding, choosing = ability(provider, DecidesAtOnce), ability(provider, ChoosesCacheKey)
        self._decide_at_once = None if deciding is None else deciding.decide
        self._keeps_decisions = deciding is None or not has_trait(provider, DecidesQuickly)
        self._chosen_key = None if choosing is None else choosing.cache_key
        self._revised = ability(provider, Revised)
        self._telling_names = ability(provider, NameIndependent)
        self._revision: object = None
        self._epoch = 0
        self._decisions: Cache[Hashable, TimedDecision] = Cache(
            seconds=ttl,
            clock=clock,
            entries=max_entries,
            key_bytes=KEY_BYTES,
            key_size=_key_size,
            value_size=lambda timed: FIXED_BYTES + len(timed.decision.reason),
            size=SIZE,
            share_size=SIZE_PER_USER,
            # Later than our own time limit, whose error names the provider.
            time_limit=timeout * 2,
        )

    def is_for(self, upstream: str) -> bool:
        """Whether its policy is for requests to *upstream*. If not, it is not asked, and has no opinion."""
        return self._upstreams is None or upstream in self._upstreams

    def epoch(self) -> int:
        """A number that rises whenever the provider's revision changes. The cached decisions are dropped then."""
        if self._revised is None:
            return 0
        try:
            revision: object = self._revised.revision
        except Exception:
            # We do not know whether the policy changed, so we trust no cached decision.
            revision = object()
        if revision != self._revision:
            self._revision = revision
            self._epoch += 1
            self._decisions.drop()
        return self._epoch

    def decide(self, attributes: Attributes) -> TimedDecision | None:
        """The decision if nothing must be waited for, else None; raises `ProviderError`. Call `epoch` before it."""
        decide = self._decide_at_once
        if decide is not None and not self._keeps_decisions:
            return self._timed_decision(decide, attributes)
        key = self.key(attributes)
        try:
            timed = self._decisions.get(key)
        except TypeError as error:
            raise self._failure("the cache key is not hashable", error) from error
        if timed is not None or decide is None:
            return timed
        timed = self._timed_decision(decide, attributes)
        seconds = timed.until - self._clock.monotonic()
        self._decisions.put(key, timed, owner=attributes.user.username, seconds=seconds)
        return timed

    def _timed_decision(self, decide: Callable[[Attributes], Decision], attributes: Attributes) -> TimedDecision:
        until = self._clock.monotonic() + self._ttl
        try:
            decision: object = decide(attributes)
        except Exception as error:
            raise self._failure("it raised an error", error) from error
        return TimedDecision(self._check_decision(decision), until)

    def name_matters(self, attributes: Attributes) -> bool:
        """Whether another name could make another decision; True, too, if the provider cannot tell, or fails."""
        if self._telling_names is None:
            return True
        try:
            return self._telling_names.name_matters(attributes) is not False
        except Exception:
            return True

    async def authorize(self, attributes: Attributes) -> TimedDecision:
        """The decision, waited for; raises `ProviderError`."""
        came_at = self._clock.monotonic()
        # Read for every provider: the ones before it may have been waited for.
        self.epoch()
        timed = self.decide(attributes)
        # A caller that joins a call older than the lifetime of a decision starts a new one.
        while timed is None or timed.until < came_at:
            key, owner = self.key(attributes), attributes.user.username
            try:
                timed = await self._decisions.fill(key, lambda: self._call_authorize(attributes), owner=owner)
            except TimeoutError:
                # The cache's own limit, which is the later one, but can be noticed first by a loop that was held up.
                raise self._failure("it did not answer in time") from None
        return timed

    async def relevant_groups(self) -> frozenset[str]:
        groups: object = await self._call_within_limit(self._provider.relevant_groups)
        if not isinstance(groups, (set, frozenset)) or not all(isinstance(group, str) for group in groups):
            raise self._failure(f"relevant_groups returned {_kind(groups)} and not a set of names")
        return frozenset(groups)

    # --- what an operator asks ---

    async def explain(self, attributes: Attributes) -> Explanation:
        """The provider is asked anew: a cached decision cannot be explained."""
        explaining = ability(self._provider, Explains)
        if explaining is None:
            return Explanation(await self._decide_anew(attributes))
        explanation: object = self._call(lambda: explaining.explain(attributes))
        if not isinstance(explanation, Explanation):
            raise self._failure(f"explain returned {_kind(explanation)}")
        self._check_decision(explanation.decision)
        return explanation

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...] | None:
        """None if the provider cannot tell."""
        listing = ability(self._provider, ListsSubjects)
        if listing is None:
            return None
        return self._call(lambda: tuple(listing.who_can(attributes)))

    def rules_for(self, user: UserInfo, namespace: str) -> Rules | None:
        """None if the provider cannot tell."""
        listing = ability(self._provider, ListsRules)
        if listing is None:
            return None
        rules: object = self._call(lambda: listing.rules_for(user, namespace))
        if not isinstance(rules, Rules):
            raise self._failure(f"rules_for returned {_kind(rules)}")
        return rules

    def gives_rights(self, user: UserInfo) -> bool | None:
        """None if the provider cannot tell."""
        telling = ability(self._provider, TellsRights)
        if telling is None:
            return None
        rights: object = self._call(lambda: telling.gives_rights(user))
        if not isinstance(rights, bool):
            raise self._failure(f"gives_rights returned {_kind(rights)}")
        return rights

    async def _decide_anew(self, attributes: Attributes) -> Decision:
        if (decide := self._decide_at_once) is not None:
            return self._check_decision(self._call(lambda: decide(attributes)))
        return (await self._call_authorize(attributes)).decision

    # --- asking ---

    def key(self, attributes: Attributes) -> Hashable:
        if self._chosen_key is None:
            return attributes
        try:
            # A permission at one upstream is none at another, nor for another object, whatever the provider takes for
            # equal.
            return attributes.upstream, attributes.request.capabilities, self._chosen_key(attributes)
        except Exception as error:
            raise self._failure("it could not choose a cache key", error) from error

    async def _call_authorize(self, attributes: Attributes) -> TimedDecision:
        until = self._clock.monotonic() + self._ttl
        decision = await self._call_within_limit(lambda: self._provider.authorize(attributes))
        return TimedDecision(self._check_decision(decision), until)

    async def _call_within_limit(self, call: Callable[[], Awaitable[object]]) -> object:
        """What *call* gives within the time limit, even if it resists being cancelled."""
        task = asyncio.ensure_future(_await(call))
        task.add_done_callback(_consume_error)
        try:
            finished, _ = await asyncio.wait({task}, timeout=self._timeout)
        finally:
            task.cancel()
        if not finished:
            raise self._failure(f"it did not answer within {self._timeout:g} seconds")
        try:
            return task.result()
        except asyncio.CancelledError as error:
            # The provider cancelled it: if this caller had been cancelled, it would not have come here.
            raise self._failure("it cancelled the call") from error
        except Exception as error:
            raise self._failure("it raised an error", error) from error

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise self._failure("it raised an error", error) from error

    def _check_decision(self, decision: object) -> Decision:
        if isinstance(decision, Decision) and isinstance(decision.verdict, Verdict):
            return decision
        raise self._failure(f"it returned {_kind(decision)} and not a Decision")

    def _failure(self, what: str, error: Exception | None = None) -> ProviderError:
        summary = f'the authorization provider "{self.name}" is unavailable'
        return ProviderError(summary, cause=what if error is None else f"{what}: {reason_of(error)}")


async def _await(call: Callable[[], Awaitable[object]]) -> object:
    # Called in here, so that a method that is not async fails like one that raises.
    return await call()


def _consume_error(task: asyncio.Future[object]) -> None:
    # A call that was given up may still fail later. Nobody waits for it, so asyncio would log it as never retrieved.
    if not task.cancelled():
        task.exception()


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _key_size(key: Hashable) -> int:
    """About how many bytes a key holds, whether the provider chose it or not."""
    return attributes_size(key) if isinstance(key, Attributes) else size_of(key)
