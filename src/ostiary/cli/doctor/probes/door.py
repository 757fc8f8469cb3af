"""The gateway itself: nobody but the proxy may ask at a door, neither directly nor through the proxy."""

from __future__ import annotations

from ostiary.cli.doctor.judges import gateway_is_not_exposed, no_oracle_answers
from ostiary.cli.doctor.probe import Check, Ground, Group, Need, Probe, marked
from ostiary.core.conformance import Result

# Where a proxy is often told to ask; the first is that of the printed configuration of nginx.
ASKED_AT = (b"/_ostiary/", b"/auth", b"/_auth", b"/verify", b"/validate", b"/forward-auth", b"/internal/auth")


def checks(ground: Ground) -> tuple[Check, ...]:
    door, upstream = ground.door.partition(b"/")[::2]
    at_door = b"/doors/" + ground.door
    return (
        Check(
            name="door-secret",
            group=Group.DOOR,
            asks="a door answers nobody without its secret",
            judge=no_oracle_answers,
            probes=tuple(_question(ground, at_door, secret) for secret in (b"", ground.claim)),
            needs=(Need.TOKEN, Need.GATEWAY, Need.DOOR),
            at_gateway=True,
        ),
        Check(
            name="door-through-proxy",
            group=Group.DOOR,
            asks="a client cannot ask the gateway through the proxy, which has the secret",
            judge=no_oracle_answers,
            probes=tuple(_question(ground, path) for path in (*([at_door] if door else []), *_asked_at(upstream))),
            needs=(Need.TOKEN,),
        ),
        Check(
            name="door-exposed",
            group=Group.DOOR,
            asks="the proxy does not lead clients to the doors of the gateway",
            judge=gateway_is_not_exposed,
            probes=(_question(ground, at_door if door else b"/doors/doctor/doctor"),),
            needs=(Need.TOKEN,),
            severity=Result.WARN,
            unless="this proxy is the gateway itself" if ground.is_gateway else "",
        ),
    )


def _asked_at(upstream: bytes) -> tuple[bytes, ...]:
    return (ASKED_AT[0] + (upstream or b"app"), *ASKED_AT[1:])


def _question(ground: Ground, path: bytes, secret: bytes = b"") -> Probe:
    """As any kind of proxy would ask."""
    lines = (
        *(b"X-Original-Method: GET", b"X-Original-URI: " + ground.path, b"X-Original-Host: " + ground.host),
        *(b"X-Forwarded-Method: GET", b"X-Forwarded-Uri: " + ground.path, b"X-Forwarded-Host: " + ground.host),
        *(b"X-Forwarded-For: 192.0.2.1", b"X-Original-Address: 192.0.2.1"),
    )
    proof = (b"X-Ostiary-Door: " + secret,) if secret else ()
    return Probe(label=path.decode(), target=marked(path), lines=(*lines, *proof))
