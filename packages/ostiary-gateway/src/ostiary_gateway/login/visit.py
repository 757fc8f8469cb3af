"""Helpers that inspect a request to ``/auth``: browser or not, origin, and the secrets that it contains."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from hmac import compare_digest

from ostiary_gateway.http1.accept import prefers_html
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.networks import network

MAX_CLIENT = 120
_BROWSERS = (("Edge", "Edg/"), ("Firefox", "Firefox/"), ("Chrome", "Chrome/"), ("Safari", "Safari/"))
_SYSTEMS = (
    ("Android", "Android"),
    ("iOS", "iPhone"),
    ("Windows", "Windows"),
    ("macOS", "Mac OS X"),
    ("Linux", "Linux"),
)
# Headers that never contain a proof of identity. In all others a provider may look for one.
_NO_PROOF = re.compile(r"host|accept(-.*)?|connection|content-.*|user-agent|origin|sec-.*|x-forwarded-.*|forwarded|via")
# Shorter values occur in any text by chance.
_SHORTEST = 6


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to ``/auth``. `html`: it comes from a browser, which gets a page."""

    request: LoginRequest
    html: bool = False


def wants_html(request: LoginRequest) -> bool:
    """Report whether the request comes from a browser."""
    return prefers_html(request.header("accept") or "")


def comes_from(request: LoginRequest, origin: str) -> bool:
    """Report whether a form was sent by one of our pages.

    Browsers send its origin; other clients have no cookies to abuse.
    """
    origins = [value for name, value in request.headers if name == "origin"]
    sites = [value for name, value in request.headers if name == "sec-fetch-site"]
    return all(value.lower() == origin.lower() for value in origins) and all(
        site in ("same-origin", "none") for site in sites
    )


def is_page_load(request: LoginRequest) -> bool:
    """Report whether a browser loads a page.

    Scripts of an upstream on this host must not read pages with the cookie.
    """
    modes = [value for name, value in request.headers if name == "sec-fetch-mode"]
    return all(mode == "navigate" for mode in modes)


def has_form_token(request: LoginRequest, form_token: str) -> bool:
    """Report whether a form has the session's form token and an ``Origin``.

    The cookie alone does not authorize a change.
    """
    token = field(request, "form_token")
    return (
        request.header("origin") is not None
        and token is not None
        and compare_digest(token.encode("utf-8", "surrogatepass"), form_token.encode())
    )


def has_stream_key(request: LoginRequest, stream_key: str) -> bool:
    """Report whether one of our pages opens a stream.

    Scripts of an upstream on this host have the cookie but not the key.
    """
    key = only(request.query, "key")
    return key is not None and compare_digest(key.encode("utf-8", "surrogatepass"), stream_key.encode())


def field(request: LoginRequest, name: str) -> str | None:
    """Return the form field of this name; None if it is absent, empty, or given twice."""
    return only(request.form, name)


def only(pairs: tuple[tuple[str, str], ...], name: str) -> str | None:
    values = [value for key, value in pairs if key == name]
    return values[0] if len(values) == 1 and values[0] else None


def bearer(request: LoginRequest) -> str | None:
    scheme, _, token = (request.header("authorization") or "").strip().partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


# --- secrets ---


def secrets_in(request: LoginRequest) -> Iterator[str]:
    """Yield what may prove the sender's identity: passwords, codes, tokens, cookies.

    No error or log line may repeat it.
    """
    # A password counts at any length.
    yield from filter(None, (password for _, password in _passwords(request)))
    values = [value for key, value in (*request.query, *request.form) if key not in ("username", "provider")]
    for name, value in request.headers:
        if not _NO_PROOF.fullmatch(name):
            values += (value, value.partition(" ")[2], *re.split(r"[;=]\s*", value))
    values += (f"{username}:{password}" for username, password in _passwords(request))
    yield from (value for value in values if len(value) >= _SHORTEST)


def claimed_name(request: LoginRequest) -> str:
    """Return the unverified user name of a form or of ``Authorization: Basic``."""
    return next((username for username, _ in _passwords(request) if username), "")


def _passwords(request: LoginRequest) -> Iterator[tuple[str, str]]:
    yield field(request, "username") or "", field(request, "password") or ""
    for name, value in request.headers:
        scheme, _, encoded = value.strip().partition(" ")
        if name == "authorization" and scheme.lower() == "basic":
            try:
                username, _, password = base64.b64decode(encoded).decode("utf-8", "replace").partition(":")
            except (binascii.Error, ValueError):
                continue  # the header itself is among the secrets
            yield username, password


# --- how a session is described to its owner ---


def client_text(request: LoginRequest, client: str | None = None) -> str:
    agent = (request.header("user-agent") or "") if client is None else client
    return f"{short(agent)} from {request.remote_address}".strip()


def browser_text(request: LoginRequest) -> str:
    agent = request.header("user-agent") or ""
    browser = next((name for name, mark in _BROWSERS if mark in agent), "")
    system = next((name for name, mark in _SYSTEMS if mark in agent), "")
    return client_text(request, f"{browser} on {system}" if browser and system else browser or agent)


def short(text: str) -> str:
    return "".join(char for char in text if char.isprintable())[:MAX_CLIENT]


# --- limits ---


class AddressLimit:
    """Rate limit per client address."""

    def __init__(self, buckets: Buckets) -> None:
        self._buckets = buckets

    def wait(self, request: LoginRequest) -> float:
        """Count one request. Return zero, or the number of seconds to wait."""
        return self._buckets.take(network(request.remote_address))
