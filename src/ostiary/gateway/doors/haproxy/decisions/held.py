"""What this worker has put into HAProxy's map. Bounded in entries and bytes, for each user and in all.

Used by the pusher. One user's decisions evict only that user's. Whatever leaves this table must leave the map, too:
`take_dropped` tells the keys. A token whose decisions are here is followed (`TokensInUse.follow`), so that its
revocation is noticed even if the token itself is no longer kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ostiary.core.caching.bounded import BoundedByOwner
from ostiary.core.delegation import Delegation
from ostiary.gateway.authenticate.tokens_in_use import TokenInUse, TokensInUse
from ostiary.gateway.authorize.ruling import Ruling
from ostiary.model import RequestInfo

HELD_BYTES = 32 * 1024 * 1024
# One user has at most this part of all entries, and of all bytes.
USERS_SHARE = 10
_FIXED_BYTES = 1200


@dataclass(slots=True)
class HeldDecision:
    """One decision in the map. `required` is what the policy was asked, and `ruling` what it said.

    `expires_at` is in Unix time, and `pushed_at` on the monotonic clock.
    """

    token: TokenInUse
    upstream: str
    required: tuple[RequestInfo, ...]
    delegation: Delegation | None
    ruling: Ruling
    expires_at: int
    pushed_at: float


class _Follower:
    """Stands for the decisions of one token: it is cut when the token ends."""

    __slots__ = ("_on_end", "keys")

    def __init__(self, on_end: Callable[[set[str]], None]) -> None:
        self.keys: set[str] = set()
        self._on_end = on_end

    def cut(self) -> None:
        self._on_end(self.keys)


class HeldDecisions(BoundedByOwner[str, HeldDecision]):
    """Those of one worker and door. *on_end* is called with the keys of a token that was revoked."""

    def __init__(self, in_use: TokensInUse, entries: int, on_end: Callable[[set[str]], None]) -> None:
        share = max(1, entries // USERS_SHARE)
        super().__init__(HELD_BYTES, HELD_BYTES // USERS_SHARE, entries=entries, share=share)
        self._in_use = in_use
        self._on_end = on_end
        self._followers: dict[TokenInUse, _Follower] = {}
        self._dropped: list[str] = []

    def hold(self, key: str, held: HeldDecision, size: int) -> bool:
        """Hold a decision whose text has so many bytes; False if there is no room for it."""
        token = held.token
        if not self.keep(key, held, owner=token.user.username, size=_FIXED_BYTES + 2 * size):
            return False
        follower = self._followers.get(token)
        if follower is None:
            follower = self._followers[token] = _Follower(self._on_end)
            self._in_use.follow(token, follower)
        follower.keys.add(key)
        return True

    def forget(self, key: str) -> None:
        held = self.get(key)
        if held is None:
            return
        super().forget(key)
        self._dropped.append(key)
        follower = self._followers.get(held.token)
        if follower is not None:
            follower.keys.discard(key)
            if not follower.keys:
                self._in_use.unfollow(held.token, self._followers.pop(held.token))

    def take_dropped(self) -> list[str]:
        """The keys that have left since the last time."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def forget_all(self) -> None:
        """All of them; `take_dropped` tells them as well."""
        self._dropped += self
        for token, follower in self._followers.items():
            self._in_use.unfollow(token, follower)
        self._followers.clear()
        self.clear()
