"""Fills the HTML templates of ``assets/`` and makes whole pages of them. Pure.

Called by the views and the administration pages. A template is a file with ``{{name}}`` in it. Every value is escaped
unless it is a `Markup`, which only this package makes. There are no loops: a row is a template of its own, and `join`
puts rows together.
"""

from __future__ import annotations

import html
import re
import secrets
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

from ostiary.gateway.login.answers import LoginAnswer

_NAME = re.compile(r"\{\{([a-z_]+)\}\}")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def fill(template: str, **values: str) -> Markup:
    """The template with its values. Each name in it must be given, and each that is given must be in it."""
    text = _template(template)
    names = set(_NAME.findall(text))
    assert names == set(values), f"{template}: {sorted(names ^ set(values))}"
    # In one pass: what is put in is never looked at again.
    return Markup(_NAME.sub(lambda match: _escape(values[match[1]]), text))


def join(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))


NOTHING = Markup("")


def page(
    title: str,
    body: Markup,
    *,
    status: int = 200,
    navigation: Markup = NOTHING,
    headers: Iterable[tuple[str, str]] = (),
    forms_lead_to: str = "",
    private: bool = False,
) -> LoginAnswer:
    """A whole page. *forms_lead_to* is an address besides ours that its forms may end at.

    A *private* page tells nobody where its links come from. The others tell ourselves: a form must be able to say so.
    """
    nonce = secrets.token_urlsafe(16)
    style, script = Markup(_template("style.css")), Markup(_template("copy.js"))
    whole = fill("layout.html", title=title, body=body, navigation=navigation, nonce=nonce, style=style, script=script)
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; "
        f"form-action 'self'{' ' + forms_lead_to if forms_lead_to else ''}; frame-ancestors 'none'"
    )
    fixed = (
        ("Content-Type", "text/html; charset=utf-8"),
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


def _escape(value: str) -> str:
    return value if isinstance(value, Markup) else html.escape(value, quote=True)


@cache
def _template(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
