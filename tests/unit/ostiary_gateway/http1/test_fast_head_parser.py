"""Whole heads: what is known of them is result, belongs to somebody, and is bounded."""

from __future__ import annotations

from hashlib import sha256

from ostiary_gateway.http1.fast_head_parser import BLOCK_BYTES_PER_OWNER, WholeHeads
from ostiary_gateway.http1.request_head import RequestHead, ServerLimits

LIMITS = ServerLimits()


def head(target: str = "/x", *lines: str) -> bytes:
    return "\r\n".join((f"GET {target} HTTP/1.1", "Host: gateway.test", *lines, "", "")).encode()


def read(heads: WholeHeads, data: bytes, limits: ServerLimits = LIMITS) -> tuple[RequestHead, bytes]:
    result = heads.read_new(data, sha256(data).digest(), limits)
    assert result is not None
    return result


def keep(heads: WholeHeads, data: bytes, *, owner: str = "alice") -> RequestHead:
    """As a handler that wants to see both again, and forwards every trace id."""
    request, _ = read(heads, data)
    assert request.block is not None
    request.known, request.known_owner, request.takes_traces = "head", owner, True
    request.block.known, request.block.known_owner = "lines", owner
    request.traces = b""
    heads.keep(data, request)
    return request


def test_a_head_is_found_with_other_trace_ids() -> None:
    heads = WholeHeads()
    kept = keep(heads, head("/x", "Traceparent: 1", "X-Own: y"))
    assert read(heads, head("/x", "Traceparent: 2", "X-Own: y")) == (kept, b"Traceparent: 2\r\n")
    assert read(heads, head("/x", "X-Own: y", "b3: 0", "Tracestate: a"))[0] is kept
    assert heads.find(sha256(head("/x", "X-Own: y")).digest()) is kept


def test_a_head_that_takes_no_trace_ids_is_not() -> None:
    heads = WholeHeads()
    kept = keep(heads, head("/x"))
    kept.takes_traces = False
    assert read(heads, head("/x", "Traceparent: 2"))[0] is not kept


def test_header_lines_are_found_with_another_request_line() -> None:
    heads = WholeHeads()
    keep(heads, head("/x", "X-Own: y"))
    request, lines = read(heads, head("/z?a", "Traceparent: 3", "X-Own: y"))
    assert request.block is not None
    assert (request.block.known, request.known, lines) == ("lines", None, b"Traceparent: 3\r\n")
    assert (request.method, request.target, request.host, request.bare) == (b"GET", b"/z?a", b"gateway.test", True)
    assert request.headers == [(b"Host", b"gateway.test"), (b"Traceparent", b"3"), (b"X-Own", b"y")], "read when wanted"


def test_known_lines_do_not_make_a_bad_request_line_a_good_one() -> None:
    heads = WholeHeads()
    keep(heads, head("/x"))
    for line in (
        b"GET /x HTTP/1.0",
        b"GET  /x HTTP/1.1",
        b"TRACE /x HTTP/1.1",
        b"GET x HTTP/1.1",
        b"GET /\xe9 HTTP/1.1",
    ):
        data = line + b"\r\nHost: gateway.test\r\n\r\n"
        assert heads.read_new(data, sha256(data).digest(), LIMITS) is None


def test_one_owner_evicts_only_their_own_lines() -> None:
    heads = WholeHeads()
    keep(heads, head("/x", "X-Own: alice"))
    for number in range(1000):
        keep(heads, head("/x", f"X-Own: {number:03000}"), owner="mallory")
    assert 0 < len(heads.blocks) < 400
    assert heads.blocks._blocks.held <= 2 * BLOCK_BYTES_PER_OWNER
    request, _ = read(heads, head("/other", "X-Own: alice"))
    assert request.block is not None
    assert request.block.known == "lines"
    heads.clear()
    assert (len(heads.blocks), len(heads.known)) == (0, 0)
