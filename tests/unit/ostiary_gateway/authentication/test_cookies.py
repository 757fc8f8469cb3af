from __future__ import annotations

import pytest

from ostiary_gateway.authentication.cookies import BrowserRequest, browser_request
from ostiary_gateway.http1.headers import Headers

ORIGIN = "https://wiki.test"
HTML = (b"Accept", b"text/html,*/*;q=0.8")


def request(*headers: tuple[bytes, bytes], method: bytes = b"GET", upgrade: bytes = b"") -> BrowserRequest:
    given: Headers = list(headers)
    return browser_request(method, given, upgrade=upgrade)


@pytest.mark.parametrize("dest", [b"document", b"iframe", b"frame"])
def test_a_browser_that_opens_a_page_navigates(dest: bytes) -> None:
    modern = ((b"sec-fetch-mode", b"navigate"), (b"Sec-Fetch-Dest", dest))
    assert request(HTML, *modern).is_navigation
    assert request(HTML, *modern, method=b"HEAD").is_navigation
    assert request(HTML).is_navigation, "a browser that does not tell"
    posted = request(HTML, *modern, method=b"POST")
    assert (posted.is_navigation, posted.shows_page) == (False, True)


def test_programs_scripts_and_parts_of_pages_do_not(subtests: pytest.Subtests) -> None:
    cases = [
        [],
        [(b"Accept", b"*/*")],
        [(b"Accept", b"application/json, text/html;q=0.5")],
        [HTML, (b"Sec-Fetch-Mode", b"cors")],
        [HTML, (b"Sec-Fetch-Mode", b"no-cors")],
        [HTML, (b"Sec-Fetch-Mode", b"navigate"), (b"Sec-Fetch-Mode", b"cors")],
        [HTML, (b"Sec-Fetch-Dest", b"empty")],
        [HTML, (b"Sec-Fetch-Dest", b"embed")],
        [HTML, (b"Sec-Fetch-Dest", b"script")],
    ]
    for headers in cases:
        with subtests.test(headers=headers):
            assert not request(*headers).shows_page


def test_an_upgrade_is_no_page() -> None:
    assert not request(HTML, upgrade=b"websocket").shows_page


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS"])
def test_what_changes_nothing_may_come_from_anywhere(method: bytes) -> None:
    assert request((b"Origin", b"https://evil.test"), (b"Sec-Fetch-Site", b"cross-site"), method=method).is_from(ORIGIN)


def test_what_changes_something_must_come_from_the_application(subtests: pytest.Subtests) -> None:
    cases = [
        ([(b"Origin", b"https://wiki.test")], True),
        ([(b"origin", b"https://WIKI.test"), (b"Sec-Fetch-Site", b"same-origin")], True),
        ([(b"Origin", b"https://wiki.test"), (b"Sec-Fetch-Site", b"same-site")], False),
        ([(b"Origin", b"https://wiki.test"), (b"Sec-Fetch-Site", b"cross-site")], False),
        ([(b"Origin", b"https://wiki.test"), (b"Sec-Fetch-Site", b"same-origin"), (b"Sec-Fetch-Site", b"x")], False),
        ([(b"Origin", b"https://wiki.test"), (b"Origin", b"https://wiki.test")], False),
        ([(b"Origin", b"https://wiki.test.evil.test")], False),
        ([(b"Origin", b"null")], False),
        ([(b"Sec-Fetch-Site", b"same-origin")], False),
        ([], False),
    ]
    for headers, own in cases:
        with subtests.test(headers=headers, own=own):
            for method in (b"POST", b"PUT", b"PATCH", b"DELETE", b"PROPFIND"):
                assert request(*headers, method=method).is_from(ORIGIN) is own
            assert request(*headers, upgrade=b"websocket").is_from(ORIGIN) is own
