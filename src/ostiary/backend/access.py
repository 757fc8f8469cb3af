"""What a view is given of the request that it answers: who asks, and the ways to ask whether they may do more.

Made by the gatekeeper for a request that it lets through. `Access` is for event loops, `SyncAccess` for threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from ostiary.backend import refusing
from ostiary.backend.authenticate.bearer import Bearer, RememberedToken
from ostiary.backend.plans import BackendPlan
from ostiary.backend.request import BackendRequest
from ostiary.errors import AccessRefused
from ostiary.model import RequestInfo, UserInfo
from ostiary.wire.request.request_info import first_values
from ostiary.wire.request.selecting import LabelsOf, select

T = TypeVar("T")

# Decides on one more question about the request of an access; raises `AccessRefused`.
Require = Callable[["Admitted", RequestInfo], Awaitable[None]]
RequireNow = Callable[["Admitted", RequestInfo], None]


class Admitted:
    """A request that was let through. `request_id` is the ``Audit-Id`` of its answer."""

    __slots__ = ("bearer", "plan", "received_at", "request", "request_id", "token", "upstream")

    def __init__(
        self,
        request: BackendRequest,
        request_id: str,
        received_at: float,
        token: RememberedToken,
        plan: BackendPlan,
        upstream: str,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.received_at = received_at
        self.token = token
        self.bearer: Bearer = token.bearer
        self.plan = plan
        self.upstream = upstream

    @property
    def user(self) -> UserInfo:
        return self.bearer.user

    @property
    def info(self) -> RequestInfo:
        """What the request asks for, as the policy saw it."""
        return self.plan.info

    def missing(self) -> AccessRefused:
        """To be raised for an object that does not exist: the answer is the one that a hidden refusal has."""
        return refusing.missing(self.request_id, self.info)

    def select(
        self, objects: Iterable[T], *, labels: LabelsOf[T] | None = None, fields: LabelsOf[T] | None = None
    ) -> list[T]:
        """Those of *objects* that the ``labelSelector`` and ``fieldSelector`` of this request select.

        What *labels* and *fields* are: `ostiary.wire.request.selecting.select`. Raises `SelectorError`.
        """
        values = first_values(self.request.target.partition(b"?")[2].decode("latin-1"))
        label_selector, field_selector = (values.get(name, "") for name in ("labelSelector", "fieldSelector"))
        return select(
            objects, label_selector=label_selector, field_selector=field_selector, labels=labels, fields=fields
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user.username!r}, {self.info.verb!r})"


class Access(Admitted):
    """For views that are coroutines."""

    __slots__ = ("_require",)

    def bind(self, require: Require) -> Access:
        self._require = require
        return self

    async def require(
        self,
        verb: str,
        *,
        resource: str = "",
        subresource: str = "",
        api_group: str = "",
        namespace: str = "",
        name: str = "",
        path: str = "",
    ) -> None:
        """Raise `AccessRefused` unless the sender may do this as well. Without a *resource* it is about *path*."""
        question = question_about(
            self.upstream,
            verb,
            resource=resource,
            subresource=subresource,
            api_group=api_group,
            namespace=namespace,
            name=name,
            path=path,
        )
        await self._require(self, question)


class SyncAccess(Admitted):
    """For views that are functions, in threads."""

    __slots__ = ("_require",)

    def bind(self, require: RequireNow) -> SyncAccess:
        self._require = require
        return self

    def require(
        self,
        verb: str,
        *,
        resource: str = "",
        subresource: str = "",
        api_group: str = "",
        namespace: str = "",
        name: str = "",
        path: str = "",
    ) -> None:
        """Raise `AccessRefused` unless the sender may do this as well. Without a *resource* it is about *path*."""
        question = question_about(
            self.upstream,
            verb,
            resource=resource,
            subresource=subresource,
            api_group=api_group,
            namespace=namespace,
            name=name,
            path=path,
        )
        self._require(self, question)


def question_about(
    upstream: str,
    verb: str,
    *,
    resource: str = "",
    subresource: str = "",
    api_group: str = "",
    namespace: str = "",
    name: str = "",
    path: str = "",
) -> RequestInfo:
    """What a view asks about besides the request itself; raises `ValueError` if it says neither what nor where."""
    if bool(resource) == bool(path):
        raise ValueError("say either which resource it is about, or which path")
    return RequestInfo(
        verb,
        "",
        path,
        is_resource=bool(resource),
        api_group=api_group,
        namespace=namespace,
        resource=resource,
        subresource=subresource,
        name=name,
        upstream=upstream,
    )
