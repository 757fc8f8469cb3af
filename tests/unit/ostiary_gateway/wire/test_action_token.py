"""The parameter is put behind a target and taken out again, and nothing else of the target changes. S69."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ostiary_gateway.wire.action_token import (
    PARAMETER,
    add_parameter,
    extra_of,
    is_for,
    names_parameter,
    split_parameter,
    url_digest,
)
from ostiary_gateway.wire.audit_policy import REDACTED, redacted_uri

TOKEN = "eyJh.eyJi.c-_"
QUERIES = st.text("ab=&%+?/;_", max_size=12)
TARGETS = st.one_of(st.just("/x"), QUERIES.map(lambda query: f"/x?{query}"))


@given(TARGETS)
@example("/x?")
@example("/x?&")
@example("/x?a=1&")
def test_what_was_added_is_taken_out_again(target: str) -> None:
    """S69."""
    added = add_parameter(target.encode(), TOKEN)
    assert split_parameter(added) == (target.encode(), [TOKEN.encode()])
    assert split_parameter(target.encode()) == (target.encode(), [])


@given(TARGETS, TARGETS)
def test_two_targets_never_become_one(first: str, second: str) -> None:
    same = add_parameter(first.encode(), TOKEN) == add_parameter(second.encode(), TOKEN)
    assert same == (first == second)


@given(QUERIES, st.integers(1, 3))
def test_every_one_is_taken_out(query: str, times: int) -> None:
    target = b"/x?" + query.encode()
    for _ in range(times):
        target = add_parameter(target, TOKEN)
    rest, values = split_parameter(target)
    assert (values, TOKEN.encode() in rest) == ([TOKEN.encode()] * times, False)


@given(st.text("abo_ ", max_size=4), st.lists(st.booleans(), min_size=len(PARAMETER), max_size=len(PARAMETER)))
def test_the_name_is_noticed_however_it_is_written(before: str, encoded: list[bool]) -> None:
    """S69: as any server would read it."""
    name = "".join(f"%{ord(letter):02X}" if hide else letter for letter, hide in zip(PARAMETER, encoded, strict=True))
    query = f"{quote(before)}=1&{name}=2"
    assert PARAMETER in dict(parse_qsl(query))
    assert names_parameter(query)
    assert names_parameter(name)
    assert not names_parameter(f"x={name}")
    assert not names_parameter(f"x{name}=1")


def test_no_audit_event_shows_it() -> None:
    shown = redacted_uri(add_parameter(b"/x?a=1", "short").decode())
    assert shown == f"/x?a=1&{PARAMETER}={REDACTED}"


def test_it_is_for_one_method_and_one_url(subtests: pytest.Subtests) -> None:
    """S69."""
    cases: list[tuple[dict[str, object], str, bytes, bool]] = [
        ({}, "GET", b"https://a/x", True),
        ({}, "HEAD", b"https://a/x", False),
        ({}, "GET", b"https://a/x?", False),
        ({"method": "HEAD"}, "HEAD", b"https://a/x", True),
        ({"method": "POST"}, "POST", b"https://a/x", False),
        ({"method": None}, "GET", b"https://a/x", False),
        ({"url": 1}, "GET", b"https://a/x", False),
    ]
    for changes, method, url, good in cases:
        with subtests.test(changes=changes, method=method, url=url, good=good):
            claims = {"method": "GET", "url": url_digest(b"https://a/x"), **changes}
            assert is_for(claims, method=method, url=url) is good


def test_extra_is_lists_of_texts() -> None:
    assert extra_of({}) == ()
    assert extra_of({"extra": {"a": ["1", "2"]}}) == (("a", ("1", "2")),)
    for wrong in list[object](([], "a", {"a": "1"}, {"a": [1]})):
        with pytest.raises(ValueError, match="extra"):
            extra_of({"extra": wrong})
