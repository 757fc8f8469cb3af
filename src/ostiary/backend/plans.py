"""What was decided on a request, kept for equal requests with the same token. Bounded in bytes, one user's part too."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.backend.authenticate.bearer import RememberedToken
from ostiary.backend.request import BackendRequest
from ostiary.core.caching.bounded import BoundedByOwner
from ostiary.gateway.audit.auditor import Prepared
from ostiary.gateway.authorize.ruling import Ruling
from ostiary.gateway.authorize.sizes import FIXED_BYTES
from ostiary.model import RequestInfo

SIZE = 32 * 1024 * 1024
SIZE_PER_USER = 2 * 1024 * 1024
# A longer one is decided on each time.
LONGEST_TARGET = 4096

_Key = tuple[RememberedToken, str, bytes, str]


class BackendPlan:
    """The ruling on all of `required`, and what its audit events share. Without `required` nothing was decided."""

    __slots__ = ("audit", "info", "required", "ruling")

    def __init__(self, required: Sequence[RequestInfo], ruling: Ruling, audit: Prepared | None) -> None:
        self.required = tuple(required)
        self.info = self.required[0]
        self.ruling = ruling
        self.audit = audit


class BackendPlans:
    """A plan is found by the very token, so it is gone with it; whether it still holds, the caller asks."""

    def __init__(self) -> None:
        self._plans: BoundedByOwner[_Key, BackendPlan] = BoundedByOwner(SIZE, SIZE_PER_USER)

    def find(self, token: RememberedToken, request: BackendRequest) -> BackendPlan | None:
        return self._plans.get((token, request.method, request.target, request.upgrade))

    def keep(self, token: RememberedToken, request: BackendRequest, plan: BackendPlan) -> None:
        if len(request.target) <= LONGEST_TARGET:
            key = (token, request.method, request.target, request.upgrade)
            # Once in the key, and about three times in what was read from it.
            size = FIXED_BYTES + 4 * len(request.target)
            self._plans.keep(key, plan, owner=token.bearer.user.username, size=size)
