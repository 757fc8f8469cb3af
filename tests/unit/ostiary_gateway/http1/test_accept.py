"""Only what names ``text/html`` and prefers it gets a page."""

from __future__ import annotations

import pytest

from ostiary_gateway.http1.accept import prefers_html


def test_a_page_is_for_those_who_name_html_and_prefer_it(subtests: pytest.Subtests) -> None:
    cases = [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("TEXT/HTML", True),
        ("text/html;q=0.5, application/json;q=0.5", True),
        ("text/html;q=0.4, application/json;q=0.5", False),
        ("text/html;level=1;q=0.4, application/json;q=0.5", False),
        ("application/json, text/html", True),
        ("text/html;q=0", False),
        ("text/html;q=0.000", False),
        ("application/json", False),
        ("*/*", False),
        ("text/*", False),
        ("", False),
        ("text/html;q=high", True),
        (";;,,=", False),
    ]
    for accept, html in cases:
        with subtests.test(accept=accept, html=html):
            assert prefers_html(accept) is html
