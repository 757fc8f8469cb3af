"""What views get for an admitted request, the cached plans behind it, and the responses to other requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from ostiary.core.bounded_cache import BoundedByOwner
from ostiary.errors import AccessRefused
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo
from ostiary.wire import status
from ostiary_gateway.audit.auditor import Prepared
from ostiary_gateway.authorization.cached_decision import FIXED_BYTES, CachedDecision, OutOfScope
from ostiary_gateway.middleware.bearer import Bearer, CachedBearer
from ostiary_gateway.middleware.request import BackendRequest
from ostiary_gateway.wire.request_info import first_values
from ostiary_gateway.wire.selectors import LabelsOf, select

# Plans are cached for equal requests with the same token. Both limits are in bytes.

SIZE = 32 * 1024 * 1024
SIZE_PER_USER = 2 * 1024 * 1024
# Longer targets are not cached.
LONGEST_TARGET = 4096

_Key = tuple[CachedBearer, str, bytes, str]


class BackendPlan:
    """The decision on all of `required`, and what its audit events share. `info` is the first of them."""

    __slots__ = ("audit", "info", "required", "ruling")

    def __init__(self, required: Sequence[RequestInfo], ruling: CachedDecision, audit: Prepared | None) -> None:
        self.required = tuple(required)
        self.info = self.required[0]
        self.ruling = ruling
        self.audit = audit


class BackendPlans:
    """Cache plans by token and request.

    A plan becomes unreachable with its token. The caller checks that it is still valid.
    """

    def __init__(self) -> None:
        self._plans: BoundedByOwner[_Key, BackendPlan] = BoundedByOwner(SIZE, SIZE_PER_USER)

    def find(self, token: CachedBearer, request: BackendRequest) -> BackendPlan | None:
        return self._plans.get((token, request.method, request.target, request.upgrade))

    def keep(self, token: CachedBearer, request: BackendRequest, plan: BackendPlan) -> None:
        if len(request.target) <= LONGEST_TARGET:
            key = (token, request.method, request.target, request.upgrade)
            # The target is in the key once, and about three times in the attributes read from it.
            size = FIXED_BYTES + 4 * len(request.target)
            self._plans.keep(key, plan, owner=token.bearer.user.username, size=size)


# Responses to requests that do not reach the application: status, body and headers are those of the proxy. The cause is
# for the operator only: it is the `cause` of the exception.

_UNAVAILABLE = status.failure(
    503, "ServiceUnavailable", "the server that knows this token is unreachable; your own sign-in is not affected"
)


def unauthorized(request_id: str, *, attempted: bool) -> AccessRefused:
    """Return a 401. It is the same for a token that is unknown, expired or revoked."""
    challenge = ("WWW-Authenticate", status.www_authenticate(attempted))
    cause = "the token is unknown, expired or revoked" if attempted else "it presents no token"
    return _refusal("the request is not authenticated", request_id, status.unauthorized(), cause, challenge)


def forbidden(request_id: str, attributes: Attributes, decision: Decision) -> AccessRefused:
    """Return a 403, or a 404 if the decision hides the object. Nothing else distinguishes the two."""
    # The scope is no secret to the user of the token.
    reason = decision.reason if isinstance(decision, OutOfScope) else ""
    answer = status.not_found(attributes.request) if decision.hidden else status.forbidden(attributes, reason)
    return _refusal("permission denied", request_id, answer, decision.reason or "no policy allows it")


def missing(request_id: str, info: RequestInfo) -> AccessRefused:
    """Return a 404 for an object that does not exist, byte for byte the response that hides one."""
    return _refusal("there is no such object", request_id, status.not_found(info), "the application did not find it")


def bad_request(request_id: str, message: str) -> AccessRefused:
    return _refusal("the request cannot be understood", request_id, status.bad_request(message), message)


def unavailable(request_id: str, cause: str) -> AccessRefused:
    """Return a 503: the token could not be looked up."""
    return _refusal("the token could not be checked", request_id, _UNAVAILABLE, cause)


def undecided(request_id: str, cause: str) -> AccessRefused:
    """Return a 500: the policy could not be evaluated, or the audit event could not be stored."""
    return _refusal("the request could not be decided", request_id, status.internal(), cause)


def _refusal(summary: str, request_id: str, answer: status.Answer, cause: str, *more: tuple[str, str]) -> AccessRefused:
    code, body = answer
    headers = [
        ("Audit-Id", request_id),
        ("Cache-Control", "no-cache, private"),
        ("Content-Type", "application/json"),
        *more,
    ]
    if code != 404:
        # Kubernetes does not set this header on a 404 for a missing object, so it would reveal a hidden one.
        headers.append(("X-Content-Type-Options", "nosniff"))
    return AccessRefused(summary, status=code, headers=headers, body=body, cause=cause)


T = TypeVar("T")

# Authorizes one more action for an admitted request. Raises `AccessRefused`.
Require = Callable[["Admitted", RequestInfo], Awaitable[None]]
RequireNow = Callable[["Admitted", RequestInfo], None]


class Admitted:
    """An admitted request. `request_id` is the ``Audit-Id`` of its response."""

    __slots__ = ("bearer", "plan", "received_at", "request", "request_id", "token", "upstream")

    def __init__(
        self,
        request: BackendRequest,
        request_id: str,
        received_at: float,
        token: CachedBearer,
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
        """The attributes of the request, as the policy saw them."""
        return self.plan.info

    def missing(self) -> AccessRefused:
        """Return the exception to raise for an object that does not exist.

        The response is the one that hides an object.
        """
        return missing(self.request_id, self.info)

    def select(
        self, objects: Iterable[T], *, labels: LabelsOf[T] | None = None, fields: LabelsOf[T] | None = None
    ) -> list[T]:
        """Return those of *objects* that match the ``labelSelector`` and ``fieldSelector`` of this request.

        For *labels* and *fields* see `ostiary_gateway.wire.selectors.select`. Raises `SelectorError`.
        """
        values = first_values(self.request.target.partition(b"?")[2].decode("latin-1"))
        label_selector, field_selector = (values.get(name, "") for name in ("labelSelector", "fieldSelector"))
        return select(
            objects, label_selector=label_selector, field_selector=field_selector, labels=labels, fields=fields
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.user.username!r}, {self.info.verb!r})"


class Access(Admitted):
    """An admitted request, for asynchronous views."""

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
        """Raise `AccessRefused` unless the policy allows the user this as well.

        Without a *resource*, *path* is checked.
        """
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
    """An admitted request, for synchronous views in threads."""

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
        """Raise `AccessRefused` unless the policy allows the user this as well.

        Without a *resource*, *path* is checked.
        """
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
    """Return the attributes of an action that a view checks.

    Raises `ValueError` unless exactly one of *resource* and *path* is set.
    """
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
