"""What can be told of a request to /auth before anybody is asked."""

from __future__ import annotations

import pytest

from ostiary.gateway.login.visit import wants_html
from ostiary.interfaces.identity import LoginRequest


@pytest.mark.parametrize(
    ("accept", "html"),
    [
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
    ],
)
def test_only_browsers_get_pages(accept: str, html: bool) -> None:
    assert wants_html(LoginRequest("GET", "/auth", headers=(("accept", accept),))) is html
