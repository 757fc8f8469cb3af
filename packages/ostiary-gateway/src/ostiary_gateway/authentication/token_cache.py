"""The cached tokens, by digest, with their users and streams.

Bounded in bytes, per user and in total: tokens of a user evict only tokens of the same user, and an evicted token is
looked up in the store again. Ending a token closes its streams.
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

# Maximum size in bytes.
TOKEN_BYTES = 32 * 1024 * 1024
TOKEN_BYTES_PER_USER = 1024 * 1024
_FIXED_BYTES = 1500
# Number of tokens checked for expiry in one go, during which requests wait.
MOST_AT_ONCE = 1000


class Stream(Protocol):
    """An in-flight request of a token. It is closed when the token is revoked."""

    def cut(self) -> None: ...


class UnlistedStreams(Protocol):
    """In-flight requests that are not listed as streams of their tokens, because nearly all end before that matters."""

    def list_all(self) -> None:
        """Add each request to the streams of its token."""


class KnownUser:
    """A user with exactly these groups who has cached tokens: one object for all of these tokens.

    Scoped tokens have another object per `delegation`, so that everything cached for it is separate.
    """

    __slots__ = ("__weakref__", "delegation", "info", "latest_headers", "size")

    def __init__(self, info: UserInfo, delegation: str = "") -> None:
        self.info = info
        self.delegation = decode(delegation) if delegation else None
        # Hashes of the header lines of recent requests (`proxy.head_cache`).
        self.latest_headers: set[int] = set()
        # The approximate size of the names in bytes.
        self.size = size_of((info.username, info.uid, info.groups, info.extra, delegation))


class CachedToken:
    """A token that was found in the store.

    `delegation` is its scope; empty if it has none. `ends_at` is its expiry. `expires_at` is earlier for a machine
    token, whose owner is checked again then. `review_answers` are cached webhook responses about it.
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
        # Set for the cookie of a web application, with the secret that decrypts data stored for its session.
        self.is_application = False
        self.keeping: Secret | None = None
        self.review_answers: dict[Hashable, Answer] = {}
        self.streams: set[Stream] = set()
        # Objects derived from the token, which must end with it: see `TokenCache.follow`.
        self.followers: set[Stream] = set()

    @property
    def streams_until(self) -> datetime:
        """When its streams end: with the session, which its owner refreshes. A scoped token is not refreshed."""
        return self.ends_at if self.delegation else self.session.expires_at


class TokenCache:
    """The cached tokens of one worker. `epoch` increases with every revocation and invalidates lookups in progress."""

    def __init__(self, *, size: int = TOKEN_BYTES, size_per_user: int = TOKEN_BYTES_PER_USER) -> None:
        self.by_digest: BoundedByOwner[bytes, CachedToken] = BoundedByOwner(size, size_per_user)
        self.epoch = 0
        self._users: WeakValueDictionary[tuple[UserInfo, str], KnownUser] = WeakValueDictionary()
        # Tokens with streams, which must be closed even after the token has expired or was evicted.
        self._streaming: set[CachedToken] = set()
        # Likewise, tokens with followers.
        self._followed: set[CachedToken] = set()
        # Digests still to be checked in this round of `expire`.
        self._to_look_at: list[bytes] = []
        # Called to list their streams before streams are accessed.
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
        """Return all tokens, including evicted ones with streams or followers."""
        self._list_streams()
        # A token that was evicted while it was streaming may have been cached again as another object.
        return self._streaming.union(self._followed, self.by_digest.values())

    def remember(self, stored: Found, ends_at: datetime | None = None) -> CachedToken:
        """Cache a token that was found in the store, and return it; the existing object if it is equal.

        *ends_at* is the expiry of a token that is cached for a shorter time.
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
        """Evict a token. Its streams continue, and the next request looks it up again."""
        self.by_digest.forget(token.digest)

    def add_stream(self, token: CachedToken, stream: Stream) -> None:
        token.streams.add(stream)
        self._streaming.add(token)

    def remove_stream(self, token: CachedToken, stream: Stream) -> None:
        token.streams.discard(stream)
        if not token.streams:
            self._streaming.discard(token)

    def follow(self, token: CachedToken, follower: Stream) -> None:
        """Close *follower* when the token is revoked, even after the token has expired or was evicted."""
        token.followers.add(follower)
        self._followed.add(token)

    def unfollow(self, token: CachedToken, follower: Stream) -> None:
        token.followers.discard(follower)
        if not token.followers:
            self._followed.discard(token)

    def expire(self, now: datetime) -> None:
        """Close the streams of expired sessions and scoped tokens, and evict expired tokens.

        Tokens are checked a few at a time: this only frees memory, because expiry is checked at every use.
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
        """End a token: close its streams and return their number."""
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
