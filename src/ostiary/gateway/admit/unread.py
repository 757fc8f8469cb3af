"""Bounds the bytes that wait for slow clients and upstreams, and thereby the memory that they take.

Called by a user's connections, through the user's share.
"""

from __future__ import annotations

from ostiary.gateway.admit.share import UserShare


class UnreadLimit:
    """How many bytes may wait: for one user, and for all. Nobody is exempt from using memory."""

    def __init__(self, per_user: int, in_all: int) -> None:
        self._per_user, self._in_all = per_user, in_all
        self.held_in_all = 0

    def hold(self, share: UserShare, size: int) -> bool:
        """Count *size* more bytes, or fewer if it is negative; False if they are too many."""
        share.unread += size
        self.held_in_all += size
        return not (
            (self._per_user and share.unread > self._per_user) or (self._in_all and self.held_in_all > self._in_all)
        )
