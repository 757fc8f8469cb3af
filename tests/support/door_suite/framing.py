"""Requests of whose end programs could have different opinions: one sees a body where another sees a request."""

from __future__ import annotations

from dataclasses import replace

from tests.support.door_cases import (
    ENVOYS,
    MIDDLEWARES,
    NORMALISES,
    ONE_READING,
    OWN_READING,
    OWN_REFUSAL,
    PASSES_CLAIM,
    PROXIES,
    Case,
    Headers,
)

# What a program would take for a request if it thought that the body had ended. The judge looks for it.
SMUGGLED = b"GET /denied/smuggled HTTP/1.1\r\nHost: shop.example\r\nX-Case: smuggled\r\n\r\n"
# The servers of Python frame requests as they like: nothing stands behind them that could read them otherwise.
REFUSED_HERE = {**dict.fromkeys(PROXIES, OWN_REFUSAL), **dict.fromkeys((*MIDDLEWARES, "webhooks"), OWN_READING)}
# Go and HAProxy read one of two, and say so anew to the upstream.
BY_GO = REFUSED_HERE | dict.fromkeys(("traefik", "caddy", "haproxy"), NORMALISES)
CHUNKED = ("Transfer-Encoding", "chunked")
ONE = b"5\r\nhello\r\n0\r\n\r\n"


def _length(value: str) -> tuple[str, str]:
    return ("Content-Length", value)


# Each with a body of five bytes.
CONFLICTS: dict[str, Headers] = {
    "a length and chunks": (_length("5"), CHUNKED),
    "chunks and a length": (CHUNKED, _length("5")),
    "two lengths": (_length("5"), _length("0")),
    "two lengths in one": (_length("5, 0"),),
    "a negative length": (_length("-5"),),
    "a length with a sign": (_length("+5"),),
    "a hexadecimal length": (_length("0x5"),),
    "a length that is none": (_length("five"),),
    "an empty length": (_length(""),),
    "a length of two words": (_length("5 5"),),
    "a huge length": (_length("9" * 30),),
    "an unknown encoding": (("Transfer-Encoding", "xchunked"),),
    "two encodings": (("Transfer-Encoding", "gzip, chunked"),),
    "chunks in chunks": (("Transfer-Encoding", "chunked, chunked"),),
    "chunks twice": (CHUNKED, CHUNKED),
    "no encoding": (("Transfer-Encoding", "identity"),),
    "none and then chunks": (("Transfer-Encoding", "identity, chunked"),),
    "chunks and then none": (("Transfer-Encoding", "chunked, identity"),),
    "a space before the colon": (("Transfer-Encoding ", "chunked"), _length("5")),
    "a tab in the value": (("Transfer-Encoding", "\x0bchunked"), _length("5")),
    "quotes": (("Transfer-Encoding", '"chunked"'),),
}


def _conflicts() -> list[Case]:
    return [
        Case(
            f"framing: {name}",
            "/framing",
            "POST",
            framing=lines,
            body=ONE + SMUGGLED,
            status=400,
            alone=True,
            differs=BY_GO if {_length("5"), CHUNKED} == set(lines) else REFUSED_HERE,
        )
        for name, lines in CONFLICTS.items()
    ]


# The length covers a body with a request inside. A program that accepts the encoding sees the body end before it.
HIDDEN = b"0\r\n\r\n" + SMUGGLED
ENCODINGS: dict[str, Headers] = {
    "chunked": (CHUNKED,),
    "capitals": (("TRANSFER-ENCODING", "CHUNKED"),),
    "unknown": (("Transfer-Encoding", "xchunked"),),
    "a space before the colon": (("Transfer-Encoding ", "chunked"),),
    "a tab": (("Transfer-Encoding", "\tchunked"),),
    "a vertical tab": (("Transfer-Encoding", "\x0bchunked"),),
    "quotes": (("Transfer-Encoding", '"chunked"'),),
    "two lines": (CHUNKED, ("Transfer-Encoding", "identity")),
    "two lines, chunked last": (("Transfer-Encoding", "identity"), CHUNKED),
    "a list": (("Transfer-Encoding", "chunked, identity"),),
    "a list, chunked last": (("Transfer-Encoding", "identity, chunked"),),
    "a folded line": (("Transfer-Encoding", "\r\n chunked"),),
    "a folded line of another header": (("X-Mine", "a\r\n Transfer-Encoding: chunked"),),
    "a line feed in another header": (("X-Mine", "a\nTransfer-Encoding: chunked"),),
    "a carriage return in another header": (("X-Mine", "a\rTransfer-Encoding: chunked"),),
    "a NUL": (("Transfer-Encoding", "chunked\x00"),),
}
# The same with a second length, which leaves the body empty.
_WHOLE = str(len(SMUGGLED))
LENGTHS: dict[str, Headers] = {
    "two": (_length("0"), _length(_WHOLE)),
    "two, zero last": (_length(_WHOLE), _length("0")),
    "a list": (_length(f"{_WHOLE}, 0"),),
    "a plus": (_length(f"+{_WHOLE}"),),
    "a minus": (_length("-0"),),
    "a prefix": (_length("0x0"),),
    "a space before the colon": (("Content-Length ", _WHOLE), _length("0")),
    "a folded line": (("Content-Length", f"\r\n {_WHOLE}"),),
}


def _hidden_requests() -> list[Case]:
    def hidden(name: str, framing: Headers, body: bytes) -> Case:
        return Case(
            f"hidden request: {name}",
            "/framing",
            "POST",
            framing=framing,
            body=body,
            status=400,
            alone=True,
            differs=ONE_READING,
        )

    whole = _length(str(len(HIDDEN)))
    in_a_chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
    return [
        *(hidden(f"encoding, {name}", (whole, *lines), HIDDEN) for name, lines in ENCODINGS.items()),
        *(hidden(f"length, {name}", lines, SMUGGLED) for name, lines in LENGTHS.items()),
        hidden("a length that ends in a chunk", (_length("4"), CHUNKED), in_a_chunk),
        hidden("a length of zero after chunks", (CHUNKED, _length("0")), in_a_chunk),
    ]


# Each in the place of the chunk of five bytes.
BROKEN_CHUNKS = {
    "no size": b"\r\nhello",
    "a size that is none": b"z\r\nhello",
    "a negative size": b"-5\r\nhello",
    "a size with a prefix": b"0x5\r\nhello",
    "a huge size": b"fffffffffffffffff\r\nhello",
    "too long": b"2\r\nhello",
    "a size with a sign": b"+5\r\nhello",
    "a line feed after the size": b"5\nhello",
    "a line feed in an extension": b"2;\nxx\r\n%x\r\n0\r\n\r\n%b" % (len(SMUGGLED) + 5, SMUGGLED),
}
# To some programs a line feed ends a line.
LENIENT_CHUNKS = ("too long", "a line feed after the size", "a line feed in an extension")


def _chunked(name: str, body: bytes, content: bytes = b"hello") -> Case:
    case = Case(f"chunks: {name}", "/chunks", "POST", framing=(CHUNKED,), body=body, content=content)
    # The server of the standard library knows no chunks, and this HAProxy could not drop trailers.
    return replace(case, differs={"wsgi": OWN_READING, "haproxy": OWN_REFUSAL})


def _chunks() -> list[Case]:
    return [
        _chunked("one", ONE),
        _chunked("none", b"0\r\n\r\n", b""),
        _chunked("two", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        _chunked("capitals", b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789"),
        _chunked("with zeros before", b"0005\r\nhello\r\n000\r\n\r\n"),
        _chunked("an extension", b"5;a=b\r\nhello\r\n0\r\n\r\n"),
    ]


def _trailers() -> list[Case]:
    """uvicorn adds them to the headers, as it reads them: before or after the middleware has looked."""
    start = b"5\r\nhello\r\n0\r\n"
    claims = _chunked("claims as trailers", start + b"X-Remote-User: evil\r\nX-Remote-Group: evil\r\n\r\n")
    token = _chunked("a token as a trailer", start + b"Authorization: Bearer evil\r\n\r\n")
    unread = {**dict.fromkeys(MIDDLEWARES, OWN_READING), "haproxy": OWN_REFUSAL}
    return [
        _chunked("a trailer", start + b"X-Mine: 1\r\n\r\n"),
        replace(claims, differs={"asgi": PASSES_CLAIM, "wsgi": OWN_READING, "haproxy": OWN_REFUSAL}),
        replace(token, user=None, status=401, alone=True, differs=unread),
    ]


def _broken_chunks() -> list[Case]:
    return [
        replace(
            _chunked(name, chunk + b"\r\n0\r\n\r\n" + SMUGGLED),
            status=400,
            alone=True,
            differs=ONE_READING if name in LENIENT_CHUNKS else REFUSED_HERE,
        )
        for name, chunk in BROKEN_CHUNKS.items()
    ]


def _bodies() -> list[Case]:
    wait = ("Expect", "100-continue")
    return [
        Case("a body with GET", "/m", body=b"hello"),
        Case("a body with DELETE", "/m", "DELETE", body=b"hello"),
        Case("a body with OPTIONS", "/m", "OPTIONS", body=b"hello"),
        Case("no body with POST", "/m", "POST"),
        Case("a large body", "/m", "POST", body=b"x" * 300_000),
        Case("a body, denied", "/denied", "POST", body=b"x" * 2000, status=403, alone=True),
        Case("a body that looks like a request", "/m", "POST", body=SMUGGLED),
        Case(
            "the same length twice",
            "/m",
            "POST",
            body=b"hello",
            framing=(_length("5"), _length("5")),
            status=400,
            alone=True,
            differs=BY_GO,
        ),
        Case("who expects to go on", "/m", "POST", headers=(wait,), body=b"hello"),
        Case("who expects to go on, denied", "/denied", "POST", headers=(wait,), body=b"hello", status=403, alone=True),
        Case("who expects to go on without a body", "/m", headers=(wait,)),
        Case(
            "who expects something else",
            "/m",
            "POST",
            headers=(("Expect", "x"),),
            body=b"hello",
            status=417,
            alone=True,
            differs=REFUSED_HERE | dict.fromkeys(("nginx", "haproxy", *ENVOYS), NORMALISES),
        ),
    ]


def _versions() -> list[Case]:
    old = dict.fromkeys(ENVOYS, OWN_REFUSAL)
    return [
        Case("version 1.0", version="HTTP/1.0", alone=True, differs=old),
        Case("version 1.0, denied", "/denied", version="HTTP/1.0", status=403, alone=True, differs=old),
        Case(
            "version 1.0 with chunks",
            "/m",
            "POST",
            version="HTTP/1.0",
            framing=(CHUNKED,),
            body=ONE,
            status=400,
            alone=True,
            differs=BY_GO,
        ),
        Case("version 0.9", version="HTTP/0.9", status=505, alone=True, differs=REFUSED_HERE | {"haproxy": NORMALISES}),
        Case("version 1.2", version="HTTP/1.2", status=400, alone=True, differs=BY_GO | {"nginx": NORMALISES}),
        Case("version 2.0", version="HTTP/2.0", status=505, alone=True, differs=REFUSED_HERE | {"haproxy": NORMALISES}),
        Case("version in lower case", version="http/1.1", status=400, alone=True, differs=REFUSED_HERE),
        Case("no version", version="", status=400, alone=True, differs=REFUSED_HERE),
        Case("a method in lower case", method="get", status=400, alone=True, differs=REFUSED_HERE),
        Case("two methods", method="GET GET", status=400, alone=True, differs=REFUSED_HERE),
        Case("a method of another", method="PROPFIND", alone=True),
    ]


CASES = [*_conflicts(), *_hidden_requests(), *_chunks(), *_trailers(), *_broken_chunks(), *_bodies(), *_versions()]
