"""What every page of the gateway must hold to: nothing is loaded from elsewhere, and no script but ours runs."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from ostiary_gateway.login.responses import LoginAnswer
from tests.unit.ostiary_gateway.signing_in import (
    text_of,
)

KNOWN_TAGS = {
    *("select", "option"),
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "body",
        "header",
        "nav",
        "main",
        "script",
        "details",
        "summary",
        "footer",
    ),
    *("h1", "h2", "h3", "p", "b", "a", "div", "span", "ul", "li", "dl", "dt", "dd", "pre", "code", "time"),
    *("table", "caption", "thead", "tbody", "tr", "th", "td", "template"),
    *("img", "svg", "path", "circle", "rect"),
    *("form", "label", "input", "button", "summary"),
}


class Tags(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def assert_is_safe_page(answer: LoginAnswer, *, connects: bool = False) -> None:
    """Nothing is kept, framed, loaded from elsewhere or run but what we wrote. Scripts ask nobody, or only us."""
    policy = answer.header("Content-Security-Policy") or ""
    (nonce,) = set(re.findall(r"nonce-([\w-]{20,})'", policy))
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert "base-uri 'none'" in policy
    assert "unsafe" not in policy
    assert policy.partition("connect-src ")[2] == ("'self'" if connects else "")
    assert answer.header("X-Frame-Options") == "DENY"
    assert answer.header("Cache-Control") == "no-store"
    assert answer.header("Referrer-Policy") in ("no-referrer", "same-origin")
    assert answer.header("X-Content-Type-Options") == "nosniff"
    assert answer.header("Content-Type") == "text/html; charset=utf-8"
    page = text_of(answer)
    assert page.startswith('<!doctype html>\n<html lang="en">')
    elements = re.findall(r"<(?:script|style)[^>]*>", page)
    assert [element.partition(" data-")[0].rstrip(">") for element in elements] == [
        f'<style nonce="{nonce}"',
        f'<script nonce="{nonce}"',
    ]
    tags = Tags()
    tags.feed(page)
    assert {tag for tag, _ in tags.seen} <= KNOWN_TAGS
    for tag, attributes in tags.seen:
        if tag == "link":
            assert attributes["rel"] == "icon"
            assert (attributes["href"] or "").startswith("data:image/svg+xml,")
            continue
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert "src" not in attributes or (attributes["src"] or "").startswith("data:image/")
        for name in ("href", "action"):
            assert (attributes.get(name) or "/auth").startswith(("/auth", "#main", "https://g.test/"))
    assert "{{" not in page.replace("{{form_token}}", "")
