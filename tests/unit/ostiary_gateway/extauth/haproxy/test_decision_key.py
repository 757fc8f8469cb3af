"""The key of a decision: no two requests have the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.extauth.haproxy.decision_key import decision_key

# HAProxy refuses line feeds wherever they could come from.
PART = st.binary(max_size=12).filter(lambda part: b"\n" not in part)
PARTS = st.tuples(PART, PART, PART, PART)


@given(PARTS, PARTS, PART, PART)
def test_different_requests_have_different_keys(
    first: tuple[bytes, ...], second: tuple[bytes, ...], door: bytes, upstream: bytes
) -> None:
    assert (decision_key(door, upstream, first) == decision_key(door, upstream, second)) == (first == second)
    assert (decision_key(door, upstream, first) == decision_key(upstream, door, first)) == (door == upstream)


def test_the_key_is_the_one_that_haproxy_makes() -> None:
    # As HAProxy 2.6 has printed it.
    parts = (b"GET", b"127.0.0.1:18099", b"/x?y", b"Bearer abc")
    key = "BA2B2E63734FA70E6F000CE6C83594D61C21C909E0522426EFFB1B424B731BA5"
    # The name of the test's door was "door/up" then, without an upstream.
    assert decision_key(b"door/up", parts[0], parts[1:]) == key
