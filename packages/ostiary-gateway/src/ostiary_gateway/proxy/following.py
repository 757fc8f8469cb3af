"""Authorization providers whose policy is stored in an upstream: how they read it, and their lifecycle.

`FollowedUpstream` reads responses and watches. `Followers` starts the providers of one configuration, and hands their
state over to the next configuration on reload.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.errors import ConfigurationError, ProviderError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.provider import Authorization
from ostiary_gateway.config.upstream import IdentityMode, UpstreamConfig
from ostiary_gateway.http1.client_connection import UpstreamConnection
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.http1.response import Framing, UpstreamLost
from ostiary_gateway.interfaces.admission import UpstreamAnswer
from ostiary_gateway.interfaces.upstream_capabilities import (
    FollowedFigures,
    FollowsUpstream,
    NeededAccess,
    UpstreamFollower,
)
from ostiary_gateway.observability.metrics import Metrics
from ostiary_gateway.proxy.api_plugin_watch import GATEWAY_USER, JSON_ONLY
from ostiary_gateway.proxy.upstream_client import UpstreamClient, request_head
from ostiary_gateway.proxy.upstreams import Upstream

# Four watches, with one list each.
CONNECTIONS = 8
ANSWER_SECONDS = 30.0
# Maximum size of an error response (a Status) instead of a watch.
LARGEST_REFUSAL = 64 * 1024
# Maximum size of buffered lines; above it, reading from the upstream pauses.
MOST_WAITING = 1024 * 1024
# Lines per batch: a large batch would block the event loop while it is processed.
MOST_IN_BATCH = 200


class FollowedUpstream:
    """Implements `ostiary_gateway.interfaces.upstream_capabilities.UpstreamReader`.

    Uses separate connections, so that users and watches cannot starve each other, and the gateway's own credential.
    """

    def __init__(
        self,
        configured: UpstreamConfig,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._upstream = Upstream(replace(configured, connections=CONNECTIONS), loop, clock)
        self._requests = UpstreamClient({}, seconds=seconds)
        self._loop = loop
        self._seconds = seconds
        self._user = GATEWAY_USER if configured.identity is IdentityMode.REQUEST_HEADER else None

    async def get(self, target: str, *, largest: int) -> UpstreamAnswer:
        sent = self._credential()
        answer = await self._requests.ask_place(
            self._upstream, target, headers=JSON_ONLY, user=self._user, largest=largest
        )
        self._note_status(answer.status, sent)
        return answer

    @asynccontextmanager
    async def read_lines(self, target: str, *, longest: int, silence: float) -> AsyncIterator[ReceivedLines]:
        sent = self._credential()
        head = request_head(self._upstream, target, "GET", JSON_ONLY, b"", self._user)
        lines = ReceivedLines(self._loop, longest=longest, silence=silence)
        try:
            try:
                async with asyncio.timeout(self._seconds):
                    # Never an idle connection: it may have died, and a watch is not retried.
                    self._upstream.pool.acquire(
                        lambda found, error: lines.take_connection(found, error, head), fresh=True
                    )
                    await lines.begun.wait()
            except TimeoutError:
                raise _failure("it did not answer in time") from None
            lines.raise_failure()
            self._note_status(200 if lines.answer is None else lines.answer.status, sent)
            yield lines
        finally:
            lines.give_up()

    def tick(self, now: float) -> None:
        self._upstream.tick(now)

    def close(self) -> None:
        self._upstream.pool.close()

    def _credential(self) -> bytes:
        try:
            return self._upstream.credential()
        except OSError:
            raise _failure("the gateway's own credential cannot be read") from None

    def _note_status(self, status: int, sent: bytes) -> None:
        if status == 401:
            # The current content of the files is used for the next request.
            self._upstream.renewed_credential(sent)


def _failure(cause: str) -> ProviderError:
    return ProviderError("an upstream could not be asked", cause=cause)


class ReceivedLines:
    """The lines of one response. `begun` is set when the head was received, or the response has ended or failed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, longest: int, silence: float) -> None:
        self.begun = asyncio.Event()
        self.answer: UpstreamAnswer | None = None
        self._longest, self._silence = longest, silence
        self._news = asyncio.Event()
        self._connection: UpstreamConnection | None = None
        self._failure: UpstreamLost | None = None
        self._ended = False
        self._given_up = False
        self._status = 0
        self._lines: list[bytes] = []
        self._waiting = 0
        # The beginning of an incomplete line.
        self._parts: list[bytes] = []
        self._size = 0

    # --- called by the reader ---

    async def batches(self) -> AsyncIterator[list[bytes]]:
        while True:
            if self._lines:
                batch, self._lines = self._lines[:MOST_IN_BATCH], self._lines[MOST_IN_BATCH:]
                self._waiting -= sum(map(len, batch))
                if self._connection is not None and self._waiting <= MOST_WAITING:
                    self._connection.resume()
                yield batch
                continue
            if self._ended:
                return
            self.raise_failure()
            self._news.clear()
            try:
                async with asyncio.timeout(self._silence):
                    await self._news.wait()
            except TimeoutError:
                raise _failure(f"nothing came for {self._silence:g} seconds") from None

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise _failure(str(self._failure))

    def give_up(self) -> None:
        self._given_up = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abandon()

    # --- called by the connection ---

    def take_connection(self, connection: UpstreamConnection | None, error: UpstreamLost | None, head: bytes) -> bool:
        if self._given_up:
            return False
        if connection is None:
            self.upstream_lost(error or UpstreamLost("it cannot be reached", answered=False))
        else:
            self._connection = connection
            connection.send(head, self, is_head=False)
        return True

    def response_whole(self, status: int, lines: bytes, body: bytes) -> None:
        self._connection = None
        self._status = status
        if status == 200:
            self._take(body)
        else:
            self._parts = [body]
        self.response_end([])

    def response_head(self, status: int, headers: Headers, framing: Framing) -> None:
        self._status = status
        if status == 200:
            self.begun.set()

    def response_informational(self, status: int, headers: Headers) -> None:
        pass

    def response_body(self, data: bytes) -> None:
        if self._status == 200:
            self._take(data)
            return
        self._size += len(data)
        if self._size <= LARGEST_REFUSAL:
            self._parts.append(data)
        else:
            self._fail("its answer is too large")

    def response_flush(self) -> None:
        pass

    def response_end(self, trailers: Headers) -> None:
        self._connection = None
        if self._status != 200:
            self.answer = UpstreamAnswer(self._status, "", b"".join(self._parts))
        self._ended = True
        self._wake()

    def response_switched(self, rest: bytes) -> None:
        self._fail("it switched protocols without being asked")

    def upstream_lost(self, error: UpstreamLost) -> None:
        self._connection = None
        self._failure = self._failure or error
        self._wake()

    def upstream_full(self) -> None:
        pass

    def upstream_ready(self) -> None:
        pass

    # --- inside ---

    def _take(self, data: bytes) -> None:
        first, *rest = data.split(b"\n")
        self._parts.append(first)
        self._size += len(first)
        for part in rest:
            self._complete_line()
            self._parts.append(part)
            self._size += len(part)
        if self._size > self._longest:
            self._fail("it sent a line that is too long")
            return
        if self._waiting > MOST_WAITING and self._connection is not None:
            self._connection.pause()
        if self._lines:
            self._news.set()

    def _complete_line(self) -> None:
        line = b"".join(self._parts)
        self._parts, self._size = [], 0
        if line:
            self._lines.append(line)
            self._waiting += len(line)

    def _fail(self, message: str) -> None:
        self.give_up()
        self._lines, self._parts = [], []
        self.upstream_lost(UpstreamLost(message, answered=True))

    def _wake(self) -> None:
        self.begun.set()
        self._news.set()


# Providers that follow an upstream, for commands that need no connection to it.


def followers_of(chain: Iterable[Authorization]) -> Iterator[tuple[str, UpstreamFollower]]:
    """Yield the providers of *chain* that follow an upstream, with their names."""
    for link in chain:
        following = ability(link.instance, FollowsUpstream)
        if following is not None:
            yield link.name, following.following


def needed_access(chain: Iterable[Authorization], upstream: str) -> list[NeededAccess]:
    """Return the permissions that the gateway's own credential needs at *upstream* in order to follow it."""
    return [follower.needs() for _, follower in followers_of(chain) if follower.upstream == upstream]


# How long a reload waits for the first list of an upstream that was not followed before.
LOAD_SECONDS = 30.0
_NOTHING = FollowedFigures(None, 0)


@dataclass(frozen=True, slots=True)
class _Followed:
    """A provider and the upstream that it follows."""

    name: str
    follower: UpstreamFollower
    configured: UpstreamConfig
    reader: FollowedUpstream


class Followers:
    """The providers of *chain* that follow one of *upstreams*.

    Each worker follows for itself: a worker has the policies that it decides with, and does not depend on other
    workers.
    """

    def __init__(
        self,
        chain: Iterable[Authorization],
        upstreams: Iterable[UpstreamConfig],
        loop: asyncio.AbstractEventLoop,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        by_name = {upstream.name: upstream for upstream in upstreams}
        self._followed = tuple(
            _Followed(
                name, follower, by_name[follower.upstream], FollowedUpstream(by_name[follower.upstream], loop, clock)
            )
            for name, follower in followers_of(chain)
            # Without its upstream a provider has no policy, and raises an error when it is queried.
            if follower.upstream in by_name
        )
        self._shown: dict[str, FollowedFigures] = {}

    def start(self, keep_running: Callable[[str, Callable[[], Awaitable[None]]], None]) -> None:
        for followed in self._followed:
            work = partial(followed.follower.follow, followed.reader)
            keep_running(f"following the policy of {followed.name} at {followed.configured.name}", work)

    async def prepare(self, old: Followers) -> None:
        """Load the policies before these replace *old*, so that no request meets a gateway without a policy.

        Raises `ConfigurationError` if an upstream that was not followed before cannot be read. The state of one that
        was followed is adopted even if it is too old: nothing is lost, and the rest of the configuration takes effect.
        """
        for followed in self._followed:
            same = old._same(followed)
            if same is not None and (followed.follower.adopt(same.follower) or same.follower.trouble()):
                continue
            try:
                async with asyncio.timeout(LOAD_SECONDS):
                    await followed.follower.load(followed.reader)
            except (ProviderError, TimeoutError) as error:
                cause = error.cause or error.summary if isinstance(error, ProviderError) else "it took too long"
                raise ConfigurationError(
                    "the configuration was not reloaded",
                    cause=f'the policy of "{followed.name}" cannot be read from "{followed.configured.name}": {cause}',
                    hint=error.hint if isinstance(error, ProviderError) else None,
                ) from None

    def adopt(self, old: Followers) -> None:
        """Adopt the state of *old*, which has been stopped."""
        for followed in self._followed:
            same = old._same(followed)
            if same is not None and followed.follower.adopt(same.follower):
                self._shown[followed.name] = same.follower.figures()

    def tick(self, now: float) -> None:
        for followed in self._followed:
            followed.reader.tick(now)

    def show_figures(self, metrics: Metrics) -> None:
        for followed in self._followed:
            name, figures = followed.name, followed.follower.figures()
            if figures.age is not None:
                metrics.policy_age.set(figures.age, name)
            metrics.policy_objects.set(figures.objects, name)
            shown, self._shown[name] = self._shown.get(name, _NOTHING), figures
            # A restarted follower counts from zero, but a counter must never decrease.
            metrics.policy_lists.inc(name, by=max(0, figures.lists - shown.lists))
            metrics.policy_changes.inc(name, by=max(0, figures.changes - shown.changes))
            metrics.policy_unreadable.inc(name, by=max(0, figures.unreadable - shown.unreadable))

    def troubles(self) -> list[tuple[str, str]]:
        """Return each policy with the reason why it cannot be used, empty if it can."""
        return [(f"policy {followed.name}", followed.follower.trouble()) for followed in self._followed]

    def report(self) -> list[tuple[str, str]]:
        """Like `troubles`, with the age of each policy: readiness probes show an outage before it expires."""
        ages = (followed.follower.figures().age for followed in self._followed)
        return [
            (name if age is None else f"{name}, confirmed {age:.0f} s ago", trouble)
            for (name, trouble), age in zip(self.troubles(), ages, strict=True)
        ]

    def close(self) -> None:
        for followed in self._followed:
            followed.reader.close()

    def _same(self, other: _Followed) -> _Followed | None:
        """Return the follower with the same name and the same upstream address."""
        for followed in self._followed:
            if followed.name == other.name and _address(followed.configured) == _address(other.configured):
                return followed
        return None


async def load_once(chain: Sequence[Authorization], upstreams: Iterable[UpstreamConfig]) -> None:
    """Load the followed policies of *chain* once, for a command that does not serve. Raises `ProviderError`."""
    followers = Followers(chain, upstreams, asyncio.get_running_loop())
    try:
        for followed in followers._followed:
            await followed.follower.load(followed.reader)
    finally:
        followers.close()


async def probe(follower: UpstreamFollower, upstream: UpstreamConfig) -> str:
    """Check that the gateway's credential may read all that *follower* needs; raises `ProviderError`."""
    reader = FollowedUpstream(upstream, asyncio.get_running_loop(), SYSTEM_CLOCK)
    try:
        return await follower.probe(reader)
    finally:
        reader.close()


def _address(configured: UpstreamConfig) -> tuple[object, ...]:
    """Return the settings that identify the cluster and how it is reached."""
    return (
        configured.name,
        configured.server,
        configured.socket,
        configured.tls,
        configured.token_file,
        configured.authorities_pem,
        configured.identity,
    )
