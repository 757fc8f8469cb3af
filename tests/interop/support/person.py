"""A person at a browser, as far as identity systems need one: forms are filled in, redirects followed, cookies kept.

No script runs. The pages of Keycloak and Dex can be used without.
"""

from __future__ import annotations

import html
import re
import ssl
from urllib.parse import urljoin

import httpx

SECONDS = 60.0
_FORM = re.compile(r'<form[^>]*\baction="([^"]*)"', re.DOTALL)
_LINK = re.compile(r'<a\b[^>]*\bhref="([^"]+)"[^>]*>(.*?)</a>', re.DOTALL)
_REFRESH = re.compile(r'http-equiv="refresh" content="0; url=([^"]+)"')
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')


class Person:
    """Fills in forms, and follows redirects with the cookies of both sides."""

    def __init__(self, trust: ssl.SSLContext) -> None:
        self.http = httpx.Client(verify=trust, follow_redirects=True, timeout=SECONDS, trust_env=False)

    def sign_in(self, begin: str, name: str, password: str) -> httpx.Response:
        """Go to *begin*, type name and password where they are asked for, and return to whoever wanted it."""
        return self.submit(self.http.get(begin), username=name, password=password)

    def submit(self, page: httpx.Response, **fields: str) -> httpx.Response:
        """Fill in the only form of *page*, with its hidden fields."""
        match = _FORM.search(page.text)
        assert match is not None, f"{page.url}: {page.status_code}\n{page.text[:2000]}"
        target = urljoin(str(page.url), html.unescape(match[1]))
        return self.http.post(target, data={**hidden_fields(page.text), **fields})

    def link(self, page: httpx.Response, text: str) -> str:
        """Where the link with *text* in it leads."""
        (target,) = {target for target, shown in _LINK.findall(page.text) if text in shown}
        return urljoin(str(page.url), html.unescape(target))

    def follow_refresh(self, page: httpx.Response) -> httpx.Response:
        """Go where *page* leads by itself: browsers do not let a form end on another site."""
        match = _REFRESH.search(page.text)
        assert match is not None, f"{page.url}: {page.status_code}\n{page.text[:2000]}"
        return self.http.get(html.unescape(match[1]))

    def close(self) -> None:
        self.http.close()


def hidden_fields(text: str) -> dict[str, str]:
    inputs = re.findall(r"<input\b[^>]*>", text, re.IGNORECASE)
    attributes = [{name.lower(): html.unescape(value) for name, value in _ATTRIBUTE.findall(each)} for each in inputs]
    return {each["name"]: each.get("value", "") for each in attributes if each.get("type", "").lower() == "hidden"}
