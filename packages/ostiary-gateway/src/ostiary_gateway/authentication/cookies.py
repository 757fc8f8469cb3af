"""Browser requests to web applications: page loads, the requesting site, and the session cookie.

Browsers set ``Origin`` and ``Sec-Fetch-*`` themselves, and pages cannot change them (Fetch Metadata, W3C; RFC 6454).
"""

from __future__ import annotations

from dataclasses import dataclass

from ostiary.model import Secret
from ostiary_gateway.http1.accept import prefers_html
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.sessions import APPLICATION_PREFIX, application_digest, well_formed

SAFE_METHODS = frozenset((b"GET", b"HEAD", b"OPTIONS"))
_PAGES = frozenset((b"document", b"iframe", b"frame"))
# The headers that are evaluated. For external authorization, the proxy must send them.
BROWSER_HEADERS = (b"origin", b"accept", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"service-worker")
_NAMES = frozenset(BROWSER_HEADERS)
_OWN_SITE = frozenset((b"same-origin", b"none"))


@dataclass(frozen=True, slots=True)
class BrowserRequest:
    """A request of a browser.

    `shows_page`: the response is displayed as a page. `starts_worker`: it loads the script of a service worker.
    """

    method: bytes
    is_upgrade: bool
    shows_page: bool
    starts_worker: bool
    origins: tuple[bytes, ...]
    sites: tuple[bytes, ...]

    @property
    def is_navigation(self) -> bool:
        """Whether the browser opens a page, so that it can be redirected to another one and back."""
        return self.shows_page and self.method in (b"GET", b"HEAD")

    def is_from(self, origin: str) -> bool:
        """Whether a page of *origin* has sent the request. Required for requests that are not safe.

        The cookie alone proves nothing: browsers send it with requests of all pages of the same site, which includes
        any other application of the same domain (SameSite=Lax).
        """
        if self.method in SAFE_METHODS and not self.is_upgrade:
            return True
        own = origin.encode()
        # Browsers send Origin with all unsafe requests; without it, the request is not from a page of ours.
        return len(self.origins) == 1 and self.origins[0].lower() == own and _OWN_SITE.issuperset(self.sites)


def browser_request(method: bytes, headers: Headers, *, upgrade: bytes = b"") -> BrowserRequest:
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in _NAMES:
            values.setdefault(lower, []).append(value.strip(b" \t"))
    modes, destinations = values.get(b"sec-fetch-mode", []), values.get(b"sec-fetch-dest", [])
    accept = b",".join(values.get(b"accept", [])).decode("latin-1")
    shows_page = (
        not upgrade
        and all(mode == b"navigate" for mode in modes)
        and _PAGES.issuperset(destinations)
        and prefers_html(accept)
    )
    return BrowserRequest(
        method,
        bool(upgrade),
        shows_page,
        b"service-worker" in values,
        tuple(values.get(b"origin", ())),
        tuple(values.get(b"sec-fetch-site", ())),
    )


# The cookie of a web application:
#
#     __Host-ostiary-app-<upstream>=<token>          or  <token>.<keeping secret>
#
# It is never forwarded to an upstream (`http1.headers.OUR_COOKIES`). The keeping secret decrypts the data that the
# identity provider stores for the session, so that its user can be checked again.

# The length of a derived key in base64: see `sessions.keeping_secret`.
_KEEPING_LENGTH = 44


@dataclass(frozen=True, slots=True)
class PresentedCookie:
    """The session token of one application. `digest` is its key in the store."""

    digest: bytes
    token: Secret
    keeping: Secret | None = None


def cookie_name(application: str, *, secure: bool) -> str:
    return f"{'__Host-' if secure else ''}ostiary-app-{application}"


def cookie_value(token: Secret, keeping: Secret | None) -> str:
    return token.reveal() if keeping is None else f"{token.reveal()}.{keeping.reveal()}"


def presented_cookie(headers: Headers, application: str, *, secure: bool) -> PresentedCookie | None:
    """Return the token for *application*; None if there is none, or several, because another site may have set one."""
    name = cookie_name(application, secure=secure).encode()
    values = [
        value
        for header, cookies in headers
        if header.lower() == b"cookie"
        for key, equals, value in (part.strip().partition(b"=") for part in cookies.split(b";"))
        if key == name and equals
    ]
    if len(values) != 1:
        return None
    token, dot, keeping = values[0].partition(b".")
    if not well_formed(token, APPLICATION_PREFIX) or (dot and len(keeping) != _KEEPING_LENGTH):
        return None
    secret = Secret(keeping.decode("latin-1")) if dot else None
    return PresentedCookie(application_digest(token, application), Secret(token.decode("ascii")), secret)
