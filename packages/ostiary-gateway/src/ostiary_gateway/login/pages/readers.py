"""Theme and language of pages: the operator's branding, and the language chosen by the user or their browser.

A link ``?language=de`` sets a cookie and redirects to the same URL without the parameter. Only the language depends on
the cookie, so any site may trigger it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote, urlencode

from ostiary.core.languages import preferred
from ostiary_gateway.config.branding import DEFAULT_LOOK, Branding
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.cookies import Cookie
from ostiary_gateway.login.pages.page import reading
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.visit import Visit, only

PARAMETER = "language"
KEPT_SECONDS = 365 * 24 * 3600


class Readers:
    """The language and branding in which pages are rendered."""

    def __init__(self, look: Branding = DEFAULT_LOOK, *, secure: bool) -> None:
        self._look = look
        self._offered = look.languages
        self._cookie = Cookie("language", secure=secure)

    def language(self, request: LoginRequest) -> str:
        chosen = self._cookie.of(request)
        return chosen if chosen in self._offered else preferred(request.header("accept-language") or "", self._offered)

    @contextmanager
    def reading(self, request: LoginRequest, *, linked: bool = True) -> Iterator[None]:
        """Render pages in the language of *request* until the block ends.

        With *linked* they offer the other languages.
        """
        addresses = {language: _address(request, language) for language in self._offered} if linked else {}
        with reading(self._look, self.language(request), addresses):
            yield

    def choice(self, visit: Visit) -> LoginAnswer | None:
        """Return the redirect that stores a chosen language. None if the request chooses none."""
        request = visit.request
        chosen = only(request.query, PARAMETER)
        if chosen not in self._offered or not visit.html or request.method != "GET" or _is_return(request.path):
            return None
        cookie = self._cookie.set(chosen, seconds=KEPT_SECONDS)
        return answers.redirect(_address(request, None), 303).with_headers(cookie)


def _is_return(path: str) -> bool:
    """Report whether an IdP redirects users to this path with its own parameters."""
    return path.endswith("/provider") or (path.endswith("/logout") and path != "/auth/logout")


def _address(request: LoginRequest, language: str | None) -> str:
    """Return the URL of the page in *language*, without form data and parameters of an IdP."""
    path, query = request.path, list(request.query)
    if _is_return(path):
        path, query = "/auth", []
    if request.method not in ("GET", "HEAD"):
        query = []
    query = [(name, value) for name, value in query if name != PARAMETER]
    query += [] if language is None else [(PARAMETER, language)]
    return quote(path) + (f"?{urlencode(query)}" if query else "")
