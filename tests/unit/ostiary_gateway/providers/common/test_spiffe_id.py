"""Which texts are SPIFFE IDs of workloads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.providers.common.spiffe_id import SpiffeId, parse_spiffe_id


def test_a_spiffe_id_is_read_as_the_standard_says(subtests: pytest.Subtests) -> None:
    cases: list[tuple[object, SpiffeId | None]] = [
        ("spiffe://example.org/ns/shop/sa/deployer", SpiffeId("example.org", "/ns/shop/sa/deployer")),
        ("spiffe://a_b-c.1/x._-9", SpiffeId("a_b-c.1", "/x._-9")),
        ("spiffe://example.org", None),
        ("spiffe://example.org/", None),
        ("spiffe:///path", None),
        ("spiffe://EXAMPLE.org/a", None),
        ("SPIFFE://example.org/a", None),
        ("https://example.org/a", None),
        ("spiffe://example.org:80/a", None),
        ("spiffe://user@example.org/a", None),
        ("spiffe://example.org/a/", None),
        ("spiffe://example.org/a//b", None),
        ("spiffe://example.org/a/../b", None),
        ("spiffe://example.org/./b", None),
        ("spiffe://example.org/a%2fb", None),
        ("spiffe://example.org/a?b", None),
        ("spiffe://example.org/a#b", None),
        ("spiffe://example.org/é", None),
        ("spiffe://example.org/a\n", None),
        ("spiffe://" + "a" * 256 + "/a", None),
        ("spiffe://example.org/" + "a" * 2048, None),
        (7, None),
    ]
    for text, identity in cases:
        with subtests.test(text=text, identity=identity):
            assert parse_spiffe_id(text) == identity


@given(st.text(max_size=40))
def test_a_spiffe_id_is_written_as_it_was_read(rest: str) -> None:
    identity = parse_spiffe_id(f"spiffe://{rest}")
    assert identity is None or str(identity) == f"spiffe://{rest}"
