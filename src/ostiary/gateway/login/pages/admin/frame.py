"""What is around each page of the administration area: its tabs, and the navigation of all pages.

Called by the pages of the area. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.markup import Markup, join
from ostiary.gateway.login.pages.messages import say
from ostiary.gateway.login.pages.page import page
from ostiary.gateway.login.pages.pieces import navigation
from ostiary.gateway.login.pages.templates import fill
from ostiary.gateway.login.sessions.browser import Visitor

SESSIONS = "/auth/admin"
DECISIONS = "/auth/admin/decisions"
REFUSALS = "/auth/admin/refusals"
ACCOUNTS = "/auth/admin/accounts"
WHO_CAN = "/auth/admin/who-can"
REPLICAS = "/auth/admin/replicas"
# By their addresses, in the order of the tabs.
TITLES = {
    SESSIONS: "admin.sessions",
    DECISIONS: "admin.decisions",
    REFUSALS: "admin.refusals",
    ACCOUNTS: "admin.accounts",
    WHO_CAN: "admin.who_can",
    REPLICAS: "admin.replicas",
}


class AdminFrame:
    """For one visitor, who may load the pages at *tabs*."""

    def __init__(self, visitor: Visitor, tabs: Sequence[str]) -> None:
        self.visitor = visitor
        self._tabs = tabs

    def page(
        self, here: str, body: Markup, *, title: Markup | None = None, status: int = 200, live: bool = False
    ) -> LoginAnswer:
        """The page at *here*. A *live* one has a script that gets more from us."""
        links = join(
            fill("navigation_here.html" if url == here else "navigation_link.html", url=url, text=say(TITLES[url]))
            for url in TITLES
            if url in self._tabs or url == here
        )
        visitor = self.visitor
        return page(
            title or say(TITLES[here]),
            Markup(fill("admin/tabs.html", links=links) + body),
            status=status,
            navigation=navigation(SESSIONS, admin=True, tokens=visitor.has_api_tokens, form_token=visitor.form_token),
            style="admin/style.css",
            script="admin/live.js" if live else "",
            connects=live,
        )
