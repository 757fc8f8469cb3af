"""Cache the decisions of one authorization provider, and isolate the chain from its failures.

    cached?  ->  synchronous `decide`?  ->  otherwise one `authorize` for all waiters, with a timeout  ->  cache

Keys are the attributes, or a coarser key that the provider chooses. Entries expire after `ttl`, which bounds the age of
a decision, and when the provider's revision changes. Any violation of the contract (an exception, a hang, a wrong type)
is a `ProviderError`: it is never cached and allows nothing.
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

# About ten times the size of ordinary attributes. Includes selectors, so that a few huge ones cannot fill the memory.
KEY_BYTES = 16_384
# Maximum size of one provider's cache, in total and per user.
SIZE = 32 * 1024 * 1024
SIZE_PER_USER = 2 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Link:
    """A provider in the chain. With `OnError.NO_OPINION`, the chain continues if it fails.

    `upstreams` are those that its policy is for; None for all upstreams and the built-in APIs.
    """

    name: str
    provider: AuthorizationProvider
    on_error: OnError = OnError.DENY
    upstreams: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class TimedDecision:
    """A decision and its expiry on the monotonic clock, counted from the start of the query."""

    decision: Decision
    until: float


class CachedAuthorizationProvider:
    """A provider of the chain with its cache. Used by one event loop."""

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
            # Longer than `timeout`, whose error names the provider.
            time_limit=timeout * 2,
        )

    def is_for(self, upstream: str) -> bool:
        """Whether its policy is for requests to *upstream*. Otherwise it has no opinion and is not queried."""
        return self._upstreams is None or upstream in self._upstreams

    def epoch(self) -> int:
        """Return a number that increases when the provider's revision changes, and drop cached decisions then."""
        if self._revised is None:
            return 0
        try:
            revision: object = self._revised.revision
        except Exception:
            # It is unknown whether the policy has changed, so no cached decision is trusted.
            revision = object()
        if revision != self._revision:
            self._revision = revision
            self._epoch += 1
            self._decisions.drop()
        return self._epoch

    def decide(self, attributes: Attributes) -> TimedDecision | None:
        """Return the decision, or None if that requires waiting; raises `ProviderError`. Call `epoch` first."""
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
        """Return whether the decision could differ for another name. True if the provider fails or does not say."""
        if self._telling_names is None:
            return True
        try:
            return self._telling_names.name_matters(attributes) is not False
        except Exception:
            return True

    async def authorize(self, attributes: Attributes) -> TimedDecision:
        """Return the decision; raises `ProviderError`."""
        came_at = self._clock.monotonic()
        # Checked for every provider: time may have passed while earlier providers were queried.
        self.epoch()
        timed = self.decide(attributes)
        # A caller that joins a call older than the lifetime of a decision starts a new one.
        while timed is None or timed.until < came_at:
            key, owner = self.key(attributes), attributes.user.username
            try:
                timed = await self._decisions.fill(key, lambda: self._call_authorize(attributes), owner=owner)
            except TimeoutError:
                # The cache's own timeout, which is later but may be noticed first if the event loop was blocked.
                raise self._failure("it did not answer in time") from None
        return timed

    async def relevant_groups(self) -> frozenset[str]:
        groups: object = await self._call_within_limit(self._provider.relevant_groups)
        if not isinstance(groups, (set, frozenset)) or not all(isinstance(group, str) for group in groups):
            raise self._failure(f"relevant_groups returned {_kind(groups)} and not a set of names")
        return frozenset(groups)

    # --- queries of operators ---

    async def explain(self, attributes: Attributes) -> Explanation:
        """Explain a decision. Queries the provider again, because a cached decision cannot be explained."""
        explaining = ability(self._provider, Explains)
        if explaining is None:
            return Explanation(await self._decide_anew(attributes))
        explanation: object = self._call(lambda: explaining.explain(attributes))
        if not isinstance(explanation, Explanation):
            raise self._failure(f"explain returned {_kind(explanation)}")
        self._check_decision(explanation.decision)
        return explanation

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...] | None:
        """Return the allowed subjects; None if the provider cannot list them."""
        listing = ability(self._provider, ListsSubjects)
        if listing is None:
            return None
        return self._call(lambda: tuple(listing.who_can(attributes)))

    def rules_for(self, user: UserInfo, namespace: str) -> Rules | None:
        """Return the rules of *user*; None if the provider cannot list them."""
        listing = ability(self._provider, ListsRules)
        if listing is None:
            return None
        rules: object = self._call(lambda: listing.rules_for(user, namespace))
        if not isinstance(rules, Rules):
            raise self._failure(f"rules_for returned {_kind(rules)}")
        return rules

    def gives_rights(self, user: UserInfo) -> bool | None:
        """Return whether *user* has more rights than discovery; None if the provider cannot determine it."""
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

    # --- calls of the provider ---

    def key(self, attributes: Attributes) -> Hashable:
        if self._chosen_key is None:
            return attributes
        try:
            # Permissions differ by upstream and by object, whatever key the provider chooses.
            return attributes.upstream, attributes.request.capabilities, self._chosen_key(attributes)
        except Exception as error:
            raise self._failure("it could not choose a cache key", error) from error

    async def _call_authorize(self, attributes: Attributes) -> TimedDecision:
        until = self._clock.monotonic() + self._ttl
        decision = await self._call_within_limit(lambda: self._provider.authorize(attributes))
        return TimedDecision(self._check_decision(decision), until)

    async def _call_within_limit(self, call: Callable[[], Awaitable[object]]) -> object:
        """Return the result of *call* within the timeout, even if the task resists cancellation."""
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
            # Cancelled by the provider: a cancelled caller would not get here.
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
    # Called inside the coroutine, so that a method that is not async fails like one that raises.
    return await call()


def _consume_error(task: asyncio.Future[object]) -> None:
    # A call that timed out may fail later. Retrieve the exception, or asyncio logs it as never retrieved.
    if not task.cancelled():
        task.exception()


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _key_size(key: Hashable) -> int:
    """Return the approximate size of a key in bytes."""
    return attributes_size(key) if isinstance(key, Attributes) else size_of(key)
