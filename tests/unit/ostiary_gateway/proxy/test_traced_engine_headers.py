"""The trace that a request names is taken out of its headers, and kept with what else they say."""

from __future__ import annotations

import pytest

from ostiary_gateway.http1.headers import BadHeader, Headers
from ostiary_gateway.observability.tracing import TraceContext
from ostiary_gateway.proxy.traced_engine import TracedHeaderFilter, TracedScanned

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01".encode()


def scan(*headers: tuple[bytes, bytes]) -> TracedScanned:
    scanned = TracedHeaderFilter(drop=["X-Employee"]).scan(list(headers))
    assert isinstance(scanned, TracedScanned)
    return scanned


@pytest.mark.parametrize("name", [b"traceparent", b"TraceParent"])
def test_the_trace_does_not_pass_and_the_rest_does(name: bytes) -> None:
    headers: Headers = [
        (b"Accept", b"a/b"),
        (name, PARENT),
        (b"TRACESTATE", b"a=1"),
        (b"Authorization", b"Bearer x"),
        (b"User-Agent", b"curl"),
        (b"Impersonate-User", b"bob"),
        (b"X-Forwarded-For", b"192.0.2.1"),
        (b"X-Employee", b"root"),
        (b"baggage", b"c=2"),
    ]
    scanned = scan(*headers)
    assert scanned.lines == b"Accept: a/b\r\nUser-Agent: curl\r\nbaggage: c=2\r\n"
    assert scanned.incoming == TraceContext(TRACE, SPAN, True, "a=1")
    assert (scanned.authorization, scanned.user_agent) == (b"Bearer x", b"curl")
    assert (scanned.impersonate, scanned.forwarded_for) == ([(b"impersonate-user", b"bob")], [b"192.0.2.1"])


def test_a_trace_that_cannot_be_read_does_not_pass_either() -> None:
    scanned = scan((b"traceparent", b"nonsense"), (b"tracestate", b"a=1"))
    assert (scanned.lines, scanned.incoming) == (b"", None)


def test_headers_that_contradict_each_other_are_refused_as_ever() -> None:
    with pytest.raises(BadHeader):
        scan((b"Authorization", b"Bearer x"), (b"Authorization", b"Bearer y"))


def test_a_client_may_call_its_trace_hop_by_hop() -> None:
    assert scan((b"Connection", b"traceparent"), (b"traceparent", PARENT)).lines == b""
