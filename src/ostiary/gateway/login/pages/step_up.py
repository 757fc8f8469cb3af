"""The page before a step-up: what waits for it, so that nobody confirms what somebody else has started. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ostiary.core.text import printable
from ostiary.gateway.authorize.step_up import describe
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.templates import fill, join, page
from ostiary.gateway.login.step_up.tickets import Ticket


def step_up_confirm(ticket: Ticket, client: str, url: str, headers: Iterable[tuple[str, str]]) -> LoginAnswer:
    """Before somebody proves more: what it is for. *url* leads on."""
    waiting = (("What", ticket.request), ("Sent from", ticket.address))
    facts = join(fill("fact.html", name=name, value=printable(value)) for name, value in waiting if value)
    body = fill(
        "step_up_confirm.html",
        user=printable(ticket.username),
        client=printable(client) or "unnamed",
        required=describe(ticket.required),
        rule=ticket.rule,
        facts=facts,
        url=url,
    )
    return page("Confirm that it is you", body, headers=headers)
