"""The HTML around the content of a page: style, title, icon, header. Pure.

Called by `page`, and by the command line for the page at which a sign-in ends in the browser; so this module and what
it imports need nothing of the gateway.
"""

from __future__ import annotations

from urllib.parse import quote

from ostiary.gateway.login.pages.markup import NOTHING, Markup
from ostiary.gateway.login.pages.messages import say, spoken
from ostiary.gateway.login.pages.templates import asset, fill
from ostiary.gateway.look.look import DEFAULT_LOOK, Look


def document(
    look: Look = DEFAULT_LOOK,
    *,
    title: str,
    body: Markup,
    nonce: str,
    navigation: Markup = NOTHING,
    footer: Markup = NOTHING,
    style: Markup = NOTHING,
    script: Markup = NOTHING,
) -> Markup:
    """A whole page. The policy that goes with it must allow style and script with *nonce*, and ``data:`` images.

    *style* is what a page has besides the style of all.
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


def _favicon(look: Look) -> str:
    icon = asset("favicon.svg").strip().replace("currentColor", look.accent)
    return "data:image/svg+xml," + quote(icon, safe=" ='/:")
