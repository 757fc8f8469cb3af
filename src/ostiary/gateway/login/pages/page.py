"""A whole page: what is around the content, and the headers that go with it.

Called by the views and the pages. For whom a page is (the language, and where the same page is in others) is said once
for a request, with `reading`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.markup import NOTHING, Markup, join
from ostiary.gateway.login.pages.messages import catalogue, say, speaking, spoken
from ostiary.gateway.login.pages.templates import asset, fill

_addresses: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("addresses", default=())


@contextmanager
def reading(language: str, addresses: Mapping[str, str]) -> Iterator[None]:
    """Pages are in *language* until the block ends, and lead to *addresses* for other languages."""
    token = _addresses.set(tuple(addresses.items()))
    try:
        with speaking(language):
            yield
    finally:
        _addresses.reset(token)


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
    """A whole page. *forms_lead_to* is an address besides ours that its forms may end at.

    *style* and *script* are assets besides those of all pages. With *connects*, a script may ask us for more.

    A *private* page tells nobody where its links come from. The others tell ourselves: a form must be able to say so.
    It shows what is shown once, so it leads to no other language of itself.
    """
    nonce = secrets.token_urlsafe(16)
    whole = fill(
        "layout.html",
        language=spoken(),
        title=say("common.page_title", title=title, site=say("common.site")),
        body=body,
        navigation=navigation,
        footer=NOTHING if private else _footer(),
        nonce=nonce,
        style=Markup(asset("style.css") + (asset(style) if style else "")),
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


def _footer() -> Markup:
    addresses = _addresses.get()
    links = join(
        fill(
            "language_here.html" if language == spoken() else "language_link.html",
            language=language,
            name=catalogue(language)["language"],
            **({} if language == spoken() else {"url": address}),
        )
        for language, address in addresses
    )
    return fill("footer.html", languages=links) if len(addresses) > 1 else NOTHING
