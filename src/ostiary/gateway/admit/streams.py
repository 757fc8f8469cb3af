"""Bounds how many streams are open: watches, logs, terminals, and whatever else takes long.

Called by `admit.limits` for a request that is known to take long, and by `request.streams` for one that turns out to.
"""

from __future__ import annotations

from ostiary.errors import TooManyRequests
from ostiary.gateway.admit.share import Leave, UserShare


class StreamLimit:
    """How many streams may be open: of one user, and of all."""

    def __init__(self, per_user: int, in_all: int) -> None:
        self._per_user, self._in_all = per_user, in_all
        self.open_in_all = 0

    def try_open(self, share: UserShare) -> Leave | None:
        """A place, if one is free."""
        if not share.exempt and (self._has_most(share) or self._is_full):
            return None
        share.streams += 1
        self.open_in_all += 1
        return share.close_stream

    def open(self, share: UserShare) -> Leave:
        """A place; raises `TooManyRequests` if none is free."""
        leave = self.try_open(share)
        if leave is None:
            cause = "too many streams of all users are open"
            if self._has_most(share):
                cause = f"the user has {share.streams} watches, logs, terminals or other streams open"
            raise TooManyRequests("too many open streams", cause=cause, retry_after=1.0)
        return leave

    def close(self, share: UserShare) -> None:
        share.streams -= 1
        self.open_in_all -= 1

    def _has_most(self, share: UserShare) -> bool:
        return bool(self._per_user) and share.streams >= self._per_user

    @property
    def _is_full(self) -> bool:
        return bool(self._in_all) and self.open_in_all >= self._in_all
