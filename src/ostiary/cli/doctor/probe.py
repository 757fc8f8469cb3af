"""What a probe is: one request as data, and the judge of what came of it; and what a check is made of. Values only.

    Check -> its Probes -> request_bytes -> (proxy) -> Observation -> the check's judge -> Finding

The tables are in `probes`; `examination` goes through them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ostiary.cli.doctor.traffic.http2_bytes import request_frames
from ostiary.cli.doctor.traffic.observed import Observation, Pairs
from ostiary.core.conformance import Result
from ostiary.model import Secret

# In the bytes of a probe these stand for what is only known when it is sent.
MARK = b"@MARK@"  # the mark of this request
INNER = b"@INNER@"  # a whole request without a token, with a mark of its own
INNER_SIZE = b"@INNER-SIZE@"  # its size, in hexadecimal
INNER_SIZE_AND_5 = b"@INNER-SIZE-AND-5@"  # five more, for an empty chunk before it
BODY_SIZE = b"@BODY-SIZE@"  # the size of the probe's body, once the request inside is in its place
MARK_HEADER = b"Doctor-Probe"


class Group(Enum):
    """The classes of the report, in its order; the value is their title."""

    USER = "who is let in"
    IDENTITY = "headers by which a client claims to be somebody"
    LEAK = "what the application learns"
    SOURCES = "what the gateway is asked about"
    PATHS = "paths with two readings"
    SMUGGLING = "requests inside of requests"
    HTTP2 = "over HTTP/2"
    DOOR = "the gateway itself"
    OUTAGE = "while the gateway is down"


class Presents(Enum):
    """The token that a probe presents."""

    NONE = 0
    TOKEN = 1
    GARBAGE = 2


class Need(Enum):
    """What a check cannot be made without; the value says how to provide it."""

    TOKEN = "needs a token: --token-file FILE, or ostiary login"  # noqa: S105
    DENIED = "needs a path that this user may not use: --denied PATH"
    NAMED_DENIED = "needs something that this user may not use: --denied PATH"
    DENIED_METHOD = "needs a method that this user may not use at a path where GET is allowed: --denied 'POST /path'"
    BODY = "no request with a body reached the echo: name a path where this user may POST with --path"
    GATEWAY = "needs the address of the gateway: --gateway URL"
    DOOR = "needs the name of the door and of its upstream: --door NAME/UPSTREAM"
    HTTP2 = "the proxy does not speak HTTP/2 with clients"
    DOWN = "asks you to stop the gateway: --while-gateway-down"


@dataclass(frozen=True, slots=True)
class Ground:
    """What is known when the probes are made.

    `path` is one that the user may use; `claim` the value of every claim, which nobody else sends; `expected_user` is
    empty if nobody says who it is. `body_method` is the one that reached the echo with a body.
    """

    host: bytes
    path: bytes
    claim: bytes
    token: Secret | None = None
    denied: bytes = b""
    denied_method: bytes = b""
    denied_method_path: bytes = b""
    paths: tuple[bytes, ...] = ()
    public: tuple[bytes, ...] = ()
    user_header: bytes = b"X-Remote-User"
    expected_user: str = ""
    body_method: bytes = b"POST"
    door: bytes = b""
    shares_host_with_gateway: bool = False
    is_gateway: bool = False
    scheme: bytes = b"http"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One request. `target` None is the allowed path; `lines` are header lines as they are sent, without their end.

    `claims` are the names of the headers whose arrival is judged. A probe with `parts` is several in one: if it does
    not arrive as a whole, each of them is sent alone, because one may have been refused on account of another.

    With `http2` it is sent over HTTP/2, with these headers in the place of `target` and `lines`.
    """

    label: str
    method: bytes = b"GET"
    target: bytes | None = None
    lines: tuple[bytes, ...] = ()
    body: bytes = b""
    presents: Presents = Presents.TOKEN
    claims: tuple[bytes, ...] = ()
    with_host: bool = True
    parts: tuple[Probe, ...] = ()
    http2: Pairs | None = None


Judge = Callable[[Ground, Probe, Observation], str]
"""What is wrong, for a person; empty if nothing is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report. `asks` is what must hold, and `severity` what it is if it does not.

    The probes of one that is `at_gateway` are sent there, and not to the proxy. `unless` says why there is nothing to
    test here.
    """

    name: str
    group: Group
    asks: str
    judge: Judge
    probes: tuple[Probe, ...]
    needs: tuple[Need, ...] = ()
    severity: Result = Result.FAIL
    at_gateway: bool = False
    unless: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check led to. `seen` is what arrived, or why it was not tested; `names` are headers that must be shut."""

    name: str
    group: Group
    asks: str
    result: Result
    seen: str = ""
    names: tuple[str, ...] = ()


def request_frames_of(probe: Probe, ground: Ground, mark: str) -> bytes:
    """The bytes of a probe over HTTP/2. What it says itself takes the place of what a plain request has."""
    own = {name for name, _ in probe.http2 or ()}
    inner = _inner(ground, mark)
    plain: list[tuple[bytes, bytes]] = [
        (b":method", probe.method),
        (b":scheme", ground.scheme),
        (b":authority", ground.host),
        (b":path", marked(ground.path)),
    ]
    # Those with a colon come first, whoever says them.
    pseudo = [pair for pair in (*plain, *(probe.http2 or ())) if pair[0].startswith(b":")]
    said = [pair for pair in pseudo if pair not in plain or pair[0] not in own]
    tokens = [(b"authorization", line.partition(b": ")[2]) for line in _token_lines(probe.presents, ground)]
    others = [pair for pair in probe.http2 or () if not pair[0].startswith(b":")]
    headers = [*said, (MARK_HEADER.lower(), MARK), *tokens, *others]
    filled = tuple((name, value.replace(INNER, inner).replace(MARK, mark.encode())) for name, value in headers)
    return request_frames(filled, probe.body.replace(INNER, inner))


def request_bytes(probe: Probe, ground: Ground, mark: str) -> bytes:
    """The bytes of *probe*, exactly as they are sent."""
    inner = _inner(ground, mark)
    body = probe.body.replace(INNER_SIZE, b"%x" % len(inner)).replace(INNER_SIZE_AND_5, b"%x" % (len(inner) + 5))
    body = body.replace(INNER, inner).replace(MARK, mark.encode())
    target = marked(ground.path) if probe.target is None else probe.target
    lines = [probe.method + b" " + target + b" HTTP/1.1"]
    if probe.with_host:
        lines.append(b"Host: " + ground.host)
    lines += [MARK_HEADER + b": " + MARK, *_token_lines(probe.presents, ground), *probe.lines, b"", b""]
    head = b"\r\n".join(lines).replace(BODY_SIZE, b"%d" % len(body)).replace(MARK, mark.encode())
    return head + body


def marked(path: bytes) -> bytes:
    """*path* with the mark of the request in its query, which outlives what proxies do to paths and headers."""
    return path + (b"&" if b"?" in path else b"?") + b"doctor=" + MARK


def _inner(ground: Ground, mark: str) -> bytes:
    target = marked(ground.path).replace(MARK, mark.encode() + b"i")
    return b"GET %s HTTP/1.1\r\nHost: %s\r\nX-Remote-User: %s\r\n\r\n" % (target, ground.host, ground.claim)


def _token_lines(presents: Presents, ground: Ground) -> list[bytes]:
    if presents is Presents.GARBAGE:
        return [b"Authorization: Bearer " + ground.claim]
    if presents is Presents.TOKEN and ground.token is not None:
        return [b"Authorization: Bearer " + ground.token.reveal().encode()]
    return []
