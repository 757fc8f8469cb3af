"""What the headers of a request say of the browser that sends it: a page load, and from which site. Pure.

Called by the engine for requests to web applications. Browsers set ``Origin`` and ``Sec-Fetch-*`` themselves, and no
page can change them (Fetch Metadata, W3C; RFC 6454).
"""

from __future__ import annotations

from dataclasses import dataclass

from ostiary.gateway.http1.accept import prefers_html
from ostiary.gateway.http1.headers import Headers

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
