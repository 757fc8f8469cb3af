"""A request to ``/auth`` and what can be told of it before anybody is asked: browser or program, from where, for whom.

Called by `gateway.login` and its parts. Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hmac import compare_digest

from ostiary.core.counting.rates import Buckets, network
from ostiary.gateway.http1.accept import prefers_html
from ostiary.interfaces.identity import LoginRequest

MAX_CLIENT = 120
_BROWSERS = (("Edge", "Edg/"), ("Firefox", "Firefox/"), ("Chrome", "Chrome/"), ("Safari", "Safari/"))
_SYSTEMS = (
    ("Android", "Android"),
    ("iOS", "iPhone"),
    ("Windows", "Windows"),
    ("macOS", "Mac OS X"),
    ("Linux", "Linux"),
)
# In these headers nobody proves anything; all others may, as a provider likes it.
_NO_PROOF = re.compile(r"host|accept(-.*)?|connection|content-.*|user-agent|origin|sec-.*|x-forwarded-.*|forwarded|via")
# What is shorter stands in any text by chance.
_SHORTEST = 6


@dataclass(frozen=True, slots=True)
class Visit:
    """A request; `html` tells that a person looks at the answer."""

    request: LoginRequest
    html: bool = False


def wants_html(request: LoginRequest) -> bool:
    """Whether a browser asks."""
    return prefers_html(request.header("accept") or "")


def comes_from(request: LoginRequest, origin: str) -> bool:
    """Whether a form is one of ours. Browsers say where one comes from; other programs have no cookies to abuse."""
    origins = [value for name, value in request.headers if name == "origin"]
    sites = [value for name, value in request.headers if name == "sec-fetch-site"]
    return all(value.lower() == origin.lower() for value in origins) and all(
        site in ("same-origin", "none") for site in sites
    )


def is_page_load(request: LoginRequest) -> bool:
    """Not what a script fetches: an upstream's page on this host could else read ours with its visitor's cookie."""
    modes = [value for name, value in request.headers if name == "sec-fetch-mode"]
    return all(mode == "navigate" for mode in modes)


def has_form_token(request: LoginRequest, form_token: str) -> bool:
    """For what a browser's cookie alone must not do: the page's own secret, and a word on where the form comes from."""
    given = field(request, "form_token")
    return (
        request.header("origin") is not None
        and given is not None
        and compare_digest(given.encode("utf-8", "surrogatepass"), form_token.encode())
    )


def field(request: LoginRequest, name: str) -> str | None:
    """The only form field of this name; None where it is absent, empty, or stands twice."""
    return only(request.form, name)


def only(pairs: tuple[tuple[str, str], ...], name: str) -> str | None:
    found = [value for key, value in pairs if key == name]
    return found[0] if len(found) == 1 and found[0] else None


def bearer(request: LoginRequest) -> str | None:
    scheme, _, token = (request.header("authorization") or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


# --- what must be repeated nowhere ---


def sent(request: LoginRequest) -> Iterator[str]:
    """What may be proof of who asks: passwords, codes, tokens, cookies."""
    # A password is one however short it is.
    yield from filter(None, (password for _, password in _passwords(request)))
    values = [value for key, value in (*request.query, *request.form) if key not in ("username", "provider")]
    for name, value in request.headers:
        if not _NO_PROOF.fullmatch(name):
            values += (value, value.partition(" ")[2], *re.split(r"[;=]\s*", value))
    values += (f"{username}:{password}" for username, password in _passwords(request))
    yield from (value for value in values if len(value) >= _SHORTEST)


def claimed_name(request: LoginRequest) -> str:
    """Who somebody says to be, in a form or with ``Authorization: Basic``; nobody has verified it."""
    return next((username for username, _ in _passwords(request) if username), "")


def _passwords(request: LoginRequest) -> Iterator[tuple[str, str]]:
    yield field(request, "username") or "", field(request, "password") or ""
    for name, value in request.headers:
        scheme, _, encoded = value.strip().partition(" ")
        if name == "authorization" and scheme.lower() == "basic":
            try:
                username, _, password = base64.b64decode(encoded).decode("utf-8", "replace").partition(":")
            except (binascii.Error, ValueError):
                continue  # it is left out as it stands
            yield username, password


# --- by which a person recognises a session ---


def client_text(request: LoginRequest, client: str | None = None) -> str:
    said = (request.header("user-agent") or "") if client is None else client
    return f"{short(said)} from {request.remote_address}".strip()


def browser_text(request: LoginRequest) -> str:
    agent = request.header("user-agent") or ""
    browser = next((name for name, mark in _BROWSERS if mark in agent), "")
    system = next((name for name, mark in _SYSTEMS if mark in agent), "")
    return client_text(request, f"{browser} on {system}" if browser and system else browser or agent)


def short(text: str) -> str:
    return "".join(char for char in text if char.isprintable())[:MAX_CLIENT]


# --- how often ---


class AddressLimit:
    """So many of something a minute from one address."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    def wait(self, request: LoginRequest) -> float:
        """Counts one more, and returns zero; or how many seconds are to be waited."""
        return self._buckets.take(network(request.remote_address))
