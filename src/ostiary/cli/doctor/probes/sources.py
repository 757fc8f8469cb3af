"""Where the gateway is told what it is asked about: a client must not be able to say that in place of the proxy.

A request for something that the user may not use claims, in a header, to be one for something that they may.
"""

from __future__ import annotations

from ostiary.cli.doctor.judges import denied_path_stays_out, nothing_arrives
from ostiary.cli.doctor.probe import Check, Ground, Group, Need, Probe, marked

URI_HEADERS = (
    *(b"X-Original-URI", b"X-Original-URL", b"X-Rewrite-URL", b"X-Forwarded-Uri", b"X-Forwarded-Path"),
    *(b"X-Forwarded-Prefix", b"X-Original-Uri", b"X_Original_URI", b"X_Forwarded_Uri", b"X-Auth-Request-Redirect"),
    *(b"X-Envoy-Original-Path", b"X-Replaced-Path", b":path"),
)
METHOD_HEADERS = (
    *(b"X-Original-Method", b"X-Forwarded-Method", b"X-HTTP-Method-Override", b"X-HTTP-Method", b"X-Method-Override"),
    *(b"X_Original_Method", b"X_Forwarded_Method", b":method"),
)


def checks(ground: Ground) -> tuple[Check, ...]:
    return (
        Check(
            name="denied",
            group=Group.SOURCES,
            asks="what this user may not use does not arrive: the gateway is asked about what is forwarded",
            judge=nothing_arrives,
            probes=_plainly(ground),
            needs=(Need.TOKEN, Need.NAMED_DENIED),
        ),
        Check(
            name="source-path",
            group=Group.SOURCES,
            asks="a header of the client does not change which path is decided on",
            judge=denied_path_stays_out,
            probes=tuple(_path_claim(ground, name) for name in URI_HEADERS) + _doubled(ground),
            needs=(Need.TOKEN, Need.DENIED),
        ),
        Check(
            name="source-method",
            group=Group.SOURCES,
            asks="a header of the client does not change which method is decided on",
            judge=nothing_arrives,
            probes=tuple(_method_claim(ground, name) for name in METHOD_HEADERS),
            needs=(Need.TOKEN, Need.DENIED_METHOD),
        ),
    )


def _plainly(ground: Ground) -> tuple[Probe, ...]:
    path = Probe(label=ground.denied.decode(), target=marked(ground.denied))
    method = Probe(
        label=f"{ground.denied_method.decode()} {ground.denied_method_path.decode()}",
        method=ground.denied_method,
        target=marked(ground.denied_method_path),
        lines=(b"Content-Length: 0",),
    )
    return (*([path] if ground.denied else []), *([method] if ground.denied_method else []))


def _path_claim(ground: Ground, name: bytes) -> Probe:
    return Probe(
        label=f"a request for {ground.denied.decode()} with {name.decode()}: {ground.path.decode()}",
        target=marked(ground.denied),
        lines=(name + b": " + ground.path,),
    )


def _doubled(ground: Ground) -> tuple[Probe, ...]:
    """One line of each kind, twice: a proxy that overwrites one of them leaves the other."""
    lines = tuple(name + b": " + ground.path for name in URI_HEADERS[:4])
    label = f"a request for {ground.denied.decode()} with two lines of each header"
    return (Probe(label=label, target=marked(ground.denied), lines=(*lines, *lines)),)


def _method_claim(ground: Ground, name: bytes) -> Probe:
    return Probe(
        label=f"{ground.denied_method.decode()} with {name.decode()}: GET",
        method=ground.denied_method,
        target=marked(ground.denied_method_path),
        lines=(name + b": GET", b"Content-Length: 0"),
    )
