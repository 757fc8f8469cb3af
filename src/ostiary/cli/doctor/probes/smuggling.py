"""Requests inside of the bodies of others: where the proxy and the application could disagree on the length of a body.

Each is complete in every reading, so that nobody waits. The request inside has no token, so that it must not arrive in
any way, not even as one that the proxy has seen.
"""

from __future__ import annotations

from ostiary.cli.doctor.judges import no_upgrade_arrives, one_request_arrives
from ostiary.cli.doctor.probe import BODY_SIZE, INNER, INNER_SIZE, INNER_SIZE_AND_5, Check, Ground, Group, Need, Probe

LENGTH = b"Content-Length: " + BODY_SIZE
CHUNKED = b"Transfer-Encoding: chunked"
# To whoever believes the chunks the body ends at once, and the request inside begins.
ENDS_AT_ONCE = b"0\r\n\r\n" + INNER
IN_A_CHUNK = INNER_SIZE + b"\r\n" + INNER + b"\r\n0\r\n\r\n"

_ODD_CODINGS = {
    "xchunked": (b"Transfer-Encoding: xchunked",),
    "a space before the colon": (b"Transfer-Encoding : chunked",),
    "a tab after the colon": (b"Transfer-Encoding:\tchunked",),
    "a vertical tab": (b"Transfer-Encoding: \x0bchunked",),
    "quotes": (b'Transfer-Encoding: "chunked"',),
    "two lines": (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
    "two lines, the other way round": (b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked"),
    "a list": (b"Transfer-Encoding: chunked, identity",),
    "a list, the other way round": (b"Transfer-Encoding: identity, chunked",),
    "a folded line": (b"Transfer-Encoding:", b" chunked"),
    "a line that continues another": (b"X-Doctor: a", b" Transfer-Encoding: chunked"),
    "a bare line feed": (b"X-Doctor: a\nTransfer-Encoding: chunked",),
    "a bare carriage return": (b"X-Doctor: a\rTransfer-Encoding: chunked",),
    "a NUL": (b"Transfer-Encoding: chunked\0",),
    "capitals": (b"TRANSFER-ENCODING: CHUNKED",),
}
_ODD_LENGTHS = {
    "two different lengths": (b"Content-Length: 0", LENGTH),
    "two different lengths, the other way round": (LENGTH, b"Content-Length: 0"),
    "a list of lengths": (b"Content-Length: " + BODY_SIZE + b", 0",),
    "a plus": (b"Content-Length: +" + BODY_SIZE,),
    "a minus": (b"Content-Length: -0",),
    "zeros before it": (b"Content-Length: 000" + BODY_SIZE,),
    "hexadecimal": (b"Content-Length: 0x0",),
    "a space before the colon": (b"Content-Length : " + BODY_SIZE, b"Content-Length: 0"),
    "an underscore": (b"Content_Length: 0", LENGTH),
    "a folded line": (b"Content-Length:", b" " + BODY_SIZE),
    "twice the same": (LENGTH, LENGTH),
}
_ODD_CHUNKS = {
    "a bare line feed in an extension": b"2;\nxx\r\n" + INNER_SIZE_AND_5 + b"\r\n0\r\n\r\n" + INNER + b"\r\n0\r\n\r\n",
    "a size that overflows": b"10000000000000000\r\n" + INNER + b"\r\n0\r\n\r\n",
    "a size with a sign": b"+0\r\n\r\n" + INNER,
    "a size with 0x": b"0x0\r\n\r\n" + INNER,
    "a body that ends with a bare line feed": b"0\n\n" + INNER,
}


def checks(ground: Ground) -> tuple[Check, ...]:
    both = {
        "CL.TE": Probe(label="CL.TE", lines=(LENGTH, CHUNKED), body=ENDS_AT_ONCE, method=ground.body_method),
        "TE.CL": Probe(
            label="TE.CL", lines=(b"Content-Length: 4", CHUNKED), body=IN_A_CHUNK, method=ground.body_method
        ),
        "TE.0": Probe(label="TE.0", lines=(CHUNKED, b"Content-Length: 0"), body=IN_A_CHUNK, method=ground.body_method),
    }
    return (
        _check("smuggling-both", "both Content-Length and Transfer-Encoding", tuple(both.values())),
        _check(
            "smuggling-transfer-encoding",
            "a Transfer-Encoding that not everybody understands",
            tuple(
                Probe(label=label, lines=(LENGTH, *lines), body=ENDS_AT_ONCE, method=ground.body_method)
                for label, lines in _ODD_CODINGS.items()
            ),
        ),
        _check(
            "smuggling-content-length",
            "an odd Content-Length",
            tuple(
                Probe(label=label, lines=lines, body=INNER, method=ground.body_method)
                for label, lines in _ODD_LENGTHS.items()
            ),
        ),
        _check(
            "smuggling-chunks",
            "odd chunks",
            tuple(
                Probe(label=label, lines=(CHUNKED,), body=body, method=ground.body_method)
                for label, body in _ODD_CHUNKS.items()
            ),
        ),
        Check(
            name="smuggling-h2c",
            group=Group.SMUGGLING,
            asks="no client can switch to another protocol behind the decision",
            judge=no_upgrade_arrives,
            probes=tuple(
                _h2c(connection) for connection in (b"Upgrade, HTTP2-Settings", b"Upgrade", b"HTTP2-Settings")
            ),
            needs=(Need.TOKEN,),
        ),
    )


def _check(name: str, means: str, probes: tuple[Probe, ...]) -> Check:
    return Check(
        name=name,
        group=Group.SMUGGLING,
        asks=f"no request arrives inside of another by {means}",
        judge=one_request_arrives,
        probes=probes,
        needs=(Need.TOKEN, Need.BODY),
    )


def _h2c(connection: bytes) -> Probe:
    lines = (b"Connection: " + connection, b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__")
    return Probe(label=f"h2c with Connection: {connection.decode()}", lines=lines)
