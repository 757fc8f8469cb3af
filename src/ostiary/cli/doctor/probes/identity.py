"""Headers by which a client claims to be somebody, in every spelling: none may arrive with what the client said.

The names are those that the built-in proxy drops and the printed configurations clear, from the same lists.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.cli.doctor.judges import no_claim_arrives, no_trailer_arrives, user_is_kept
from ostiary.cli.doctor.probe import Check, Ground, Group, Need, Probe
from ostiary.core.conformance import Result
from ostiary.gateway.doors.forward.claims import CLEARED, OVERWRITTEN
from ostiary.gateway.http1.headers import IDENTITY_PREFIXES, OVERRIDES

EXTRA = b"X-Remote-Extra-Doctor"
# Where a request comes from; an application that believes them is misled, and yet nobody is somebody else.
ADDRESSES = tuple(
    sorted({*(name.encode() for name in OVERWRITTEN), b"forwarded", b"x-client-ip", b"true-client-ip", b"client-ip"})
)
# Of these beginnings any name is a claim. "x-forwarded-" is not among them: a proxy sets some of those itself.
PREFIXES = tuple(prefix for prefix in IDENTITY_PREFIXES if prefix not in (b"x-forwarded-", b"impersonate"))
AT_ONCE = 12


def checks(ground: Ground) -> tuple[Check, ...]:
    own = (ground.user_header, b"X-Remote-Group", b"X-Remote-Uid", EXTRA)
    others = [name.encode() for name in CLEARED if not _is_elsewhere(name.encode())]
    return (
        _check(
            "identity-headers",
            "no client can set the headers by which the gateway tells the user",
            tuple(_claim(ground, name) for name in own),
        ),
        _check(
            "identity-spellings",
            "nor in another spelling that an application takes for them",
            tuple(_claims(ground, spellings(name)) for name in own),
        ),
        _check("identity-odd-lines", "nor in a line that two programs read differently", _odd_lines(ground)),
        _check("identity-doubled", "nor by sending them twice", (_doubled(ground),)),
        Check(
            name="identity-hop-by-hop",
            group=Group.IDENTITY,
            asks="a client cannot have the gateway's header taken out by naming it in Connection",
            judge=user_is_kept,
            probes=tuple(_named_in_connection(ground, value) for value in (b"", b"close, ", b"keep-alive, ")),
            needs=(Need.TOKEN,),
        ),
        Check(
            name="identity-trailers",
            group=Group.IDENTITY,
            asks="nor after the body",
            judge=no_trailer_arrives,
            probes=_trailers(ground),
            needs=(Need.TOKEN, Need.BODY),
        ),
        _check(
            "impersonation",
            "Impersonate-* does not reach the application",
            tuple(_claim(ground, name) for name in _IMPERSONATION),
        ),
        _check("identity-others", "no header arrives by which other products tell the user", _batches(ground, others)),
        _check(
            "identity-prefixes",
            "nor any other that begins like one of them",
            _batches(ground, [prefix.rstrip(b"-") + b"-doctor" for prefix in PREFIXES]),
        ),
        _check(
            "override-headers",
            "no client can name another method or path than the one that was decided on",
            _batches(ground, sorted(OVERRIDES)),
        ),
        _check(
            "address-headers",
            "no client can claim another address, host or scheme",
            _batches(ground, ADDRESSES),
            severity=Result.WARN,
        ),
    )


def spellings(name: bytes) -> tuple[bytes, ...]:
    """How else *name* can be written so that programs which make variables of headers take it for the same."""
    first, dash, rest = name.partition(b"-")
    return (
        name.replace(b"-", b"_"),
        first + b"_" + rest if dash else name,
        name.replace(b"-", b".") if dash else name,
        name.lower(),
        name.upper(),
    )


_IMPERSONATION = (b"Impersonate-User", b"Impersonate-Group", b"Impersonate_User", b"Impersonate-Extra-Doctor")


def _check(name: str, asks: str, probes: tuple[Probe, ...], *, severity: Result = Result.FAIL) -> Check:
    return Check(
        name=name,
        group=Group.IDENTITY,
        asks=asks,
        judge=no_claim_arrives,
        probes=probes,
        needs=(Need.TOKEN,),
        severity=severity,
    )


def _is_elsewhere(name: bytes) -> bool:
    return name in OVERRIDES or name in ADDRESSES or name == b"authorization" or name.startswith(b"impersonate")


def _claim(ground: Ground, name: bytes) -> Probe:
    return Probe(label=name.decode(), lines=(name + b": " + ground.claim,), claims=(name,))


def _claims(ground: Ground, names: Sequence[bytes]) -> Probe:
    parts = tuple(_claim(ground, name) for name in dict.fromkeys(names))
    lines = tuple(line for part in parts for line in part.lines)
    return Probe(label=f"{len(parts)} headers", lines=lines, claims=tuple(names), parts=parts)


def _batches(ground: Ground, names: Sequence[bytes]) -> tuple[Probe, ...]:
    return tuple(_claims(ground, names[start : start + AT_ONCE]) for start in range(0, len(names), AT_ONCE))


def _odd_lines(ground: Ground) -> tuple[Probe, ...]:
    name, claim = ground.user_header, ground.claim
    written = {
        "a space before the colon": (name + b" : " + claim,),
        "a tab before the colon": (name + b"\t: " + claim,),
        "a space at the beginning": (b" " + name + b": " + claim,),
        "a line that continues another": (b"X-Doctor: a", b" " + name + b": " + claim),
        "a bare line feed": (b"X-Doctor: a\n" + name + b": " + claim,),
        "a bare carriage return": (b"X-Doctor: a\r" + name + b": " + claim,),
        "a NUL in the name": (name + b"\0: " + claim,),
        "a letter outside of ASCII": (name + b"\xa0: " + claim,),
        "no space after the colon": (name + b":" + claim,),
    }
    # The strange byte stands for a "-" to some, and is not there to others.
    names = (name, name + b"-", b"-" + name)
    return tuple(Probe(label=label, lines=lines, claims=names) for label, lines in written.items())


def _doubled(ground: Ground) -> Probe:
    line = ground.user_header + b": " + ground.claim
    return Probe(label="two lines", lines=(line, line), claims=(ground.user_header,))


def _named_in_connection(ground: Ground, before: bytes) -> Probe:
    line = b"Connection: " + before + ground.user_header
    return Probe(label=f'"{line.decode()}"', lines=(line,))


def _trailers(ground: Ground) -> tuple[Probe, ...]:
    chunked, announced = b"Transfer-Encoding: chunked", b"Trailer: " + ground.user_header
    body = b"6\r\ndoctor\r\n0\r\n" + ground.user_header + b": " + ground.claim + b"\r\n\r\n"
    return tuple(
        Probe(label=label, method=ground.body_method, lines=lines, body=body, claims=(ground.user_header,))
        for label, lines in (
            ("an announced trailer", (chunked, announced)),
            ("a trailer", (chunked,)),
        )
    )
