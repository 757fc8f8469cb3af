"""Which headers of a request pass to an upstream. Pure.

Everything a client sends about who it is, or where it comes from, is dropped by normalised name (lower case, ``_`` and
the like read as ``-``, because CGI-style backends cannot tell them apart); then ours is set, one line per group. So is
what would make another request of it for the upstream than the one decided on. What a client calls hop-by-hop in
``Connection`` is removed before ours is set, and a ``Connection`` that names one of ours is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ostiary_gateway.settings.kinds import header_name

Headers = list[tuple[bytes, bytes]]

# What the names of our own cookies begin with; the second form is for a gateway without TLS on this machine.
OUR_COOKIES = (b"__Host-ostiary", b"ostiary-")
# Bounds on the names whose meaning is remembered: a client can invent any number of long ones.
LONGEST_NAME = 64
MOST_NAMES = 4096
WEBSOCKET_BEARER = b"base64url.bearer.authorization.k8s.io."

# Meant for the next hop only.
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
# Rebuilt by us, for framing or because it names us.
REBUILT = frozenset((b"host", b"content-length", b"expect", b"audit-id"))
# A claim about who the user is, or where the request comes from.
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
    # What other gateways and the proxies of clouds tell programs about the user.
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
# Another method or address than the one that was decided on, as some frameworks take them from a header; and
# ``Proxy``, which a CGI program finds in its environment as the proxy to use.
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
# What programs and proxies put into each request anew. They pass, behind all other lines: so a head that differs from
# an earlier one only in them can be told from its other lines alone (`http1.server.plain_head`).
TRACES = frozenset(
    (
        *(b"traceparent", b"tracestate", b"b3", b"x-b3-traceid", b"x-b3-spanid", b"x-b3-parentspanid"),
        *(b"x-request-id", b"x-correlation-id", b"x-trace-id", b"request-id", b"uber-trace-id", b"sentry-trace"),
        # Of kubectl: another one for each command that is typed.
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


# Looked up for every header of every new head: as names of this module, which cost less than those of an enumeration.
_PASS, _DROP, _AUTHORIZATION, _USER_AGENT = Action.PASS, Action.DROP, Action.AUTHORIZATION, Action.USER_AGENT


class BadHeader(ValueError):
    """The headers contradict what they may say; the request is refused."""


# Where there is no token that could be one of ours.
NO_DIGEST = b""


class FilteredHeaders:
    """One pass over a request's headers. `lines` go to the upstream; the rest was meant for us.

    `cookies` are those of `lines`, on one line, for a proxy that has to set them by itself.
    It is kept for heads that come again. `digest` (of the token) and `origin` (with the address it is about) are what
    others work out from it, and keep here.
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
    """The headers that tell an upstream who the user is. The defaults are those of kube-apiserver's documentation."""

    user: Annotated[str, header_name("the username")] = "X-Remote-User"
    group: Annotated[str, header_name("a group; one line each")] = "X-Remote-Group"
    uid: Annotated[str, header_name("the uid")] = "X-Remote-Uid"
    extra_prefix: Annotated[str, header_name("goes before each key of the extra fields")] = "X-Remote-Extra-"


class HeaderFilter:
    """Decides by name what becomes of a header. It remembers names: classifying one costs more than looking it up."""

    def __init__(self, names: Iterable[HeaderNames] = (), *, drop: Iterable[str] = ()) -> None:
        """*drop* are more names to drop from requests; one that ends with a star is a prefix."""
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
        """Whether a header of this name, which is a `normal_name`, is a claim of the client that never passes."""
        return name in self._identity or name.startswith(tuple(self._prefixes))

    @property
    def passes_traces(self) -> bool:
        """Whether all of `TRACES` go on to the upstream."""
        return all(self.action(name) is Action.TRACE for name in TRACES)

    def scan(self, headers: Headers) -> FilteredHeaders:
        """What a request's headers say to us, and the lines of them that go on to the upstream."""
        scanned = FilteredHeaders()
        lines: list[bytes] = []
        traces: list[bytes] = []
        listed: set[bytes] | None = None
        actions = self._actions
        for name, value in headers:
            action = actions.get(name) or self.action(name)
            # Nearly all of them pass; what follows is written out once here, since every new head comes through.
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
                # As it was written: the keys of extras are names of their own.
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
        """The names that ``Connection`` lists; raises `BadHeader` if one of them is ours to set."""
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
            # With an underscore it is not a credential, and is dropped like any other claim.
            return Action.AUTHORIZATION if name.lower() == normal else Action.DROP
        if normal == b"user-agent":
            return Action.USER_AGENT
        if name.lower() == b"x-forwarded-for":
            return Action.FORWARDED_FOR
        if normal in HOP_BY_HOP or normal in REBUILT or self.is_protected(normal):
            return Action.DROP
        return Action.TRACE if name.lower() in TRACES else Action.PASS


def websocket_token(headers: Headers) -> bytes | None:
    """The token that a browser's WebSocket carries in ``Sec-WebSocket-Protocol``, since it cannot set headers.

    At most one, and beside another protocol: otherwise the server could not answer with a protocol of its own.
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


# Programs that make variables of headers put the same character for all of these.
_ALIKE = bytes(byte if chr(byte).isalnum() and byte < 0x80 else ord("-") for byte in range(256))


def normal_name(name: bytes) -> bytes:
    """A name as programs read it that make variables of headers."""
    return name.lower().translate(_ALIKE)


def _without_ours(cookies: bytes) -> bytes:
    theirs = [part for part in cookies.split(b";") if not part.strip().startswith(OUR_COOKIES)]
    return b";".join(theirs).strip()


def _without_bearer(name: bytes, value: bytes) -> list[bytes]:
    parts = [part for part in map(bytes.strip, value.split(b",")) if part and not part.startswith(WEBSOCKET_BEARER)]
    return [name + b": " + b", ".join(parts) + b"\r\n"] if parts else []
