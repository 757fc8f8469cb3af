"""What the engine remembers of earlier requests: plans by their request line, and heads by their very bytes.

Both are bounded in bytes, for each user and in all: a user who asks for ever new things forgets their own plans, and
nobody else's. Sizes are estimates on the high side, made from what is large in a plan: its target and its user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostiary.core.caching.bounded import BoundedByOwner
from ostiary.gateway.authenticate.authenticator import KnownUser, LiveToken
from ostiary.gateway.http1.headers import Scanned
from ostiary.gateway.http1.request_head import RequestHead
from ostiary.gateway.request.stages import OpenPath, Plan

if TYPE_CHECKING:
    from ostiary.gateway.request.engine import Engine

PLAN_BYTES = 32 * 1024 * 1024
PLAN_BYTES_PER_USER = 4 * 1024 * 1024
LONGEST_PLANNED_TARGET = 2048
# A plan keeps its target about this often: to be sent on, in what was asked, and once in each stage's audit event.
_COPIES = 8
_FIXED_BYTES = 3000

_Key = tuple[KnownUser, bytes, bytes, bytes, bytes]


class Plans:
    """The plans of one engine."""

    def __init__(self, size: int = PLAN_BYTES, per_user: int = PLAN_BYTES_PER_USER) -> None:
        self._kept: BoundedByOwner[_Key, Plan] = BoundedByOwner(size, per_user)

    def find(self, user: KnownUser, request: RequestHead) -> Plan | None:
        return self._kept.get((user, request.method, request.target, request.host, request.upgrade))

    def keep(self, user: KnownUser, request: RequestHead, plan: Plan) -> None:
        plan.size = _FIXED_BYTES + _COPIES * (len(request.target) + user.size)
        if len(request.target) <= LONGEST_PLANNED_TARGET:
            key = (user, request.method, request.target, request.host, request.upgrade)
            self._kept.keep(key, plan, owner=user.info.username, size=plan.size)

    def clear(self) -> None:
        self._kept.clear()

    def held_by(self, username: str) -> int:
        """How many bytes are remembered for one user."""
        return self._kept.held_by(username)

    def __len__(self) -> int:
        return len(self._kept)


class RememberedHead:
    """What follows from the bytes of a head that came before, for one engine: a plan of a token, or an open path."""

    __slots__ = ("engine", "live", "opened", "plan", "scanned")

    def __init__(
        self,
        engine: Engine,
        scanned: Scanned,
        live: LiveToken | None = None,
        plan: Plan | None = None,
        opened: OpenPath | None = None,
    ) -> None:
        self.engine, self.scanned, self.live, self.plan, self.opened = engine, scanned, live, plan, opened
