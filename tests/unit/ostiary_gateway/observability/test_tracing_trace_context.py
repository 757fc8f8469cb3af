"""W3C Trace Context: the cases of the specification, and whatever else a client may write there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.observability.tracing import TraceContext, read_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def read(*lines: str) -> TraceContext | None:
    headers = [tuple(line.encode("latin-1").split(b": ", 1)) for line in lines]
    return read_context([(name, value) for name, value in headers])


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("03", True), ("ff", True)])
def test_the_parent_says_the_trace_the_span_and_whether_it_is_recorded(flags: str, sampled: bool) -> None:
    assert read("Host: x", f"traceparent: 00-{TRACE}-{SPAN}-{flags}") == TraceContext(TRACE, SPAN, sampled)


def test_what_cannot_be_read_counts_as_absent(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        TRACE,
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-001",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN[1:]}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
    ]
    for value in cases:
        with subtests.test(value=value):
            assert read(f"traceparent: {value}") is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert read(f"traceparent: 01-{TRACE}-{SPAN}-01-more") == TraceContext(TRACE, SPAN, True)
    assert read(f"traceparent: cc-{TRACE}-{SPAN}-00") == TraceContext(TRACE, SPAN, False)
    assert read(f"traceparent: cc-{TRACE}-{SPAN}-01.more") is None


def test_names_have_any_case_and_values_blanks_around_them() -> None:
    assert read(f"TraceParent:   00-{TRACE}-{SPAN}-01\t", "TRACESTATE: a=1") == TraceContext(TRACE, SPAN, True, "a=1")


def test_two_parents_are_none() -> None:
    assert read(f"traceparent: 00-{TRACE}-{SPAN}-01", f"traceparent: 00-{TRACE}-{SPAN}-01") is None


def test_a_state_without_a_parent_says_nothing() -> None:
    assert read("tracestate: a=1") is None


def test_the_state_passes_whole_or_not_at_all(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["a=1"], "a=1"),
        (["a=1,b=2", "c=3"], "a=1,b=2,c=3"),
        (["a=1 , b=2"], "a=1,b=2"),
        (["a=1,,b=2"], "a=1,b=2"),
        ([""], ""),
        (["tenant@system=x y/z"], "tenant@system=x y/z"),
        (["A=1"], ""),
        (["a"], ""),
        (["a="], ""),
        (["a=1=2"], ""),
        (["a=\xe4"], ""),
        (["=1"], ""),
        ([",".join(f"k{number}=v" for number in range(32))], ",".join(f"k{number}=v" for number in range(32))),
        ([",".join(f"k{number}=v" for number in range(33))], ""),
        (["a=" + "x" * 250 + ",b=" + "x" * 257], ""),
        (["a=" + "x" * 252 + ",b=" + "x" * 255], "a=" + "x" * 252 + ",b=" + "x" * 255),
        (["a=" + "x" * 253 + ",b=" + "x" * 255], ""),
    ]
    for lines, state in cases:
        with subtests.test(lines=lines, state=state):
            context = read(f"traceparent: 00-{TRACE}-{SPAN}-01", *(f"tracestate: {line}" for line in lines))
            assert context == TraceContext(TRACE, SPAN, True, state)


def test_what_is_written_can_be_read() -> None:
    assert TraceContext(TRACE, SPAN, True, "a=1").lines() == (
        f"traceparent: 00-{TRACE}-{SPAN}-01\r\ntracestate: a=1\r\n".encode()
    )
    assert TraceContext(TRACE, SPAN, False).lines() == f"traceparent: 00-{TRACE}-{SPAN}-00\r\n".encode()


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_nothing_that_a_client_writes_gives_a_second_line(parent: bytes, state: bytes) -> None:
    headers = [(b"traceparent", parent), (b"tracestate", state)]
    for context in (
        read_context(headers),
        read_context([(b"traceparent", f"00-{TRACE}-{SPAN}-01".encode()), headers[1]]),
    ):
        if context is not None:
            lines = context.lines()
            assert lines.count(b"\r\n") == 1 + bool(context.state)
            assert lines.isascii()
