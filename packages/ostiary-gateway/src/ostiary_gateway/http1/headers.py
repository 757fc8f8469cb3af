"""Filter the headers of a request: which of them are forwarded to an upstream.

All claims of a client about its identity or address are dropped by normalized name: lower case, with ``_`` and similar
characters as ``-``, because CGI-style backends cannot distinguish them. Then the gateway sets its own, one line per
group. Headers that override the authorized method or path are dropped, too. Headers listed in ``Connection`` are
removed first; a ``Connection`` that lists one of the gateway's headers is rejected.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ostiary_gateway.settings.kinds import header_name

Headers = list[tuple[bytes, bytes]]

# Prefixes of the gateway's cookies. The second is used without TLS on localhost.
OUR_COOKIES = (b"__Host-ostiary", b"ostiary-")
# Bounds of the cache of header names: a client can invent any number of long names.
LONGEST_NAME = 64
MOST_NAMES = 4096
WEBSOCKET_BEARER = b"base64url.bearer.authorization.k8s.io."

# Hop-by-hop headers.
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"transfer-encoding",
        b"te",
        b"trailer",
        b"upgrade",
        b"proxy-authorization",
        b"proxy-authenticate",
        b"http2-settings",
    )
)
# Set by the gateway, for framing or because they identify it.
REBUILT = frozenset((b"host", b"content-length", b"expect", b"audit-id"))
# Claims about the user's identity or the origin of the request.
IDENTITY = frozenset(
    (
        *(b"authorization", b"forwarded", b"x-real-ip", b"x-client-ip", b"true-client-ip", b"client-ip"),
        *(b"cf-connecting-ip", b"cf-connecting-ipv6", b"fastly-client-ip", b"x-cluster-client-ip"),
        *(b"x-user", b"x-username", b"x-user-name", b"x-user-id", b"x-userid", b"x-user-email", b"x-email"),
        *(b"x-user-groups", b"x-user-roles", b"x-groups", b"x-roles", b"x-userinfo", b"x-consumer-username"),
        *(b"x-auth-user", b"x-auth-username", b"x-auth-email", b"x-auth-groups", b"x-auth-roles", b"x-jwt-assertion"),
        *(b"x-client-cert", b"x-client-cn", b"x-client-dn", b"x-client-verify", b"x-id-token"),
    )
)
IDENTITY_PREFIXES = (
    b"impersonate",
    b"x-remote-",
    b"remote-",
    b"x-forwarded-",
    b"x-ostiary-",
    b"x-webauth-",
    b"x-auth-request-",
    b"ssl-client-",
    b"x-ssl-client-",
    # Identity headers of other gateways and of cloud proxies.
    b"x-authenticated-",
    b"x-goog-authenticated-",
    b"x-goog-iap-",
    b"x-ms-client-principal",
    b"x-amzn-oidc-",
    b"x-pomerium-",
    b"x-authentik-",
    b"tailscale-user-",
    b"cf-access-",
    b"client-cert",
    b"x-client-certificate",
)
# Overrides of the authorized method or URL that some frameworks accept; and ``Proxy``, which becomes the environment
# variable ``HTTP_PROXY`` of a CGI program.
OVERRIDES = frozenset(
    (
        b"x-http-method",
        b"x-http-method-override",
        b"x-method-override",
        b"x-original-host",
        b"x-original-method",
        b"x-original-url",
        b"x-original-uri",
        b"x-rewrite-url",
        b"proxy",
    )
)
# Headers that clients and proxies change with every request. They are forwarded after all other lines, so that heads
# which differ only in them share a cache entry (`http1.fast_head_parser`).
TRACES = frozenset(
    (
        *(b"traceparent", b"tracestate", b"b3", b"x-b3-traceid", b"x-b3-spanid", b"x-b3-parentspanid"),
        *(b"x-request-id", b"x-correlation-id", b"x-trace-id", b"request-id", b"uber-trace-id", b"sentry-trace"),
        # kubectl sends another value for each command.
        b"kubectl-session",
        *(b"x-amzn-trace-id", b"x-cloud-trace-context", b"x-datadog-trace-id", b"x-datadog-parent-id"),
    )
)


class Action(Enum):
    PASS = 0
    DROP = 1
    CONNECTION = 2
    COOKIE = 3
    PROTOCOL = 4
    IMPERSONATE = 5
    AUTHORIZATION = 6
    FORWARDED_FOR = 7
    USER_AGENT = 8
    TRACE = 9


# Module-level names, because they cost less than enum attributes: these are used for every header of every new head.
_PASS, _DROP, _AUTHORIZATION, _USER_AGENT = Action.PASS, Action.DROP, Action.AUTHORIZATION, Action.USER_AGENT


class BadHeader(ValueError):
    """The headers are contradictory or not allowed; the request is rejected."""


# The digest if the request has no token in the gateway's format.
NO_DIGEST = b""


class FilteredHeaders:
    """The filtered headers of a request: `lines` are forwarded to the upstream, the rest is for the gateway.

    `cookies` are those of `lines` on one line, for a proxy that sets them separately. Cached with the head. `digest`
    (of the token) and `origin` (with its address) are computed and cached here by other modules.
    """

    __slots__ = (
        "authorization",
        "cookies",
        "digest",
        "forwarded_for",
        "impersonate",
        "lines",
        "origin",
        "user_agent",
    )

    def __init__(self) -> None:
        self.lines = b""
        self.authorization: bytes | None = None
        self.cookies = b""
        self.user_agent = b""
        self.impersonate: Headers | tuple[()] = ()
        self.forwarded_for: list[bytes] | tuple[()] = ()
        self.digest = NO_DIGEST
        self.origin: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class HeaderNames:
    """The headers that pass the user's identity to an upstream.

    The defaults are those of kube-apiserver's documentation.
    """

    user: Annotated[str, header_name("the username")] = "X-Remote-User"
    group: Annotated[str, header_name("a group; one line each")] = "X-Remote-Group"
    uid: Annotated[str, header_name("the uid")] = "X-Remote-Uid"
    extra_prefix: Annotated[str, header_name("goes before each key of the extra fields")] = "X-Remote-Extra-"


class HeaderFilter:
    """Filters headers by name. Names are cached, because classifying one costs more than a lookup."""

    def __init__(self, names: Iterable[HeaderNames] = (), *, drop: Iterable[str] = ()) -> None:
        """*drop* are additional names to drop; a trailing star makes a prefix."""
        self._identity = {*IDENTITY, *OVERRIDES}
        self._prefixes = list(IDENTITY_PREFIXES)
        for name in drop:
            if name.endswith("*"):
                self._prefixes.append(normal_name(name[:-1].encode()))
            else:
                self._identity.add(normal_name(name.encode()))
        for configured in names:
            self._identity.update(
                normal_name(name.encode()) for name in (configured.user, configured.group, configured.uid)
            )
            self._prefixes.append(normal_name(configured.extra_prefix.encode()))
        self._actions: dict[bytes, Action] = {}

    def action(self, name: bytes) -> Action:
        action = self._actions.get(name)
        if action is None:
            action = self._classify(name)
            if len(self._actions) < MOST_NAMES and len(name) <= LONGEST_NAME:
                self._actions[bytes(name)] = action
        return action

    def is_protected(self, name: bytes) -> bool:
        """Whether a header of this `normal_name` is a claim of the client that is never forwarded."""
        return name in self._identity or name.startswith(tuple(self._prefixes))

    @property
    def passes_traces(self) -> bool:
        """Whether all of `TRACES` are forwarded."""
        return all(self.action(name) is Action.TRACE for name in TRACES)

    def scan(self, headers: Headers) -> FilteredHeaders:
        """Filter the headers of a request."""
        scanned = FilteredHeaders()
        lines: list[bytes] = []
        traces: list[bytes] = []
        listed: set[bytes] | None = None
        actions = self._actions
        for name, value in headers:
            action = actions.get(name) or self.action(name)
            # The most frequent actions are inlined, since this runs for every new head.
            if action is _PASS:
                lines.append(b"%b: %b\r\n" % (name, value))
            elif action is _DROP:
                continue
            elif action is _AUTHORIZATION:
                if scanned.authorization is not None:
                    raise BadHeader("the request has two Authorization headers")
                scanned.authorization = value
            elif action is _USER_AGENT:
                scanned.user_agent = value
                lines.append(b"%b: %b\r\n" % (name, value))
            elif action is Action.TRACE:
                traces.append(b"%b: %b\r\n" % (name, value))
            elif action is Action.CONNECTION:
                listed = (listed or set()) | self._listed_names(value)
            elif action is Action.COOKIE:
                if theirs := _without_ours(value):
                    lines.append(name + b": " + theirs + b"\r\n")
                    scanned.cookies = scanned.cookies + b"; " + theirs if scanned.cookies else theirs
            elif action is Action.PROTOCOL:
                lines.extend(_without_bearer(name, value))
            elif action is Action.IMPERSONATE:
                # Not normalized: the key of an extra is part of the name.
                scanned.impersonate = [*scanned.impersonate, (name.lower(), value.rstrip(b" \t"))]
            elif action is Action.FORWARDED_FOR:
                scanned.forwarded_for = [*scanned.forwarded_for, value]
        if traces:
            lines += traces
        if listed:
            lines = [line for line in lines if normal_name(line.partition(b":")[0]) not in listed]
        scanned.lines = b"".join(lines)
        return scanned

    def _listed_names(self, value: bytes) -> set[bytes]:
        """Return the names that ``Connection`` lists; raises `BadHeader` if the gateway sets one of them."""
        names = {normal_name(part.strip()) for part in value.split(b",")} - {b"", b"close", b"keep-alive", b"upgrade"}
        for name in names:
            if self.is_protected(name) or name in REBUILT or name in (b"cookie", b"content-type"):
                raise BadHeader("Connection names a header that must reach the upstream as it is")
        return names

    def _classify(self, name: bytes) -> Action:
        normal = normal_name(name)
        if normal == b"connection":
            return Action.CONNECTION
        if normal == b"cookie":
            return Action.COOKIE
        if normal == b"sec-websocket-protocol":
            return Action.PROTOCOL
        if normal.startswith(b"impersonate"):
            return Action.IMPERSONATE
        if normal == b"authorization":
            # With an underscore it is no credential, and is dropped like any other claim.
            return Action.AUTHORIZATION if name.lower() == normal else Action.DROP
        if normal == b"user-agent":
            return Action.USER_AGENT
        if name.lower() == b"x-forwarded-for":
            return Action.FORWARDED_FOR
        if normal in HOP_BY_HOP or normal in REBUILT or self.is_protected(normal):
            return Action.DROP
        return Action.TRACE if name.lower() in TRACES else Action.PASS


def websocket_token(headers: Headers) -> bytes | None:
    """Return the token in ``Sec-WebSocket-Protocol``, which browsers use because they cannot set headers.

    There must be at most one, and another protocol: otherwise the server could not select a protocol in its response.
    """
    tokens, others = [], 0
    for name, value in headers:
        if name.lower() != b"sec-websocket-protocol":
            continue
        for part in map(bytes.strip, value.split(b",")):
            if part.startswith(WEBSOCKET_BEARER):
                tokens.append(part[len(WEBSOCKET_BEARER) :])
            elif part:
                others += 1
    if not tokens:
        return None
    if len(tokens) > 1:
        raise BadHeader("more than one token in Sec-WebSocket-Protocol")
    if not others:
        raise BadHeader("Sec-WebSocket-Protocol must name a protocol beside the token")
    return tokens[0]


# CGI-style programs derive variable names from header names, with the same character for all of these.
_ALIKE = bytes(byte if chr(byte).isalnum() and byte < 0x80 else ord("-") for byte in range(256))


def normal_name(name: bytes) -> bytes:
    """Normalize a name like programs that derive variable names from headers."""
    return name.lower().translate(_ALIKE)


def _without_ours(cookies: bytes) -> bytes:
    theirs = [part for part in cookies.split(b";") if not part.strip().startswith(OUR_COOKIES)]
    return b";".join(theirs).strip()


def _without_bearer(name: bytes, value: bytes) -> list[bytes]:
    parts = [part for part in map(bytes.strip, value.split(b",")) if part and not part.startswith(WEBSOCKET_BEARER)]
    return [name + b": " + b", ".join(parts) + b"\r\n"] if parts else []
