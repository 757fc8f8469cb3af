"""The pages of ``/auth``, one function each: values in, page out. Pure.

Called by the sign-in routes and the pages. What somebody else has chosen (a name, a client, a group) is passed as a
value and so escaped; see `ostiary.gateway.login.pages.templates`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from ostiary.core.config.document import Json
from ostiary.core.text import printable
from ostiary.core.tokens import Issued
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.templates import NOTHING, Markup, fill, join, page
from ostiary.gateway.login.programs.device import DeviceRequest, shown_code
from ostiary.gateway.login.sessions.browser import Visitor
from ostiary.gateway.login.sign_in.flows import ApplicationGoal, CliGoal, DeviceGoal, Goal
from ostiary.interfaces.token_store import Session
from ostiary.wire.kubeconfig import context_name, gateway_kubeconfig, kubectl_commands, ostiary_command

_DESCRIBED = Markup(' aria-invalid="true" aria-describedby="problem"')
_FOCUS = Markup(" autofocus")

_WHAT_TO_DO = {
    400: "The URL or the form is not valid here. Go back, or start again.",
    401: "Sign in again.",
    403: "If you need access, ask the administrator of this gateway.",
    404: "Check the URL, or start again.",
    405: "Go back, or start again.",
    406: "Start again.",
    409: "Try again.",
    429: "Wait a moment, then try again.",
    500: "This is an error of the gateway, not of your account. Tell the administrator of this gateway.",
    **dict.fromkeys((502, 503, 504), "Try again in a moment. If the error persists, tell the administrator."),
}
_UNCHECKED = "only when you sign in again: this identity provider cannot check accounts in between"
_HEADINGS = {
    401: "You are not signed in",
    403: "Permission denied",
    404: "Page not found",
    429: "Too many requests",
    **dict.fromkeys((502, 503, 504), "Unavailable at the moment"),
}


@dataclass(frozen=True, slots=True)
class Site:
    """What all pages know: where they are."""

    external_url: str
    authorities_pem: str | None = None
    labels: tuple[tuple[str, str], ...] = ()

    def label(self, provider: str) -> str:
        """What people call an identity provider."""
        return dict(self.labels).get(provider, provider)

    @property
    def host(self) -> str:
        return urlsplit(self.external_url).netloc

    @property
    def context(self) -> str:
        return context_name(self.external_url)

    @property
    def kubeconfig(self) -> dict[str, Json]:
        """For kubectl: the same as ``ostiary kubeconfig`` makes. There is no secret in it."""
        return gateway_kubeconfig(self.external_url, name=self.context, authorities_pem=self.authorities_pem)


# --- signing in ---


def choose(site: Site, urls: Mapping[str, str], goal: Goal, headers: Iterable[tuple[str, str]] = ()) -> LoginAnswer:
    choices = join(fill("choice.html", name=site.label(name), url=url) for name, url in urls.items())
    body = fill("choose.html", gateway=site.host, choices=choices, purpose=_purpose(goal))
    return page("Sign in", body, headers=headers)


def password(
    site: Site,
    *,
    provider: str,
    action: str,
    goal: Goal,
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
        problem=_problem(problem),
        username=username,
        described=_DESCRIBED if problem else NOTHING,
        focus_name=NOTHING if username else _FOCUS,
        focus_password=_FOCUS if username else NOTHING,
    )
    title = f"{'Error: ' if problem else ''}Sign in"
    return page(title, body, status=status, headers=headers, forms_lead_to=_leads_to(goal))


def leaving(url: str, headers: Iterable[tuple[str, str]]) -> LoginAnswer:
    """In place of a redirect after a form: browsers do not let a form end on another site."""
    return page("One moment", fill("leaving.html", url=url), headers=headers, private=True)


def _purpose(goal: Goal) -> str:
    if isinstance(goal, CliGoal):
        return f"{goal.client or 'A command line'} asks you to sign in. "
    if isinstance(goal, ApplicationGoal):
        return f"The application {goal.application} asks you to sign in. "
    return "To approve a device, sign in first. " if isinstance(goal, DeviceGoal) else ""


def _leads_to(goal: Goal) -> str:
    if isinstance(goal, ApplicationGoal):
        return goal.origin
    return f"http://127.0.0.1:{goal.port}" if isinstance(goal, CliGoal) else ""


# --- signed in ---


def home(site: Site, visitor: Visitor, *, lifetime: timedelta, admin: bool, asks_nobody: bool) -> LoginAnswer:
    session = visitor.session
    body = fill(
        "home.html",
        user=printable(session.user.username),
        provider=site.label(session.provider),
        groups=_groups(session),
        until=shown_time(session.expires_at),
        checked=_UNCHECKED if asks_nobody else f"every {_span(lifetime)}, while you work",
        lifetime=_span(lifetime),
        command=ostiary_command(site.kubeconfig),
        context=site.context,
        commands="\n".join(kubectl_commands(site.kubeconfig)),
        filename=f"{site.context}.kubeconfig",
        form_token=visitor.form_token,
    )
    return page(
        "You are signed in",
        body,
        navigation=navigation("/auth/token", admin=admin, tokens=visitor.has_api_tokens, form_token=visitor.form_token),
    )


def token(site: Site, issued: Issued, *, lifetime: timedelta) -> LoginAnswer:
    """The only page that shows a token. Nothing on it is a form: it tells nobody where its visitor comes from."""
    # In this way the token is in no list of processes and in no history.
    commands = "\n".join(
        (
            "read -rs TOKEN    # paste the token",
            "printf 'Authorization: Bearer %s' \"$TOKEN\" |",
            f"  curl --header @- {site.external_url}/auth/whoami",
        )
    )
    body = fill(
        "token.html",
        token=issued.token.reveal(),
        until=shown_time(issued.expires_at),
        lifetime=_span(lifetime),
        commands=commands,
    )
    return page("Your token", body, private=True)


def sessions(visitor: Visitor, found: Sequence[Session], *, said: str = "", admin: bool) -> LoginAnswer:
    rows = join(
        session_row(session, visitor, action="/auth/sessions", here=session.id == visitor.session.id)
        for session in found
    )
    user = printable(visitor.session.user.username)
    body = fill("sessions.html", rows=rows, user=user, said=_success(said), form_token=visitor.form_token)
    return page(
        "My sessions",
        body,
        navigation=navigation(
            "/auth/sessions", admin=admin, tokens=visitor.has_api_tokens, form_token=visitor.form_token
        ),
    )


def session_row(session: Session, visitor: Visitor, *, action: str, here: bool = False, owner: bool = False) -> Markup:
    client = f'API token "{session.name}"' if session.name else session.client
    return fill(
        "session.html",
        client=printable(client) or "an unnamed client",
        tag=fill("tag.html", text="this browser") if here else NOTHING,
        owner=fill("session_owner.html", user=printable(session.user.username)) if owner else NOTHING,
        since=shown_time(session.created_at),
        since_text=time_text(session.created_at),
        until=shown_time(session.expires_at),
        provider=session.provider,
        groups=_groups(session),
        action=action,
        id=session.id,
        form_token=visitor.form_token,
    )


# --- devices and command lines ---


def device_code(
    *, problem: str = "", status: int = 200, admin: bool = False, tokens: bool = False, signed_in: bool = False
) -> LoginAnswer:
    body = fill("device_code.html", problem=_problem(problem), described=_DESCRIBED if problem else NOTHING)
    links = navigation("/auth/device", admin=admin, tokens=tokens) if signed_in else NOTHING
    return page(f"{'Error: ' if problem else ''}Sign in a device", body, status=status, navigation=links)


def device_confirm(visitor: Visitor, device: DeviceRequest) -> LoginAnswer:
    body = fill(
        "device_confirm.html",
        user=printable(visitor.session.user.username),
        code=shown_code(device.user_code),
        client=printable(device.client),
        address=device.address,
        at=shown_time(device.at),
        form_token=visitor.form_token,
    )
    return page("Sign in this device?", body)


def cli_confirm(visitor: Visitor, goal: CliGoal, headers: Iterable[tuple[str, str]]) -> LoginAnswer:
    body = fill(
        "cli_confirm.html",
        user=printable(visitor.session.user.username),
        client=printable(goal.client) or "unnamed",
        port=str(goal.port),
        form_token=visitor.form_token,
    )
    return page("Sign in on the command line?", body, headers=headers, forms_lead_to=_leads_to(goal))


# --- web applications ---


def application_error(answer: LoginAnswer, request_id: str, *, front: str = "/", advice: str = "") -> LoginAnswer:
    """As `error`, at the host of an application, which begins at *front*.

    With *advice* the request itself was refused, whoever the person is.
    """
    text = answer.message[:1].upper() + answer.message[1:]
    heading = "The request was refused" if advice else _HEADINGS.get(answer.status, "Something went wrong")
    # Somebody else may have the permission that the person lacks.
    may_sign_out = answer.status == 403 and not advice
    body = fill(
        "application_error.html",
        heading=heading,
        text=f"{text}.",
        what_to_do=advice or _WHAT_TO_DO.get(answer.status, "Start again."),
        front=front,
        sign_out=fill("application_sign_out.html") if may_sign_out else NOTHING,
        reference=fill("reference.html", id=request_id) if request_id else NOTHING,
    )
    headers = [(name, value) for name, value in answer.headers if name == "Retry-After"]
    return page(heading, body, status=answer.status, headers=headers)


def sign_out(username: str, form_token: str) -> LoginAnswer:
    return page("Sign out?", fill("sign_out.html", user=printable(username), form_token=form_token))


# --- plain messages ---


def signed_out(headers: Iterable[tuple[str, str]] = ()) -> LoginAnswer:
    return message(
        "You are signed out",
        "This browser is signed out. You can close this page.",
        link=("/auth", "Sign in again"),
        headers=headers,
    )


def posted_form(url: str, fields: Iterable[tuple[str, str]], headers: Iterable[tuple[str, str]] = ()) -> LoginAnswer:
    """A form that the browser sends on by itself, to another site."""
    rows = join(fill("hidden_field.html", name=name, value=value) for name, value in fields)
    parts = urlsplit(url)
    body = fill("posted_form.html", url=url, fields=rows)
    return page("One moment", body, headers=headers, forms_lead_to=f"{parts.scheme}://{parts.netloc}", private=True)


def message(
    heading: str, text: str, *, link: tuple[str, str] | None = None, headers: Iterable[tuple[str, str]] = ()
) -> LoginAnswer:
    more = NOTHING if link is None else fill("link.html", url=link[0], text=link[1])
    return page(heading, fill("message.html", heading=heading, text=text, more=more), headers=headers)


def error(answer: LoginAnswer, request_id: str) -> LoginAnswer:
    """What went wrong, in a sentence, and what to do; the number leads the operator to the rest."""
    code = answer.status
    text = answer.message[:1].upper() + answer.message[1:]
    body = fill(
        "error.html",
        heading=_HEADINGS.get(code, "Something went wrong"),
        text=text if text.endswith((".", "!", "?")) else f"{text}.",
        what_to_do=_WHAT_TO_DO.get(code, "Start again."),
        reference=fill("reference.html", id=request_id) if request_id else NOTHING,
    )
    # A challenge for a password would make the browser ask with a window of its own.
    headers = [
        (name, value)
        for name, value in answer.headers
        if name in ("Retry-After", "Allow", "Set-Cookie") or (name == "WWW-Authenticate" and not is_basic(value))
    ]
    return page(_HEADINGS.get(code, "Something went wrong"), body, status=code, headers=headers)


def is_basic(challenge: str) -> bool:
    return challenge.lower().startswith("basic")


# --- pieces ---


def navigation(here: str, *, admin: bool, tokens: bool = False, form_token: str = "") -> Markup:
    links = {"/auth/token": "Home", "/auth/sessions": "My sessions"}
    if tokens:
        links["/auth/tokens"] = "API tokens"
    links["/auth/device"] = "Sign in a device"
    if admin:
        links["/auth/admin"] = "Administration"
    rows = (
        fill("navigation_here.html" if url == here else "navigation_link.html", url=url, text=text)
        for url, text in links.items()
    )
    sign_out = fill("navigation_sign_out.html", form_token=form_token) if form_token else NOTHING
    return fill("navigation.html", links=join(rows), sign_out=sign_out)


def _groups(session: Session) -> Markup | str:
    if not session.user.groups:
        return "none that the policy uses"
    sources = dict(session.sources)
    return join(
        fill("group.html", name=printable(group), source=printable(sources.get(group, "")) or "unknown")
        for group in session.user.groups
    )


def described_problem(text: str) -> tuple[Markup, Markup]:
    """A problem above a form, and what its field says about it; nothing if *text* is empty."""
    return _problem(text), _DESCRIBED if text else NOTHING


def _problem(text: str) -> Markup:
    sentence = text[:1].upper() + text[1:]
    return fill("problem.html", text=f"{sentence}.") if text else NOTHING


def _success(text: str) -> Markup:
    return fill("success.html", text=text) if text else NOTHING


def shown_time(moment: datetime) -> Markup:
    """A time that the page's script turns into the reader's own; without scripts it stays in UTC."""
    exact = moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return fill("time.html", exact=exact, text=time_text(moment))


def time_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%-d %B %Y, %H:%M UTC")


def _span(span: timedelta) -> str:
    minutes = int(span.total_seconds()) // 60
    if minutes < 1:
        return f"{int(span.total_seconds())} seconds"
    if minutes % 60 == 0 and minutes >= 60:
        return "one hour" if minutes == 60 else f"{minutes // 60} hours"
    return "one minute" if minutes == 1 else f"{minutes} minutes"
