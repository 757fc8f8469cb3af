"""The tokens in use, by digest, with their users and the streams that were opened with them.

Kept by the authenticator. Bounded in bytes, for each user and in all: one user's tokens evict only that user's tokens,
which are looked up in the store again if they come back. Whatever ends a token ends its streams: `end` cuts them.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime
from typing import Protocol
from weakref import WeakValueDictionary

from ostiary.core.caching.bounded import BoundedByOwner
from ostiary.core.caching.cache import size_of
from ostiary.interfaces.token_store import Found, Session
from ostiary.model import UserInfo
from ostiary.wire.status import Answer

# What is kept of tokens in use, in bytes.
TOKEN_BYTES = 32 * 1024 * 1024
TOKEN_BYTES_PER_USER = 1024 * 1024
_FIXED_BYTES = 1500


class Stream(Protocol):
    """An open request of a token, which ends when the token is revoked."""

    def cut(self) -> None: ...


class KnownUser:
    """Somebody who has tokens in use, with exactly these groups: one object for all of their tokens."""

    __slots__ = ("__weakref__", "info", "size")

    def __init__(self, info: UserInfo) -> None:
        self.info = info
        # About how many bytes their names take.
        self.size = size_of((info.username, info.uid, info.groups, info.extra))


class TokenInUse:
    """A token that was found in the store. `review_answers` are the webhooks' answers about it, dropped with it."""

    __slots__ = (
        "digest",
        "expires_at",
        "known_user",
        "review_answers",
        "revoked",
        "session",
        "streams",
        "user",
    )

    def __init__(self, stored: Found, known_user: KnownUser) -> None:
        self.digest = stored.token.digest
        self.session: Session = stored.session
        self.known_user = known_user
        self.user: UserInfo = known_user.info
        self.expires_at: datetime = min(stored.token.expires_at, stored.session.expires_at)
        self.revoked = False
        self.review_answers: dict[Hashable, Answer] = {}
        self.streams: set[Stream] = set()


class TokensInUse:
    """Those of one worker. `epoch` rises with every revocation, so that an older look-up is not believed."""

    def __init__(self, *, size: int = TOKEN_BYTES, size_per_user: int = TOKEN_BYTES_PER_USER) -> None:
        self.by_digest: BoundedByOwner[bytes, TokenInUse] = BoundedByOwner(size, size_per_user)
        self.epoch = 0
        self._users: WeakValueDictionary[UserInfo, KnownUser] = WeakValueDictionary()
        # Tokens with open streams, which must be cut even after the token itself has expired or was evicted.
        self._streaming: set[TokenInUse] = set()

    def __len__(self) -> int:
        return len(self.by_digest)

    @property
    def open_streams(self) -> int:
        return sum(len(token.streams) for token in self._streaming)

    def every(self) -> set[TokenInUse]:
        """All of them, and those that have only streams left."""
        # A token that was evicted while it was streaming may since have come back as another object.
        return self._streaming.union(self.by_digest.values())

    def remember(self, stored: Found) -> TokenInUse:
        """The token that was found in the store: the one that is here already, if that has the same session."""
        token = self.by_digest.get(stored.token.digest)
        if token is not None and not token.revoked and token.session == stored.session:
            return token
        user = stored.session.user
        known_user = self._users.get(user)
        if known_user is None:
            known_user = self._users[user] = KnownUser(user)
        token = TokenInUse(stored, known_user)
        size = _FIXED_BYTES + 2 * known_user.size + size_of(stored.session.sources)
        self.by_digest.keep(token.digest, token, owner=user.username, size=size)
        return token

    def forget(self, token: TokenInUse) -> None:
        """Look it up in the store again when it comes back. Its streams go on."""
        self.by_digest.forget(token.digest)

    def add_stream(self, token: TokenInUse, stream: Stream) -> None:
        token.streams.add(stream)
        self._streaming.add(token)

    def remove_stream(self, token: TokenInUse, stream: Stream) -> None:
        token.streams.discard(stream)
        if not token.streams:
            self._streaming.discard(token)

    def expire(self, now: datetime) -> None:
        """Forget the tokens that have expired, and end the streams of sessions that have."""
        for token in [token for token in self.by_digest.values() if token.expires_at <= now]:
            self.forget(token)
            token.review_answers.clear()
        for token in [token for token in self._streaming if token.session.expires_at <= now]:
            self.end(token)

    def end(self, token: TokenInUse) -> int:
        """It is good for nothing from now on: cut its streams; returns how many there were."""
        token.revoked = True
        token.review_answers.clear()
        self._streaming.discard(token)
        streams, token.streams = token.streams, set()
        for stream in streams:
            stream.cut()
        return len(streams)
