"""The pages of ``/auth``, one function each. No side effects.

Untrusted text (a name, a client, a group) is passed as a value and therefore escaped; see
`ostiary_gateway.login.pages.templates`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from urllib.parse import urlsplit

from ostiary.core.text import printable
from ostiary.wire.kubeconfig import cluster_context, kubectl_commands, ostiary_command
from ostiary_gateway.authorization.cluster_access import ClusterUse
from ostiary_gateway.interfaces.identity import RequiredAuthentication
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.login.browser_session import Visitor
from ostiary_gateway.login.challenges import Ticket
from ostiary_gateway.login.clusters import NO_CLUSTERS, ClusterOffer, UsersClusters
from ostiary_gateway.login.command_line import FailedSignIn
from ostiary_gateway.login.device import DeviceRequest, shown_code
from ostiary_gateway.login.login_transactions import ApplicationReturnTo, CliReturnTo, DeviceReturnTo, ReturnTo
from ostiary_gateway.login.pages.markup import NOTHING, Markup, join
from ostiary_gateway.login.pages.messages import say, sentence, translated
from ostiary_gateway.login.pages.page import page
from ostiary_gateway.login.pages.pieces import (
    DESCRIBED,
    FOCUS,
    form_title,
    groups_of,
    navigation,
    problem_note,
    shown_time,
    span_text,
    time_text,
)
from ostiary_gateway.login.pages.site import ProviderLook, Site
from ostiary_gateway.login.pages.templates import asset, fill
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.sessions import Issued

# --- messages and errors, also at the host of a web application ---

_UNAVAILABLE = (502, 503, 504)
_HEADINGS = (401, 403, 404, 429)
_ADVICE = (400, 401, 403, 404, 405, 409, 429, 500)


def message(
    heading: str, text: str, *, link: tuple[str, str] | None = None, headers: Iterable[tuple[str, str]] = ()
) -> LoginAnswer:
    more = NOTHING if link is None else fill("link.html", url=link[0], text=link[1])
    return page(heading, fill("message.html", heading=heading, text=text, more=more), headers=headers)


def signed_out(headers: Iterable[tuple[str, str]] = ()) -> LoginAnswer:
    link = ("/auth", say("sign_out.again"))
    return message(say("sign_out.done_title"), say("sign_out.done"), link=link, headers=headers)


def error(answer: LoginAnswer, request_id: str) -> LoginAnswer:
    """Render an error and advice. The request id lets the operator find the details."""
    heading = _heading(answer.status)
    body = fill(
        "error.html",
        heading=heading,
        text=sentence(answer.message),
        what_to_do=_advice(answer.status),
        reference=reference(request_id),
    )
    # A Basic challenge would make the browser open its own password dialog.
    headers = [
        (name, value)
        for name, value in answer.headers
        if name in ("Retry-After", "Allow", "Set-Cookie") or (name == "WWW-Authenticate" and not is_basic(value))
    ]
    return page(heading, body, status=answer.status, headers=headers)


def application_error(answer: LoginAnswer, request_id: str, *, front: str = "/", advice: str = "") -> LoginAnswer:
    """Like `error`, but at the host of an application whose start page is *front*.

    With *advice* the request itself was denied, for every user.
    """
    heading = say("error.heading_refused") if advice else _heading(answer.status)
    # Signing in as another user may help: that user may have the permission.
    may_sign_out = answer.status == 403 and not advice
    body = fill(
        "application_error.html",
        heading=heading,
        text=sentence(answer.message),
        what_to_do=translated(advice) if advice else _advice(answer.status),
        front=front,
        sign_out=fill("application_sign_out.html") if may_sign_out else NOTHING,
        reference=reference(request_id),
    )
    headers = [(name, value) for name, value in answer.headers if name == "Retry-After"]
    return page(heading, body, status=answer.status, headers=headers)


def is_basic(challenge: str) -> bool:
    return challenge.lower().startswith("basic")


def _heading(code: int) -> Markup:
    if code in _UNAVAILABLE:
        return say("error.heading_unavailable")
    return say(f"error.heading_{code}") if code in _HEADINGS else say("error.heading")


def _advice(code: int) -> Markup:
    if code in _UNAVAILABLE:
        return say("error.advice_unavailable")
    return say(f"error.advice_{code}") if code in _ADVICE else say("error.advice")


def reference(request_id: str) -> Markup:
    return fill("reference.html", id=request_id) if request_id else NOTHING


# --- sign-in: choice of an identity provider, and the password form ---


def choose(site: Site, urls: Mapping[str, str], goal: ReturnTo, headers: Iterable[tuple[str, str]] = ()) -> LoginAnswer:
    choices = join(
        fill("choice.html", name=site.label(name), url=url, icon=_icon(site.look_of(name)))
        for name, url in urls.items()
    )
    body = fill("choose.html", gateway=site.host, choices=choices, purpose=_purpose(goal))
    return page(say("sign_in.title"), body, headers=headers)


def password(
    site: Site,
    *,
    provider: str,
    action: str,
    goal: ReturnTo,
    problem: str = "",
    username: str = "",
    status: int = 200,
    headers: Iterable[tuple[str, str]] = (),
) -> LoginAnswer:
    body = fill(
        "password.html",
        gateway=site.host,
        provider=site.label(provider),
        action=action,
        purpose=_purpose(goal),
        problem=problem_note(problem),
        username=username,
        described=DESCRIBED if problem else NOTHING,
        focus_name=NOTHING if username else FOCUS,
        focus_password=FOCUS if username else NOTHING,
    )
    title = form_title(say("sign_in.title"), problem)
    return page(title, body, status=status, headers=headers, forms_lead_to=leads_to(goal))


def leaving(url: str, headers: Iterable[tuple[str, str]]) -> LoginAnswer:
    """Link to another site, instead of a redirect after a form: browsers do not let a form end on another site."""
    return page(say("leaving.title"), fill("leaving.html", url=url), headers=headers, private=True)


def posted_form(url: str, fields: Iterable[tuple[str, str]], headers: Iterable[tuple[str, str]] = ()) -> LoginAnswer:
    """Form that the browser submits to another site by itself."""
    rows = join(fill("hidden_field.html", name=name, value=value) for name, value in fields)
    parts = urlsplit(url)
    target = f"{parts.scheme}://{parts.netloc}"
    body = fill("posted_form.html", url=url, fields=rows)
    return page(say("leaving.title"), body, headers=headers, forms_lead_to=target, private=True)


def _icon(look: ProviderLook) -> Markup:
    """Return the icon without alternative text: the provider's name is next to it."""
    if look.image:
        return fill("icon_image.html", url=look.image)
    return Markup(asset(f"icons/{look.icon}.svg").strip())


def leads_to(goal: ReturnTo) -> str:
    """Return the origin outside the gateway where the forms of a sign-in may end."""
    if isinstance(goal, ApplicationReturnTo):
        return goal.origin
    return f"http://127.0.0.1:{goal.port}" if isinstance(goal, CliReturnTo) else ""


def _purpose(goal: ReturnTo) -> Markup:
    if isinstance(goal, CliReturnTo):
        client = printable(goal.client)
        text = say("sign_in.for_client", client=client) if client else say("sign_in.for_command_line")
    elif isinstance(goal, ApplicationReturnTo):
        text = say("sign_in.for_application", application=goal.application)
    elif isinstance(goal, DeviceReturnTo):
        text = say("sign_in.for_device")
    else:
        return NOTHING
    return Markup(f"{text} ")


# --- approval of devices, command lines and step-ups ---
#
# Messages by the error code that `callback` sends to the command line and the browser returns.
_ENDED = {
    "access_denied": "command_line.failed_denied",
    "login-refused": "command_line.failed_refused",
    "provider-failed": "command_line.failed_unavailable",
}


def device_code(
    visitor: Visitor | None = None, *, problem: str = "", status: int = 200, admin: bool = False
) -> LoginAnswer:
    """Form for a device code. *visitor* is None if the browser is not signed in."""
    body = fill("device_code.html", problem=problem_note(problem), described=DESCRIBED if problem else NOTHING)
    links = NOTHING
    if visitor is not None:
        links = navigation("/auth/device", admin=admin, tokens=visitor.has_api_tokens, form_token=visitor.form_token)
    return page(form_title(say("device.title"), problem), body, status=status, navigation=links)


def device_confirm(visitor: Visitor, device: DeviceRequest, ticket: Ticket | None) -> LoginAnswer:
    """Confirmation of a device login or, with a *ticket*, of a step-up for a command on that device."""
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
    """Last page of a sign-in that a command line started. *error* is an error code, empty for success.

    *failed* has the details of the failure, if they are available.
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


def cli_confirm(visitor: Visitor, goal: CliReturnTo, headers: Iterable[tuple[str, str]]) -> LoginAnswer:
    body = fill(
        "cli_confirm.html",
        user=printable(visitor.session.user.username),
        client=printable(goal.client) or say("common.unnamed"),
        port=str(goal.port),
        form_token=visitor.form_token,
    )
    return page(say("command_line.title"), body, headers=headers, forms_lead_to=leads_to(goal))


def step_up_confirm(ticket: Ticket, client: str, url: str, headers: Iterable[tuple[str, str]]) -> LoginAnswer:
    """Confirmation of a step-up. It shows the purpose, so that no user confirms another's request. *url* continues."""
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


# --- pages of signed-in users: home, token, sessions, sign-out ---
#
# The format that `ostiary_gateway.login.visit` writes.
_CLIENT = re.compile(
    r"(?:(?P<browser>Edge|Firefox|Chrome|Safari) on (?P<system>\w+)|(?P<client>.+)) from (?P<address>\S+)"
)


def home(
    site: Site,
    visitor: Visitor,
    *,
    lifetime: timedelta,
    admin: bool,
    asks_nobody: bool,
    offered: UsersClusters = NO_CLUSTERS,
) -> LoginAnswer:
    session = visitor.session
    # Omit the list if the only cluster is at the gateway's own URL.
    listed = offered.clusters if [each.server for each in offered.clusters] != [site.external_url] else ()
    kubeconfig = site.kubeconfig_of(listed) if listed else site.kubeconfig
    body = fill(
        "home.html",
        user=printable(session.user.username),
        provider=site.label(session.provider),
        groups=groups_of(session),
        until=shown_time(session.expires_at),
        checked=say("home.unchecked") if asks_nobody else say("home.checked_every", span=span_text(lifetime)),
        lifetime=span_text(lifetime),
        clusters=_clusters(site, listed, incomplete=offered.incomplete),
        command=ostiary_command(kubeconfig),
        context=str(kubeconfig["current-context"]),
        commands="\n".join(kubectl_commands(kubeconfig)),
        kubeconfig="/auth/kubeconfig/all" if listed else "/auth/kubeconfig",
        filename=f"{site.context}.kubeconfig",
        form_token=visitor.form_token,
    )
    return page(
        say("home.title"),
        body,
        navigation=navigation("/auth/token", admin=admin, tokens=visitor.has_api_tokens, form_token=visitor.form_token),
    )


def _clusters(site: Site, listed: Sequence[ClusterOffer], *, incomplete: bool) -> Markup:
    """Render the clusters that the visitor can use, and the context of each."""
    rows = [
        fill(
            "cluster.html",
            label=printable(each.label),
            command=f"kubectl --context {cluster_context(site.context, each.name)} get pods",
            server=each.server,
            tag=fill("tag.html", text=say("home.cluster_unsure")) if each.use is ClusterUse.UNKNOWN else NOTHING,
        )
        for each in listed
    ]
    note = fill("clusters_incomplete.html") if incomplete else NOTHING
    return join((fill("clusters.html", rows=join(rows)) if rows else NOTHING, note))


def token(site: Site, issued: Issued, *, lifetime: timedelta) -> LoginAnswer:
    """The only page that shows a token. It has no form and sends no referrer."""
    # With this command the token is in no process list and no shell history.
    commands = "\n".join(
        (
            f"read -rs TOKEN    # {say('token.paste')}",
            "printf 'Authorization: Bearer %s' \"$TOKEN\" |",
            f"  curl --header @- {site.external_url}/auth/whoami",
        )
    )
    body = fill(
        "token.html",
        token=issued.token.reveal(),
        until=shown_time(issued.expires_at),
        lifetime=span_text(lifetime),
        commands=commands,
    )
    return page(say("token.title"), body, private=True)


def sessions(site: Site, visitor: Visitor, listed: Sequence[Session], *, admin: bool) -> LoginAnswer:
    rows = join(
        _session_row(
            replace(session, provider=site.label(session.provider)),
            visitor,
            action="/auth/sessions",
            here=session.id == visitor.session.id,
        )
        for session in listed
    )
    user = printable(visitor.session.user.username)
    body = fill("sessions.html", rows=rows, user=user, form_token=visitor.form_token)
    return page(
        say("sessions.title"),
        body,
        navigation=navigation(
            "/auth/sessions", admin=admin, tokens=visitor.has_api_tokens, form_token=visitor.form_token
        ),
    )


def _session_row(session: Session, visitor: Visitor, *, action: str, here: bool = False) -> Markup:
    return fill(
        "session.html",
        client=client_of(session),
        tag=fill("tag.html", text=say("sessions.here")) if here else NOTHING,
        since=shown_time(session.created_at),
        since_text=time_text(session.created_at),
        until=shown_time(session.expires_at),
        provider=session.provider,
        groups=groups_of(session),
        action=action,
        id=session.id,
        form_token=visitor.form_token,
    )


def client_of(session: Session) -> str:
    """Return a description of the session's client that its owner recognizes."""
    if session.name:
        return say("sessions.api_token", name=printable(session.name))
    match = _CLIENT.fullmatch(session.client)
    if match is None:
        return printable(session.client) or say("sessions.client_unnamed")
    if match["browser"]:
        client: str = say("sessions.browser_on", browser=match["browser"], system=match["system"])
    else:
        client = _program(match["client"])
    return say("sessions.client_from", client=client, address=printable(match["address"]))


def _program(client: str) -> str:
    """Return the name of a client, translated if the gateway has assigned it."""
    if client == "token page":
        return say("sessions.token_page")
    if client.startswith("narrowed token: "):
        return say("sessions.narrowed_token", scope=printable(client.removeprefix("narrowed token: ")))
    return say("sessions.command_line") if client == "command line" else printable(client)


def sign_out(username: str, form_token: str) -> LoginAnswer:
    return page(say("sign_out.title"), fill("sign_out.html", user=printable(username), form_token=form_token))
