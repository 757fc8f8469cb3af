"""What can be told of a request to /auth before anybody is asked."""

from __future__ import annotations

import base64

import pytest

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.login.visit import (
    AddressLimit,
    bearer,
    browser_text,
    claimed_name,
    client_text,
    comes_from,
    has_form_token,
    is_page_load,
    only,
    secrets_in,
    wants_html,
)
from ostiary_gateway.testing import FakeClock


def test_only_browsers_get_pages(subtests: pytest.Subtests) -> None:
    cases = [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("text/html", True),
        ("TEXT/HTML; charset=x", True),
        ("application/json, text/html", True),
        ("application/json, text/html;q=0.9", False),
        ("text/html;q=0", False),
        ("text/html;q=0.000, */*", False),
        ("application/json", False),
        ("*/*", False),
        ("text/*", False),
        ("", False),
        ("text/htmlx", False),
        ("text/html;q=nonsense", True),
        (";;;,,,q=", False),
    ]
    for accept, html in cases:
        with subtests.test(accept=accept, html=html):
            assert wants_html(LoginRequest("GET", "/auth", headers=(("accept", accept),))) is html


ORIGIN = "https://gw.example.com"


def request(*headers: tuple[str, str], **form: str) -> LoginRequest:
    return LoginRequest("POST", "/auth", headers=headers, form=tuple(form.items()), remote_address="192.0.2.1")


def test_a_form_is_ours_unless_a_browser_says_otherwise(subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[tuple[str, str], ...], bool]] = [
        ((), True),
        ((("origin", ORIGIN),), True),
        ((("origin", "HTTPS://GW.example.com"),), True),
        ((("origin", "null"),), False),
        ((("origin", ORIGIN), ("origin", "https://evil.test")), False),
        ((("sec-fetch-site", "same-origin"),), True),
        ((("sec-fetch-site", "same-site"),), False),
        ((("origin", ORIGIN), ("sec-fetch-site", "cross-site")), False),
    ]
    for headers, ours in cases:
        with subtests.test(headers=headers, ours=ours):
            assert comes_from(request(*headers), ORIGIN) is ours


def test_what_a_script_fetches_is_no_page_load() -> None:
    assert is_page_load(request())
    assert is_page_load(request(("sec-fetch-mode", "navigate")))
    assert not is_page_load(request(("sec-fetch-mode", "cors")))
    assert not is_page_load(request(("sec-fetch-mode", "navigate"), ("sec-fetch-mode", "cors")))


@pytest.mark.parametrize(
    ("headers", "token", "good"),
    [
        ((("origin", ORIGIN),), "secret", True),
        ((), "secret", False),
        ((("origin", ORIGIN),), "other", False),
        ((("origin", ORIGIN),), "", False),
        ((("origin", ORIGIN),), "\ud800", False),
    ],
)
def test_a_change_needs_the_form_token_and_an_origin(
    headers: tuple[tuple[str, str], ...], token: str, good: bool
) -> None:
    assert has_form_token(request(*headers, form_token=token), "secret") is good


def test_a_field_that_is_given_twice_or_is_empty_is_none() -> None:
    assert only((("a", "1"), ("b", "2")), "a") == "1"
    assert only((("a", "1"), ("a", "1")), "a") is None
    assert only((("a", ""),), "a") is None


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer abc", "abc"), ("bearer  abc ", "abc"), ("Bearer", None), ("Basic abc", None), ("", None)],
)
def test_a_bearer_token_is_read_whatever_the_case_of_its_scheme(header: str, token: str | None) -> None:
    assert bearer(request(("authorization", header))) == token


def test_every_place_where_a_secret_can_be_is_looked_at() -> None:
    basic = base64.b64encode(b"alice:hunter2").decode()
    visit = request(
        ("authorization", f"Basic {basic}"),
        ("cookie", "a=cookie-secret; b=x"),
        ("user-agent", "a-browser-name"),
        username="alice",
        password="pw",
        code="the-code",
    )
    secrets = set(secrets_in(visit))
    assert {"hunter2", "alice:hunter2", basic, "cookie-secret", "pw", "the-code"} <= secrets
    assert not {"a-browser-name", "alice", "x", ""} & secrets


def test_a_claimed_name_comes_from_the_form_or_from_basic() -> None:
    basic = base64.b64encode(b"bob:pw").decode()
    assert claimed_name(request(username="alice")) == "alice"
    assert claimed_name(request(("authorization", f"Basic {basic}"))) == "bob"
    assert claimed_name(request(("authorization", "Basic !"))) == ""


@pytest.mark.parametrize(
    ("agent", "text"),
    [
        ("Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0", "Firefox on Linux from 192.0.2.1"),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/130 Safari/537 Edg/130", "Edge on Windows from 192.0.2.1"),
        ("Mozilla/5.0 (Macintosh; Mac OS X) Version/18 Safari/605", "Safari on macOS from 192.0.2.1"),
        ("curl/8\x00.1", "curl/8.1 from 192.0.2.1"),
        ("", "from 192.0.2.1"),
    ],
)
def test_a_session_is_described_by_its_browser_and_system(agent: str, text: str) -> None:
    assert browser_text(request(("user-agent", agent))) == text


def test_the_description_of_a_client_is_bounded() -> None:
    assert client_text(request(), "x" * 1000) == "x" * 120 + " from 192.0.2.1"


def test_an_address_waits_when_its_limit_is_reached(clock: FakeClock) -> None:
    limit = AddressLimit(Buckets(1.0, 2.0, clock=clock, counts=None, name="test"))
    assert [limit.wait(request()) for _ in range(2)] == [0.0, 0.0]
    assert limit.wait(request()) > 0
    clock.advance(seconds=1)
    assert limit.wait(request()) == 0.0
