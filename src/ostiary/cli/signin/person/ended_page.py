"""The page of this machine at which a sign-in ends in the browser, where no page of the gateway can say so.

Called by the listener of `browser`. It is made of the same style and the same texts as the gateway's own pages, without
the look of the operator, which only the gateway knows.
"""

from __future__ import annotations

import secrets
from enum import Enum


class EndedPage(Enum):
    """The pages that we show ourselves, with their status."""

    SIGNED_IN = "ended"
    FAILED = "failed"
    NOT_CONFIRMED = "not_confirmed"
    USED = "used"
    UNKNOWN = "unknown"

    @property
    def status(self) -> int:
        return {EndedPage.SIGNED_IN: 200, EndedPage.UNKNOWN: 404}.get(self, 400)


def render(page: EndedPage, *, accept_language: str) -> tuple[str, bytes]:
    """The policy of the page, and the page."""
    # Only here: most sign-ins need no page of ours.
    from ostiary.gateway.login.pages.document import document
    from ostiary.gateway.login.pages.markup import NOTHING, Markup
    from ostiary.gateway.login.pages.messages import say, speaking
    from ostiary.gateway.login.pages.templates import fill
    from ostiary.gateway.look.languages import LANGUAGES, preferred

    nonce = secrets.token_urlsafe(16)
    with speaking(preferred(accept_language, LANGUAGES)):
        title = say(f"command_line.{page.value}_title")
        text = say(f"command_line.{page.value}")
        if page in (EndedPage.FAILED, EndedPage.NOT_CONFIRMED):
            text = Markup(f"{text} {say('command_line.see_terminal')}")
        body = fill("message.html", heading=title, text=text, more=NOTHING)
        whole = document(title=title, body=body, nonce=nonce)
    policy = f"default-src 'none'; style-src 'nonce-{nonce}'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
    return policy, whole.encode()
