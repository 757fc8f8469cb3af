"""The tokens in use, by digest, with their users and the streams that were opened with them.

Kept by the authenticator. Bounded in bytes, for each user and in all: one user's tokens evict only that user's tokens,
which are looked up in the store again if they come back. Whatever ends a token ends its streams: `end` cuts them.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime
from typing import Protocol
from weakref import WeakSet, WeakValueDictionary

from ostiary.core.bounded_cache import BoundedByOwner
from ostiary.core.cache import size_of
from ostiary.core.scopes import decode
from ostiary.model import Secret, UserInfo
from ostiary.wire.status import Answer
from ostiary_gateway.interfaces.token_store import Found, Session

# What is kept of tokens in use, in bytes.
TOKEN_BYTES = 32 * 1024 * 1024
TOKEN_BYTES_PER_USER = 1024 * 1024
_FIXED_BYTES = 1500
# So many are looked at in one go whether they have expired: all requests wait for that.
MOST_AT_ONCE = 1000


class Stream(Protocol):
    """An open request of a token, which ends when the token is revoked."""

    def cut(self) -> None: ...


class UnlistedStreams(Protocol):
    """Open requests that are not among the streams of their tokens: nearly all are over before anybody looks."""

    def list_all(self) -> None:
        """Add each to the streams of its token."""


class KnownUser:
    """Somebody who has tokens in use, with exactly these groups: one object for all of their tokens.

    For tokens that are less than their owner it is another object, with their `delegation`: whatever is kept for a
    known user is kept apart for these.
    """

    __slots__ = ("__weakref__", "delegation", "info", "latest_headers", "size")

    def __init__(self, info: UserInfo, delegation: str = "") -> None:
        self.info = info
        self.delegation = decode(delegation) if delegation else None
        # Hashes of header lines that came with their latest requests (`request.remembered.heads`).
        self.latest_headers: set[int] = set()
        # About how many bytes their names take.
        self.size = size_of((info.username, info.uid, info.groups, info.extra, delegation))


class CachedToken:
    """A token that was found in the store. `review_answers` are the webhooks' answers about it, dropped with it.

    `delegation` is what makes it less than its session; empty if nothing does. `ends_at` is when it ends: `expires_at`
    is sooner for a program's token, whose holder is checked again then.
    """

    __slots__ = (
        "delegation",
        "digest",
        "ends_at",
        "expires_at",
        "followers",
        "is_application",
        "keeping",
        "known_user",
        "review_answers",
        "revoked",
        "session",
        "streams",
        "user",
    )

    def __init__(self, stored: Found, known_user: KnownUser, ends_at: datetime | None = None) -> None:
        self.digest = stored.token.digest
        self.delegation: str = stored.token.delegation
        self.session: Session = stored.session
        self.known_user = known_user
        self.user: UserInfo = known_user.info
        self.expires_at: datetime = min(stored.token.expires_at, stored.session.expires_at)
        self.ends_at: datetime = self.expires_at if ends_at is None else min(ends_at, stored.session.expires_at)
        self.revoked = False
        # Of the cookie of a web application, with what opens the things that are kept for its session.
        self.is_application = False
        self.keeping: Secret | None = None
        self.review_answers: dict[Hashable, Answer] = {}
        self.streams: set[Stream] = set()
        # What was made of the token elsewhere, and must end with it: see `TokenCache.follow`.
        self.followers: set[Stream] = set()

    @property
    def streams_until(self) -> datetime:
        """When its streams end: with the session, which the owner keeps alive. Nobody does that for a narrowed one."""
        return self.ends_at if self.delegation else self.session.expires_at


class TokenCache:
    """Those of one worker. `epoch` rises with every revocation, so that an older look-up is not believed."""

    def __init__(self, *, size: int = TOKEN_BYTES, size_per_user: int = TOKEN_BYTES_PER_USER) -> None:
        self.by_digest: BoundedByOwner[bytes, CachedToken] = BoundedByOwner(size, size_per_user)
        self.epoch = 0
        self._users: WeakValueDictionary[tuple[UserInfo, str], KnownUser] = WeakValueDictionary()
        # Tokens with open streams, which must be cut even after the token itself has expired or was evicted.
        self._streaming: set[CachedToken] = set()
        # The same for tokens that others follow.
        self._followed: set[CachedToken] = set()
        # The digests of those that are still to be looked at in this round of `expire`.
        self._to_look_at: list[bytes] = []
        # Asked to list their streams before anybody looks at streams.
        self.unlisted: WeakSet[UnlistedStreams] = WeakSet()

    def __len__(self) -> int:
        return len(self.by_digest)

    def _list_streams(self) -> None:
        for each in self.unlisted:
            each.list_all()

    @property
    def open_streams(self) -> int:
        self._list_streams()
        return sum(len(token.streams) for token in self._streaming)

    def every(self) -> set[CachedToken]:
        """All of them, and those that have only streams or followers left."""
        self._list_streams()
        # A token that was evicted while it was streaming may since have come back as another object.
        return self._streaming.union(self._followed, self.by_digest.values())

    def remember(self, stored: Found, ends_at: datetime | None = None) -> CachedToken:
        """The token that was found in the store: the one that is here already, if that means the same.

        *ends_at* is for one that is kept for a shorter time than it lives.
        """
        token = self.by_digest.get(stored.token.digest)
        if token is not None and not token.revoked and _means_the_same(token, stored):
            return token
        user = stored.session.user
        key = (user, stored.token.delegation)
        known_user = self._users.get(key)
        if known_user is None:
            known_user = self._users[key] = KnownUser(*key)
        token = CachedToken(stored, known_user, ends_at)
        size = _FIXED_BYTES + 2 * known_user.size + size_of((stored.session.sources, token.delegation))
        self.by_digest.keep(token.digest, token, owner=user.username, size=size)
        return token

    def forget(self, token: CachedToken) -> None:
        """Look it up in the store again when it comes back. Its streams go on."""
        self.by_digest.forget(token.digest)

    def add_stream(self, token: CachedToken, stream: Stream) -> None:
        token.streams.add(stream)
        self._streaming.add(token)

    def remove_stream(self, token: CachedToken, stream: Stream) -> None:
        token.streams.discard(stream)
        if not token.streams:
            self._streaming.discard(token)

    def follow(self, token: CachedToken, follower: Stream) -> None:
        """Cut *follower* when the token is revoked, also after the token itself has expired or was evicted."""
        token.followers.add(follower)
        self._followed.add(token)

    def unfollow(self, token: CachedToken, follower: Stream) -> None:
        token.followers.discard(follower)
        if not token.followers:
            self._followed.discard(token)

    def expire(self, now: datetime) -> None:
        """End the streams of sessions, and of narrowed tokens, that have expired, and forget tokens that have.

        These a few at a time: it only makes room, since none is used without a look at its time.
        """
        self._list_streams()
        if not self._to_look_at:
            self._to_look_at = list(self.by_digest)
        for digest in self._to_look_at[-MOST_AT_ONCE:]:
            token = self.by_digest.get(digest)
            if token is not None and token.expires_at <= now:
                self.forget(token)
                token.review_answers.clear()
        del self._to_look_at[-MOST_AT_ONCE:]
        for token in [token for token in self._streaming if token.streams_until <= now]:
            self.end(token)

    def end(self, token: CachedToken) -> int:
        """It is good for nothing from now on: cut its streams; returns how many there were."""
        self._list_streams()
        token.revoked = True
        token.review_answers.clear()
        self._streaming.discard(token)
        self._followed.discard(token)
        streams, token.streams = token.streams, set()
        followers, token.followers = token.followers, set()
        for each in (*streams, *followers):
            each.cut()
        return len(streams)


def _means_the_same(token: CachedToken, stored: Found) -> bool:
    return token.session == stored.session and token.delegation == stored.token.delegation
