"""One authorization provider in the gateway's chain: asked once for equal questions, and never trusted to behave.

    cached?  ->  decides at once? then call it  ->  else one question for all who wait, bounded in time  ->  keep

Called by `ostiary.gateway.authorize.chain`. Who caches: the gateway does, by exact arguments and for one lifetime,
which bounds how old a decision can be. The provider may choose a coarser key, and may raise its revision, which
drops what was decided before. Whatever it does against its contract (raise, hang, return something else) is a
`ProviderError`: it is never kept, and it opens nothing.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar, cast

from ostiary.core.caching.cache import Cache, size_of
from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary.gateway.authorize.sizes import FIXED_BYTES, attributes_size
from ostiary.gateway.config.settings import OnError
from ostiary.gateway.observe.reasons import reason_of
from ostiary.interfaces.authorization import (
    AuthorizationProvider,
    ChoosesCacheKey,
    DecidesAtOnce,
    Explains,
    Explanation,
    ListsRules,
    ListsSubjects,
    Revised,
    Rules,
    Subject,
)
from ostiary.model import Attributes, Decision, UserInfo, Verdict

# About ten times the attributes of an ordinary request. Selectors count: a few huge ones must not fill the memory.
KEY_BYTES = 16_384
# What one provider's decisions may take, in all and for one user.
SIZE = 32 * 1024 * 1024
SIZE_PER_USER = 2 * 1024 * 1024

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Link:
    """A provider and its place in the chain. With `OnError.NO_OPINION` the chain goes on when it cannot be asked.

    `upstreams` are those that its policy is for; None for all, and for what is done at no upstream.
    """

    name: str
    provider: AuthorizationProvider
    on_error: OnError = OnError.DENY
    upstreams: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A decision, and the end of its life on the monotonic clock. Its life began with the question."""

    decision: Decision
    until: float


class AskedLink:
    """A link with its memory. One event loop uses it."""

    def __init__(self, link: Link, *, ttl: float, timeout: float, max_entries: int, clock: Clock) -> None:
        provider = link.provider
        self.name, self.on_error, self._upstreams = link.name, link.on_error, link.upstreams
        self._provider = provider
        self._ttl, self._timeout, self._clock = ttl, timeout, clock
        self._decide = cast(DecidesAtOnce, provider).decide if _has(provider, "decide") else None
        self._chosen_key = cast(ChoosesCacheKey, provider).cache_key if _has(provider, "cache_key") else None
        # Looked at without calling it: reading a revision may fail, and that is told when it is needed.
        self._revised = cast(Revised, provider) if inspect.getattr_static(provider, "revision", None) else None
        self._revision: object = None
        self._epoch = 0
        self._answers: Cache[Hashable, Answer] = Cache(
            seconds=ttl,
            clock=clock,
            entries=max_entries,
            key_bytes=KEY_BYTES,
            key_size=_key_size,
            value_size=lambda answer: FIXED_BYTES + len(answer.decision.reason),
            size=SIZE,
            share_size=SIZE_PER_USER,
            # Ours ends the question first, and says which provider it was.
            time_limit=timeout * 2,
        )

    def is_for(self, upstream: str) -> bool:
        """Whether its policy is for requests to *upstream*. If not, it is not asked, and has no opinion."""
        return self._upstreams is None or upstream in self._upstreams

    def epoch(self) -> int:
        """Rises whenever the provider's revision is another than before; what was decided earlier is forgotten then."""
        if self._revised is None:
            return 0
        try:
            revision: object = self._revised.revision
        except Exception:
            # Not knowing whether the policy changed, we trust nothing that was decided under it.
            revision = object()
        if revision != self._revision:
            self._revision = revision
            self._epoch += 1
            self._answers.drop()
        return self._epoch

    def at_once(self, attributes: Attributes) -> Answer | None:
        """The answer, if nothing must be waited for; raises `ProviderError`. Call `epoch` before it."""
        key = self._key(attributes)
        try:
            answer = self._answers.get(key)
        except TypeError as error:
            raise self._failed("the cache key is not hashable", error) from error
        if answer is not None or self._decide is None:
            return answer
        until = self._clock.monotonic() + self._ttl
        try:
            decision: object = self._decide(attributes)
        except Exception as error:
            raise self._failed("it raised an error", error) from error
        answer = Answer(self._checked(decision), until)
        self._answers.put(key, answer, owner=attributes.user.username, seconds=until - self._clock.monotonic())
        return answer

    async def ask(self, attributes: Attributes) -> Answer:
        """The answer, waited for; raises `ProviderError`."""
        came_at = self._clock.monotonic()
        # Anew for every link: the ones before it may have been waited for.
        self.epoch()
        answer = self.at_once(attributes)
        # Who joins a question that has been under way for longer than an answer lives asks again.
        while answer is None or answer.until < came_at:
            key, owner = self._key(attributes), attributes.user.username
            try:
                answer = await self._answers.fill(key, lambda: self._answer(attributes), owner=owner)
            except TimeoutError:
                # The cache's own limit, which is the later one, but can be noticed first by a loop that was held up.
                raise self._failed("it did not answer in time") from None
        return answer

    async def relevant_groups(self) -> frozenset[str]:
        groups: object = await self._bounded(self._provider.relevant_groups)
        if not isinstance(groups, (set, frozenset)) or not all(isinstance(group, str) for group in groups):
            raise self._failed(f"relevant_groups returned {_kind(groups)} and not a set of names")
        return frozenset(groups)

    # --- what an operator asks ---

    async def explain(self, attributes: Attributes) -> Explanation:
        """Asked anew: an explanation of a remembered decision would explain nothing."""
        if not _has(self._provider, "explain"):
            return Explanation(await self._decided_anew(attributes))
        explanation: object = self._called(lambda: cast(Explains, self._provider).explain(attributes))
        if not isinstance(explanation, Explanation):
            raise self._failed(f"explain returned {_kind(explanation)}")
        self._checked(explanation.decision)
        return explanation

    def who_can(self, attributes: Attributes) -> tuple[Subject, ...] | None:
        """None if the provider cannot tell."""
        if not _has(self._provider, "who_can"):
            return None
        return self._called(lambda: tuple(cast(ListsSubjects, self._provider).who_can(attributes)))

    def rules_for(self, user: UserInfo, namespace: str) -> Rules | None:
        """None if the provider cannot tell."""
        if not _has(self._provider, "rules_for"):
            return None
        rules: object = self._called(lambda: cast(ListsRules, self._provider).rules_for(user, namespace))
        if not isinstance(rules, Rules):
            raise self._failed(f"rules_for returned {_kind(rules)}")
        return rules

    async def _decided_anew(self, attributes: Attributes) -> Decision:
        if (decide := self._decide) is not None:
            return self._checked(self._called(lambda: decide(attributes)))
        return (await self._answer(attributes)).decision

    # --- asking ---

    def _key(self, attributes: Attributes) -> Hashable:
        if self._chosen_key is None:
            return attributes
        try:
            # A right at one upstream is none at another, whatever the provider takes for equal.
            return attributes.upstream, self._chosen_key(attributes)
        except Exception as error:
            raise self._failed("it could not choose a cache key", error) from error

    async def _answer(self, attributes: Attributes) -> Answer:
        until = self._clock.monotonic() + self._ttl
        return Answer(self._checked(await self._bounded(lambda: self._provider.authorize(attributes))), until)

    async def _bounded(self, call: Callable[[], Awaitable[object]]) -> object:
        """What *call* gives within the time limit, even if it resists being cancelled."""
        question = asyncio.ensure_future(_awaited(call))
        question.add_done_callback(_look_at)
        try:
            done, _ = await asyncio.wait({question}, timeout=self._timeout)
        finally:
            question.cancel()
        if not done:
            raise self._failed(f"it did not answer within {self._timeout:g} seconds")
        try:
            return question.result()
        except asyncio.CancelledError as error:
            # Its own doing: this caller was not cancelled, or it would not have come here.
            raise self._failed("it cancelled the call") from error
        except Exception as error:
            raise self._failed("it raised an error", error) from error

    def _called(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            raise self._failed("it raised an error", error) from error

    def _checked(self, decision: object) -> Decision:
        if isinstance(decision, Decision) and isinstance(decision.verdict, Verdict):
            return decision
        raise self._failed(f"it returned {_kind(decision)} and not a Decision")

    def _failed(self, what: str, error: Exception | None = None) -> ProviderError:
        summary = f'the authorization provider "{self.name}" is unavailable'
        return ProviderError(summary, cause=what if error is None else f"{what}: {reason_of(error)}")


def _has(provider: object, method: str) -> bool:
    return callable(getattr(provider, method, None))


async def _awaited(call: Callable[[], Awaitable[object]]) -> object:
    # In here, so that a method that is not async fails like one that raises.
    return await call()


def _look_at(question: asyncio.Future[object]) -> None:
    # A question that was given up may still fail later, which is no news to anyone.
    if not question.cancelled():
        question.exception()


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _key_size(key: Hashable) -> int:
    """About how many bytes a key holds, whether the provider chose it or not."""
    return attributes_size(key) if isinstance(key, Attributes) else size_of(key)
