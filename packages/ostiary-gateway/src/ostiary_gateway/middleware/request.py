"""The request that a gatekeeper checks, and the request attributes that must be allowed. Pure.

The path is the one that the application routes by. A path that two servers could parse differently is rejected, as by
the proxy.
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
    """A request, made from an ASGI scope or a WSGI environ.

    `target` is path and query. `token` is the bearer token, if present. `mistake` describes invalid headers. `remote`
    and `user_agent` are for audit events. `action` is the action token of a request that the gateway has redirected
    here: see `take_action`.
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
        """Move the action token out of `target`, so that views and audit events do not see it.

        Return whether there was one. The bearer token is then ignored: the client may have resent the one for the
        gateway.
        """
        self.target, proofs = split_parameter(self.target)
        if not proofs:
            return False
        self.action, self.token = proofs[0], None
        if len(proofs) > 1:
            self.mistake = "the request has two action tokens"
        return True


class PathsWithoutToken:
    """The paths that need no token: exact paths and prefixes."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._exact = frozenset(pattern.encode() for pattern in patterns if not pattern.endswith("*"))
        self._beginnings = tuple(pattern[:-1].encode() for pattern in patterns if pattern.endswith("*"))
        self._are_any = bool(patterns)

    def include(self, target: bytes) -> bool:
        """Report whether *target* is one of them, however it is parsed."""
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
    """Return the path and the query. Raises `AmbiguousRequest`."""
    path, query = split_target(target, options=options, any_name=True)
    if has_odd_name(path):
        raise AmbiguousRequest("the path has a semicolon or a backslash")
    return path, query


class BackendQuestions:
    """Read the attributes of requests to this API. *upstream* is its name in policies."""

    def __init__(self, mapper: AttributesMapper, upstream: str) -> None:
        self._mapper = mapper
        self._requires_more = ability(mapper, RequiresMore)
        self._upstream = upstream

    def requirements_of(self, request: BackendRequest) -> tuple[RequestInfo, ...]:
        """Return everything that must be allowed, the request itself first.

        Raises `ValueError` if the path is ambiguous.
        """
        path, query = path_of(request.target, options=request.method == "OPTIONS")
        line = RequestLine(request.method, path, query, request.upgrade)
        info = replace(self._mapper.request_info(line), upstream=self._upstream)
        also = None if self._requires_more is None else self._requires_more.also_required(info)
        return (info,) if also is None else (info, also)

    def is_long_running(self, info: RequestInfo) -> bool:
        return self._mapper.long_running(info)
