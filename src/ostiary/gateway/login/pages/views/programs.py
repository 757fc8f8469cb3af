"""The pages that approve a device or a command line, and the one before a step-up."""

from __future__ import annotations

from collections.abc import Iterable

from ostiary.core.text import printable
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.markup import NOTHING, Markup, join
from ostiary.gateway.login.pages.messages import say, sentence
from ostiary.gateway.login.pages.page import page
from ostiary.gateway.login.pages.pieces import DESCRIBED, form_title, navigation, problem_note, shown_time, span_text
from ostiary.gateway.login.pages.templates import fill
from ostiary.gateway.login.pages.views.errors import message, reference
from ostiary.gateway.login.pages.views.sign_in import leads_to
from ostiary.gateway.login.programs.command_line import FailedSignIn
from ostiary.gateway.login.programs.device import DeviceRequest, shown_code
from ostiary.gateway.login.sessions.browser import Visitor
from ostiary.gateway.login.sign_in.flows import CliGoal
from ostiary.gateway.login.step_up.tickets import Ticket
from ostiary.interfaces.identity import RequiredAuthentication

# What `callback` tells a command line, and it brings back.
_ENDED = {
    "access_denied": "command_line.failed_denied",
    "login-refused": "command_line.failed_refused",
    "provider-failed": "command_line.failed_unavailable",
}


def device_code(
    visitor: Visitor | None = None, *, problem: str = "", status: int = 200, admin: bool = False
) -> LoginAnswer:
    """The form for a device's code. *visitor* is None if nobody is signed in."""
    body = fill("device_code.html", problem=problem_note(problem), described=DESCRIBED if problem else NOTHING)
    links = NOTHING
    if visitor is not None:
        links = navigation("/auth/device", admin=admin, tokens=visitor.has_api_tokens, form_token=visitor.form_token)
    return page(form_title(say("device.title"), problem), body, status=status, navigation=links)


def device_confirm(visitor: Visitor, device: DeviceRequest, ticket: Ticket | None) -> LoginAnswer:
    """Before a device is signed in; with a *ticket*, before a command that runs there goes on."""
    user = printable(visitor.session.user.username)
    title, about = say("device.confirm_title"), say("device.confirm_about", user=user)
    if ticket is not None:
        title = say("step_up.title")
        about = say("step_up.about", user=printable(ticket.username), required=_required_text(ticket.required))
    body = fill(
        "device_confirm.html",
        title=title,
        about=about,
        facts=NOTHING if ticket is None else _waiting_for(ticket),
        code=shown_code(device.user_code),
        client=printable(device.client),
        address=device.address,
        at=shown_time(device.at),
        form_token=visitor.form_token,
    )
    return page(title, body)


def cli_ended(error: str, failed: FailedSignIn | None = None) -> LoginAnswer:
    """The last page of a sign-in that a command line began, which leads here. *error* is a code of ours, or empty.

    *failed* is what is known of the failure.
    """
    if error and failed is not None:
        heading, close = say("command_line.failed_title"), say("command_line.close")
        if failed.step_up:
            heading = say("command_line.not_confirmed_title")
            close = Markup(f"{say('command_line.not_confirmed')} {close}")
        body = fill(
            "cli_failed.html",
            heading=heading,
            text=sentence(failed.cause),
            what_to_do=close,
            reference=reference(failed.request_id),
        )
        return page(heading, body)
    if not error:
        return message(say("command_line.ended_title"), say("command_line.ended"))
    reason = _ENDED.get(error)
    text = say(reason) if reason else say("command_line.failed")
    return message(say("command_line.failed_title"), Markup(f"{text} {say('command_line.see_terminal')}"))


def cli_confirm(visitor: Visitor, goal: CliGoal, headers: Iterable[tuple[str, str]]) -> LoginAnswer:
    body = fill(
        "cli_confirm.html",
        user=printable(visitor.session.user.username),
        client=printable(goal.client) or say("common.unnamed"),
        port=str(goal.port),
        form_token=visitor.form_token,
    )
    return page(say("command_line.title"), body, headers=headers, forms_lead_to=leads_to(goal))


def step_up_confirm(ticket: Ticket, client: str, url: str, headers: Iterable[tuple[str, str]]) -> LoginAnswer:
    """Before somebody proves more: what it is for, so that nobody confirms what another has begun. *url* leads on."""
    body = fill(
        "step_up_confirm.html",
        user=printable(ticket.username),
        client=printable(client) or say("common.unnamed"),
        required=_required_text(ticket.required),
        rule=ticket.rule,
        facts=_waiting_for(ticket),
        url=url,
    )
    return page(say("step_up.title"), body, headers=headers)


def _waiting_for(ticket: Ticket) -> Markup:
    waiting = ((say("step_up.what"), ticket.request), (say("step_up.address"), ticket.address))
    return join(fill("fact.html", name=name, value=printable(value)) for name, value in waiting if value)


def _required_text(required: RequiredAuthentication) -> str:
    parts = []
    if required.acr_values:
        parts.append(say("step_up.level", values=", ".join(required.acr_values)))
    if required.amr_values:
        parts.append(say("step_up.method", values=", ".join(required.amr_values)))
    if required.max_age is not None:
        parts.append(say("step_up.recent", span=span_text(required.max_age)))
    return Markup(", ".join(parts))
