"""What the headers of a request say of the browser that sends it: a page load, and from which site. Pure.

Called by the engine for requests to web applications. Browsers set ``Origin`` and ``Sec-Fetch-*`` themselves, and no
page can change them (Fetch Metadata, W3C; RFC 6454).
"""

from __future__ import annotations

from dataclasses import dataclass

from ostiary.model import Secret
from ostiary_gateway.http1.accept import prefers_html
from ostiary_gateway.http1.headers import Headers
from ostiary_gateway.sessions import APPLICATION_PREFIX, application_digest, well_formed

SAFE_METHODS = frozenset((b"GET", b"HEAD", b"OPTIONS"))
_PAGES = frozenset((b"document", b"iframe", b"frame"))
# What is read of a request; a proxy that asks about it must tell these.
BROWSER_HEADERS = (b"origin", b"accept", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest", b"service-worker")
_NAMES = frozenset(BROWSER_HEADERS)
_OWN_SITE = frozenset((b"same-origin", b"none"))


@dataclass(frozen=True, slots=True)
class BrowserRequest:
    """`shows_page`: a person sees the answer as a page. `starts_worker`: it loads the script of a service worker."""

    method: bytes
    is_upgrade: bool
    shows_page: bool
    starts_worker: bool
    origins: tuple[bytes, ...]
    sites: tuple[bytes, ...]

    @property
    def is_navigation(self) -> bool:
        """Whether the browser opens a page, so that it can be led to another one and back."""
        return self.shows_page and self.method in (b"GET", b"HEAD")

    def is_from(self, origin: str) -> bool:
        """Whether a page of *origin* sends it; for what changes something, that must be certain.

        The cookie alone proves nothing: it is sent along with whatever a page of the same site makes a browser send,
        and that is any other application of the same domain (SameSite=Lax).
        """
        if self.method in SAFE_METHODS and not self.is_upgrade:
            return True
        own = origin.encode()
        # Browsers send Origin with all of these; a request without it is no page's of ours.
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


# The cookie of a web application: which name it has, and the token in a request's cookies. Pure.
#
#     __Host-ostiary-app-<upstream>=<token>          or  <token>.<keeping secret>
#
# The sign-in routes set it, and the engine reads it; no upstream gets it (`http1.headers.OUR_COOKIES`). The keeping
# secret opens what the identity provider keeps for the session, so that its user can be checked again.

# A derived key in base64: see `core.tokens.keeping_secret`.
_KEEPING_LENGTH = 44


@dataclass(frozen=True, slots=True)
class PresentedCookie:
    """A token that a browser presents to one application. `digest` is what the store knows it by."""

    digest: bytes
    token: Secret
    keeping: Secret | None = None


def cookie_name(application: str, *, secure: bool) -> str:
    return f"{'__Host-' if secure else ''}ostiary-app-{application}"


def cookie_value(token: Secret, keeping: Secret | None) -> str:
    return token.reveal() if keeping is None else f"{token.reveal()}.{keeping.reveal()}"


def presented_cookie(headers: Headers, application: str, *, secure: bool) -> PresentedCookie | None:
    """The token for *application*; None if there is none, or more than one: somebody else may have set one of them."""
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
