"""A complete HTML page and its headers. Theme and language are set once per request, with `reading`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import quote

from ostiary_gateway.config.branding import DEFAULT_LOOK, Branding
from ostiary_gateway.login.pages.markup import NOTHING, Markup, join
from ostiary_gateway.login.pages.messages import catalogue, say, speaking, spoken
from ostiary_gateway.login.pages.templates import asset, fill
from ostiary_gateway.login.responses import LoginAnswer


def document(
    look: Branding = DEFAULT_LOOK,
    *,
    title: str,
    body: Markup,
    nonce: str,
    navigation: Markup = NOTHING,
    footer: Markup = NOTHING,
    style: Markup = NOTHING,
    script: Markup = NOTHING,
) -> Markup:
    """Render a page. Its Content-Security-Policy must allow style and script with *nonce*, and ``data:`` images.

    *style* is added to the common style sheet.
    """
    return fill(
        "layout.html",
        language=spoken(),
        title=say("common.page_title", title=title, site=look.name),
        site=look.name,
        logo=fill("logo.html", url=look.logo) if look.logo else fill("door.html"),
        favicon=look.favicon or _favicon(look),
        body=body,
        navigation=navigation,
        footer=footer,
        nonce=nonce,
        style=Markup(fill("style.css", **look.colours) + style),
        script=fill("script.html", nonce=nonce, script=script) if script else NOTHING,
    )


def _favicon(look: Branding) -> str:
    icon = asset("favicon.svg").strip().replace("currentColor", look.accent)
    return "data:image/svg+xml," + quote(icon, safe=" ='/:")


@dataclass(frozen=True, slots=True)
class _PageReader:
    """Theme of this request. `addresses` are the URLs of this page by language; empty if there is no choice."""

    look: Branding = DEFAULT_LOOK
    addresses: tuple[tuple[str, str], ...] = ()


_ANYBODY = _PageReader()
_reader: ContextVar[_PageReader] = ContextVar("reader", default=_ANYBODY)


@contextmanager
def reading(look: Branding, language: str, addresses: Mapping[str, str]) -> Iterator[None]:
    """Set theme and language of all pages until the block ends.

    *addresses* are the URLs of the page in each language.
    """
    token = _reader.set(_PageReader(look, tuple(addresses.items())))
    try:
        with speaking(language):
            yield
    finally:
        _reader.reset(token)


def page(
    title: str,
    body: Markup,
    *,
    status: int = 200,
    navigation: Markup = NOTHING,
    headers: Iterable[tuple[str, str]] = (),
    forms_lead_to: str = "",
    private: bool = False,
    style: str = "",
    script: str = "",
    connects: bool = False,
) -> LoginAnswer:
    """Return a page. *forms_lead_to* is another origin that its forms may redirect to.

    *style* and *script* are assets added to the common ones. With *connects*, scripts may send requests to the gateway.

    A *private* page sends no referrer. The others send it to the gateway only, which verifies the origin of forms. A
    private page shows a secret once, so it offers no other language.
    """
    reader, nonce = _reader.get(), secrets.token_urlsafe(16)
    whole = document(
        reader.look,
        title=title,
        body=body,
        navigation=navigation,
        footer=_footer(reader, private=private),
        nonce=nonce,
        style=Markup(asset(style) if style else ""),
        script=Markup(asset("page.js") + (asset(script) if script else "")),
    )
    connections = "; connect-src 'self'" if connects else ""
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; "
        f"form-action 'self'{' ' + forms_lead_to if forms_lead_to else ''}; frame-ancestors 'none'{connections}"
    )
    fixed = (
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Language", spoken()),
        ("Vary", "Accept, Accept-Language, Cookie"),
        ("Cache-Control", "no-store"),
        ("Pragma", "no-cache"),
        ("Referrer-Policy", "no-referrer" if private else "same-origin"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Content-Security-Policy", policy),
    )
    return LoginAnswer(status, (*fixed, *headers), whole.encode("utf-8", "replace"))


def _footer(reader: _PageReader, *, private: bool) -> Markup:
    look, choice = reader.look, len(reader.addresses) > 1 and not private
    if not look.support and not look.help and not choice:
        return NOTHING
    return fill(
        "footer.html",
        support=fill("footer_support.html", text=look.support) if look.support else NOTHING,
        help=fill("footer_help.html", url=look.help) if look.help else NOTHING,
        languages=fill("footer_languages.html", links=_languages(reader)) if choice else NOTHING,
    )


def _languages(reader: _PageReader) -> Markup:
    def link(language: str, url: str) -> Markup:
        name = catalogue(language)["language"]
        if language == spoken():
            return fill("language_here.html", language=language, name=name)
        return fill("language_link.html", language=language, name=name, url=url)

    return join(link(language, url) for language, url in reader.addresses)
