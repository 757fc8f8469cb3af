"""How many sessions of a kind a user may have, without counting them each time.

Called by `tokens` before a program gets a token. Programs come often, and counting takes as long as storing, so the
store is asked once in a while: the limit may be passed by a hundredth of it in each process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

# For so many users it is remembered how many more they may have.
MOST_REMEMBERED = 10_000
_SHARE = 100

Count = Callable[[str], Awaitable[int]]


class Allowance:
    """At most about *most* for each user; *count* says how many one has. Zero: any number."""

    def __init__(self, most: int, count: Count) -> None:
        self.most = most
        self._count = count
        # By user: how many more before the store is asked again.
        self._left: dict[str, int] = {}

    async def take(self, username: str) -> bool:
        """Whether the user may have one more, which is counted."""
        if not self.most:
            return True
        if not await self.has_room(username):
            return False
        self._left[username] -= 1
        return True

    async def has_room(self, username: str) -> bool:
        """Whether the user may have one more."""
        if not self.most:
            return True
        remaining = self._left.pop(username, 0)
        if remaining <= 0:
            remaining = min(self.most - await self._count(username), max(self.most // _SHARE, 1))
        if remaining <= 0:
            return False
        if len(self._left) >= MOST_REMEMBERED:
            del self._left[next(iter(self._left))]
        self._left[username] = remaining
        return True
