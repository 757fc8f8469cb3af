"""Which language a page is in: chosen on a page, asked for by the browser, or the first that is offered."""

from __future__ import annotations

import pytest

from ostiary.core.languages import LONGEST_ACCEPT, preferred
from ostiary_gateway.config.branding import DEFAULT_LOOK
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.login.pages.markup import NOTHING
from ostiary_gateway.login.pages.messages import spoken
from ostiary_gateway.login.pages.page import page, reading
from ostiary_gateway.login.pages.readers import Readers
from ostiary_gateway.login.visit import Visit

READERS = Readers(secure=True)


def test_the_browser_asks_for_a_language(subtests: pytest.Subtests) -> None:
    cases = [
        ("", "en"),
        ("de", "de"),
        ("de-AT,de;q=0.9,en;q=0.8", "de"),
        ("en;q=0.8, de;q=0.9", "de"),
        ("fr, de;q=0.5", "de"),
        ("fr", "en"),
        ("*", "en"),
        ("de;q=0", "en"),
        ("de;q=2, en;q=0.1", "en"),
        ("de;q=x", "en"),
        ("de;q=nan", "en"),
        (" DE ; Q=0.7 ", "de"),
        (";;;,,,=", "en"),
        ("fr," * LONGEST_ACCEPT + "de", "en"),
    ]
    for accepted, language in cases:
        with subtests.test(accepted=accepted, language=language):
            assert preferred(accepted, ("en", "de")) == language


def test_the_first_that_is_offered_is_for_everybody_else() -> None:
    assert preferred("fr", ("de", "en")) == "de"
    assert preferred("en", ("de",)) == "de"


def test_what_a_person_has_chosen_goes_before_what_the_browser_asks_for() -> None:
    headers = (("cookie", "__Host-ostiary-language=de"), ("accept-language", "en"))
    assert READERS.language(LoginRequest("GET", "/auth", headers=headers)) == "de"
    unknown = (("cookie", "__Host-ostiary-language=../../x"), ("accept-language", "de"))
    assert READERS.language(LoginRequest("GET", "/auth", headers=unknown)) == "de"


def test_a_link_sets_the_cookie_and_leads_to_the_same_page() -> None:
    request = LoginRequest("GET", "/auth/cli", query=(("port", "8000"), ("language", "de"), ("client", "a&b")))
    answer = READERS.choice(Visit(request, html=True))
    assert answer is not None
    assert (answer.status, answer.header("Location")) == (303, "/auth/cli?port=8000&client=a%26b")
    cookie = answer.header("Set-Cookie") or ""
    assert cookie.startswith("__Host-ostiary-language=de; Max-Age=31536000; ")
    assert "HttpOnly" in cookie


@pytest.mark.parametrize(
    ("method", "language", "html"), [("POST", "de", True), ("GET", "xx", True), ("GET", "de", False)]
)
def test_nothing_else_is_a_choice(method: str, language: str, html: bool) -> None:
    request = LoginRequest(method, "/auth", query=(("language", language),))
    assert READERS.choice(Visit(request, html=html)) is None


@pytest.mark.parametrize("path", ["/auth/staff/provider", "/auth/staff/logout"])
def test_what_an_identity_system_sends_is_left_alone_and_not_sent_again(path: str) -> None:
    request = LoginRequest("GET", path, query=(("code", "c0de"), ("language", "de")))
    assert READERS.choice(Visit(request, html=True)) is None
    with READERS.reading(request):
        body = page("Title", NOTHING).body.decode()
    assert 'href="/auth?language=de"' in body
    assert "c0de" not in body


def test_what_a_form_has_sent_is_not_sent_again() -> None:
    with READERS.reading(LoginRequest("POST", "/auth/device", query=(("a", "b"),), form=(("code", "secret"),))):
        assert 'href="/auth/device?language=de"' in page("Title", NOTHING).body.decode()


def test_a_page_that_shows_something_once_leads_to_no_other_language() -> None:
    with READERS.reading(LoginRequest("GET", "/auth/token")):
        assert "language=" in page("Title", NOTHING).body.decode()
        assert "language=" not in page("Title", NOTHING, private=True).body.decode()


def test_the_language_holds_until_the_block_ends() -> None:
    with READERS.reading(LoginRequest("GET", "/auth", headers=(("accept-language", "de"),))):
        assert spoken() == "de"
    assert spoken() == "en"


@pytest.mark.parametrize(("languages", "offered"), [((), False), (("en",), False), (("en", "de"), True)])
def test_a_single_language_is_no_choice(languages: tuple[str, ...], offered: bool) -> None:
    with reading(DEFAULT_LOOK, "en", {language: f"/auth?language={language}" for language in languages}):
        body = page("Title", NOTHING).body.decode()
    assert ("<nav" in body, "<footer" in body) == (offered, offered)
