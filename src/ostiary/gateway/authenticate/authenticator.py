"""Request to user: finds the token, and keeps what it stands for in memory until it expires or is revoked.

Called by the engine for every request. A token is looked up in the store once; after that its `LiveToken` answers,
with everything that was learned about it, as long as the revocations are known to be all in force (`revocation_feed`).
Whatever a revocation may concern is asked again, and what is gone is cut, open streams included.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from datetime import datetime
from typing import Protocol
from weakref import WeakValueDictionary

from ostiary.core.caching.bounded import BoundedByOwner
from ostiary.core.caching.cache import size_of
from ostiary.core.clock import Clock
from ostiary.core.tokens import Tokens, ends_token
from ostiary.gateway.admit.limits import Limits
from ostiary.gateway.admit.share import UserShare
from ostiary.gateway.authenticate.revocation_feed import MAX_STALE_SECONDS, RevocationFeed
from ostiary.interfaces.token_store import Found, Revocation, RevocationKind, Session
from ostiary.model import UserInfo
from ostiary.wire.status import Answer


class Stream(Protocol):
    """An open request of a token, which ends when the token is withdrawn."""

    def cut(self) -> None: ...


# What is kept of tokens in use, in bytes. Whatever makes room is looked up in the store when it comes back.
TOKEN_BYTES = 32 * 1024 * 1024
TOKEN_BYTES_PER_USER = 1024 * 1024
_FIXED_BYTES = 1500


class KnownUser:
    """Somebody who has tokens in use, with exactly these groups: one object for all of their tokens."""

    __slots__ = ("__weakref__", "info", "share", "size")

    def __init__(self, info: UserInfo, share: UserShare) -> None:
        self.info = info
        self.share = share
        # About how many bytes their names take.
        self.size = size_of((info.username, info.uid, info.groups, info.extra))


class LiveToken:
    """A token in use. `review_answers` are the webhooks' answers about it, which are dropped with the token."""

    __slots__ = (
        "digest",
        "expires_at",
        "known_user",
        "review_answers",
        "revoked",
        "session",
        "share",
        "streams",
        "user",
    )

    def __init__(self, found: Found, known_user: KnownUser) -> None:
        self.digest = found.token.digest
        self.session: Session = found.session
        self.known_user = known_user
        self.share = known_user.share
        self.user: UserInfo = known_user.info
        self.expires_at: datetime = min(found.token.expires_at, found.session.expires_at)
        self.revoked = False
        self.review_answers: dict[Hashable, Answer] = {}
        self.streams: set[Stream] = set()


class Authenticator:
    """The tokens in use, by digest. Bounded: the user's oldest make room, and are looked up again if they come back."""

    def __init__(
        self,
        tokens: Tokens,
        clock: Clock,
        *,
        limits: Limits | None = None,
        size: int = TOKEN_BYTES,
        size_per_user: int = TOKEN_BYTES_PER_USER,
        on_revoked: Callable[[Revocation, int], None] = lambda revocation, cut: None,
        max_stale: float = MAX_STALE_SECONDS,
    ) -> None:
        self._tokens = tokens
        self._clock = clock
        self._live: BoundedByOwner[bytes, LiveToken] = BoundedByOwner(size, size_per_user)
        self._users: WeakValueDictionary[UserInfo, KnownUser] = WeakValueDictionary()
        # Tokens with open streams, which must be cut even after the token itself has expired or made room.
        self._streaming: set[LiveToken] = set()
        self._epoch = 0
        self._limits = limits or Limits(clock=clock)
        self._on_revoked = on_revoked
        self._monotonic = clock.monotonic
        self.feed = RevocationFeed(
            tokens.store, clock, max_stale=max_stale, apply=self.apply, ask_again=self._ask_about_all
        )

    def known(self, token_digest: bytes) -> LiveToken | None:
        """The token, if it is in memory and good this very moment."""
        live = self._live.get(token_digest)
        if live is None or live.revoked:
            return None
        if live.expires_at <= self._clock.now():
            # For good, also if the clock is set back: the store knows how late it was.
            self._live.forget(token_digest)
            return None
        return live if self._monotonic() < self.feed.fresh_until else None

    async def find(self, token_digest: bytes) -> LiveToken | None:
        """The token, looked up in the store; None if it is unknown, expired or revoked, which are all the same here.

        Raises `ProviderError` if the store cannot be asked, or cannot confirm that no revocation is missing here.
        """
        await self.feed.ensure_fresh()
        while True:
            epoch = self._epoch
            found = await self._tokens.find_digest(token_digest)
            if epoch == self._epoch:
                break
            # A revocation came while the store was asked: what it said may be older than that.
        if found is None:
            return None
        return self._remember(found)

    def _remember(self, found: Found) -> LiveToken:
        live = self._live.get(found.token.digest)
        if live is not None and not live.revoked and live.session == found.session:
            return live
        user = found.session.user
        known_user = self._users.get(user)
        if known_user is None:
            known_user = self._users[user] = KnownUser(user, self._limits.share(user))
        live = LiveToken(found, known_user)
        size = _FIXED_BYTES + 2 * known_user.size + size_of(found.session.sources)
        self._live.keep(live.digest, live, owner=user.username, size=size)
        return live

    def opened(self, live: LiveToken, stream: Stream) -> None:
        live.streams.add(stream)
        self._streaming.add(live)

    def closed(self, live: LiveToken, stream: Stream) -> None:
        live.streams.discard(stream)
        if not live.streams:
            self._streaming.discard(live)

    @property
    def size(self) -> int:
        return len(self._live)

    @property
    def open_streams(self) -> int:
        return sum(len(live.streams) for live in self._streaming)

    def tick(self) -> None:
        """Forget what has expired, and end the streams of sessions that have."""
        now = self._clock.now()
        for live in [live for live in self._live.values() if live.expires_at <= now]:
            self._live.forget(live.digest)
            live.review_answers.clear()
        for live in [live for live in self._streaming if live.session.expires_at <= now]:
            self._end(live)

    async def follow_revocations(self) -> None:
        """Runs as long as the gateway does. It may fail and be begun again, and has missed nothing then."""
        await self.feed.run()

    def end_at_once(self, revocation: Revocation) -> None:
        """Put into force what the store could not write down, and cannot be asked about."""
        self._epoch += 1
        for live in self._every():
            if ends_token(revocation, live.digest, live.session):
                self._live.forget(live.digest)
                self._end(live)

    async def _ask_about_all(self) -> None:
        await self._ask_again(self._every())

    async def apply(self, revocation: Revocation) -> None:
        concerned = [live for live in self._every() if ends_token(revocation, live.digest, live.session)]
        # A token has only this meaning; the others concern sessions that began before, which the store knows.
        cut = await self._ask_again(concerned, surely_gone=revocation.kind is RevocationKind.TOKEN)
        self._on_revoked(revocation, cut)

    async def _ask_again(self, concerned: Collection[LiveToken], *, surely_gone: bool = False) -> int:
        """Trust none of them until the store is asked, and end those that are gone; returns how many streams that cut.

        If the store cannot be asked this raises, and what has streams still is asked about the next time.
        """
        self._epoch += 1
        cut = 0
        for live in concerned:
            self._live.forget(live.digest)
        for live in concerned:
            if surely_gone or not await self._still_good(live):
                cut += len(live.streams)
                self._end(live)
        return cut

    async def _still_good(self, live: LiveToken) -> bool:
        if live.expires_at > self._clock.now():
            found = await self._tokens.lookup(live.digest)
            session = None if found is None else found.session
        else:
            # The token has expired while its stream goes on; the stream lives as long as the session.
            session = await self._tokens.store.session(live.session.id)
        if session is None:
            return False
        # Its times may have been corrected with the clock.
        live.session = session
        return True

    def _end(self, live: LiveToken) -> None:
        live.revoked = True
        live.review_answers.clear()
        self._streaming.discard(live)
        streams, live.streams = live.streams, set()
        for stream in streams:
            stream.cut()

    def _every(self) -> set[LiveToken]:
        # Two sets: a token that made room while it was streaming may since have come back as another object.
        return self._streaming.union(self._live.values())
