"""Who is let in, what the application is told of them, and what it must not learn. Also while the gateway is down."""

from __future__ import annotations

from ostiary.cli.doctor.judges import (
    encoded_token,
    no_cookie_of_ours_arrives,
    no_secret_arrives,
    no_token_arrives,
    nothing_arrives,
    user_is_told,
)
from ostiary.cli.doctor.probe import Check, Ground, Group, Need, Presents, Probe, marked
from ostiary.core.conformance import Result
from ostiary.gateway.http1.headers import WEBSOCKET_BEARER

METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS", b"TRACE", b"PROPFIND", b"DOCTOR")
WEBSOCKET = (
    b"Connection: Upgrade",
    b"Upgrade: websocket",
    b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: b3N0aWFyeS1kb2N0b3ItMA==",
)
# What people often take out of the protection; the operator's own come before these.
OFTEN_OPEN = (
    *(b"/static/doctor.js", b"/assets/doctor.js", b"/public/doctor", b"/favicon.ico", b"/robots.txt", b"/health"),
    *(b"/healthz", b"/metrics", b"/api/doctor", b"/ws", b"/.well-known/doctor", b"/doctor.css", b"/doctor.png"),
)


def checks(ground: Ground) -> tuple[Check, ...]:
    return (
        Check(
            name="no-token",
            group=Group.USER,
            asks="nothing reaches the application without a token, by no method",
            judge=nothing_arrives,
            probes=(*(_anonymous(method) for method in METHODS), _anonymous_websocket()),
        ),
        Check(
            name="no-token-elsewhere",
            group=Group.USER,
            asks="nor at another path",
            judge=nothing_arrives,
            probes=tuple(_at(path, ground) for path in (*ground.paths, *OFTEN_OPEN) if not _is_public(path, ground)),
        ),
        Check(
            name="garbage-token",
            group=Group.USER,
            asks="nothing reaches the application with a token that is none",
            judge=nothing_arrives,
            probes=(
                Probe(label="a request with an unknown token", presents=Presents.GARBAGE),
                *(_presenting(value) for value in (b"Bearer", b"Basic ZG9jdG9yOmRvY3Rvcg==", b"doctor", b"")),
            ),
        ),
        Check(
            name="user",
            group=Group.USER,
            asks="with the token, the application is told its user, once",
            judge=user_is_told,
            probes=(Probe(label="a request with the token"),),
            needs=(Need.TOKEN,),
        ),
    )


def leak_checks(ground: Ground) -> tuple[Check, ...]:
    cookie = b"Cookie: app=1; __Host-ostiary-doctor=" + ground.claim
    return (
        Check(
            name="token-leak",
            group=Group.LEAK,
            asks="the token does not reach the application",
            judge=no_token_arrives,
            probes=(
                Probe(label="a request with the token"),
                Probe(label="a POST with the token", method=b"POST", lines=(b"Content-Length: 0",)),
                Probe(label="a request with the token and the cookie of an application", lines=(b"Cookie: app=1",)),
                Probe(
                    label="a WebSocket with the token among its protocols",
                    lines=(*WEBSOCKET, b"Sec-WebSocket-Protocol: doctor, " + WEBSOCKET_BEARER + encoded_token(ground)),
                    presents=Presents.NONE,
                ),
            ),
            needs=(Need.TOKEN,),
        ),
        Check(
            name="secret-leak",
            group=Group.LEAK,
            asks="the secret of the door does not reach the application",
            judge=no_secret_arrives,
            probes=(Probe(label="a request with the token"),),
            needs=(Need.TOKEN,),
        ),
        Check(
            name="cookie-leak",
            group=Group.LEAK,
            asks="the gateway's cookies do not reach the application, where it has the host of the gateway",
            judge=no_cookie_of_ours_arrives,
            probes=(Probe(label="a request with a cookie of the gateway", lines=(cookie,)),),
            needs=(Need.TOKEN, Need.GATEWAY),
            unless="" if ground.shares_host_with_gateway else "browsers send no cookies of the gateway to this host",
            severity=Result.WARN,
        ),
    )


def outage_checks(ground: Ground) -> tuple[Check, ...]:
    return (
        Check(
            name="fail-open",
            group=Group.OUTAGE,
            asks="nothing reaches the application while the gateway cannot be asked",
            judge=nothing_arrives,
            probes=(
                Probe(label="a request without a token", presents=Presents.NONE),
                Probe(label="a request with an unknown token", presents=Presents.GARBAGE),
                Probe(label="a request with the token"),
                Probe(label="a POST with the token", method=b"POST", lines=(b"Content-Length: 0",)),
            ),
            needs=(Need.DOWN,),
        ),
    )


def _anonymous(method: bytes) -> Probe:
    lines = (b"Content-Length: 0",) if method in (b"POST", b"PUT", b"PATCH") else ()
    return Probe(label=f"{method.decode()} without a token", method=method, lines=lines, presents=Presents.NONE)


def _anonymous_websocket() -> Probe:
    return Probe(label="a WebSocket without a token", lines=WEBSOCKET, presents=Presents.NONE)


def _presenting(value: bytes) -> Probe:
    line = b"Authorization: " + value
    return Probe(label=f'"{line.decode()}"', lines=(line,), presents=Presents.NONE)


def _at(path: bytes, ground: Ground) -> Probe:
    return Probe(label=f"{path.decode()} without a token", target=marked(path), presents=Presents.NONE)


def _is_public(path: bytes, ground: Ground) -> bool:
    return any(path == each or path.startswith(each.rstrip(b"/") + b"/") for each in ground.public)
