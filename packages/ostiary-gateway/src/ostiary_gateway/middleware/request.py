"""A request as the gatekeeper sees it, and what it asks for. Pure.

Made by the middleware from ASGI's scope or WSGI's environ. What is decided on is the path that the application routes
by; a path that two programs could read differently is refused, as at the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ostiary.model import RequestInfo
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.attributes import AttributesMapper, RequestLine, RequiresMore
from ostiary_gateway.proxy.target import AmbiguousRequest, has_odd_name, split_target
from ostiary_gateway.wire.action_token import split_parameter


@dataclass(slots=True)
class BackendRequest:
    """`target` is path and query, as in the first line of a request. `token` is what it presents, if anything.

    `mistake` says what is wrong with its headers, if something is. `remote` and `user_agent` are for audit events.
    `action` is the proof of a request that the gateway has redirected here: see `take_action`.
    """

    method: str
    target: bytes
    token: bytes | None = field(default=None, repr=False)
    mistake: str = ""
    upgrade: str = ""
    remote: str = ""
    user_agent: bytes = b""
    host: bytes = b""
    has_body: bool = False
    action: bytes | None = field(default=None, repr=False)

    def take_action(self) -> bool:
        """Move the proof of a redirected request out of `target`, where no view and no audit event must see it.

        Whether there was one. It alone is decided on: a client may have kept the token that it sent to the gateway.
        """
        self.target, proofs = split_parameter(self.target)
        if not proofs:
            return False
        self.action, self.token = proofs[0], None
        if len(proofs) > 1:
            self.mistake = "the request has two action tokens"
        return True


class PathsWithoutToken:
    """The paths that need no token: whole ones, and beginnings."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._exact = frozenset(pattern.encode() for pattern in patterns if not pattern.endswith("*"))
        self._beginnings = tuple(pattern[:-1].encode() for pattern in patterns if pattern.endswith("*"))
        self._are_any = bool(patterns)

    def include(self, target: bytes) -> bool:
        """Whether *target* is one of them, in whichever way it is read."""
        if not self._are_any:
            return False
        path = target.partition(b"?")[0]
        if path in self._exact:
            return True
        if not self._beginnings or not path.startswith(self._beginnings):
            return False
        try:
            path_of(target)
        except AmbiguousRequest:
            return False
        return True


def path_of(target: bytes, *, options: bool = False) -> tuple[str, str]:
    """The path and the query; raises `AmbiguousRequest`."""
    path, query = split_target(target, options=options, any_name=True)
    if has_odd_name(path):
        raise AmbiguousRequest("the path has a semicolon or a backslash")
    return path, query


class BackendQuestions:
    """What requests to this API ask for. *upstream* is the name that policies know it by."""

    def __init__(self, mapper: AttributesMapper, upstream: str) -> None:
        self._mapper = mapper
        self._requires_more = ability(mapper, RequiresMore)
        self._upstream = upstream

    def requirements_of(self, request: BackendRequest) -> tuple[RequestInfo, ...]:
        """All that must be allowed, first what is asked for; raises `ValueError` if that can be read in two ways."""
        path, query = path_of(request.target, options=request.method == "OPTIONS")
        line = RequestLine(request.method, path, query, request.upgrade)
        info = replace(self._mapper.request_info(line), upstream=self._upstream)
        also = None if self._requires_more is None else self._requires_more.also_required(info)
        return (info,) if also is None else (info, also)

    def is_long_running(self, info: RequestInfo) -> bool:
        return self._mapper.long_running(info)
