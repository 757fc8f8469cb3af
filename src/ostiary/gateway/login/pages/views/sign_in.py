"""The pages on which people sign in: the choice of an identity provider, and the form for name and password."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from ostiary.core.text import printable
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.markup import NOTHING, Markup, join
from ostiary.gateway.login.pages.messages import say
from ostiary.gateway.login.pages.page import page
from ostiary.gateway.login.pages.pieces import DESCRIBED, FOCUS, form_title, problem_note
from ostiary.gateway.login.pages.templates import asset, fill
from ostiary.gateway.login.pages.views.site import ProviderLook, Site
from ostiary.gateway.login.sign_in.flows import ApplicationGoal, CliGoal, DeviceGoal, Goal


def choose(site: Site, urls: Mapping[str, str], goal: Goal, headers: Iterable[tuple[str, str]] = ()) -> LoginAnswer:
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
        problem=problem_note(problem),
        username=username,
        described=DESCRIBED if problem else NOTHING,
        focus_name=NOTHING if username else FOCUS,
        focus_password=FOCUS if username else NOTHING,
    )
    title = form_title(say("sign_in.title"), problem)
    return page(title, body, status=status, headers=headers, forms_lead_to=leads_to(goal))


def leaving(url: str, headers: Iterable[tuple[str, str]]) -> LoginAnswer:
    """In place of a redirect after a form: browsers do not let a form end on another site."""
    return page(say("leaving.title"), fill("leaving.html", url=url), headers=headers, private=True)


def posted_form(url: str, fields: Iterable[tuple[str, str]], headers: Iterable[tuple[str, str]] = ()) -> LoginAnswer:
    """A form that the browser sends on by itself, to another site."""
    rows = join(fill("hidden_field.html", name=name, value=value) for name, value in fields)
    parts = urlsplit(url)
    target = f"{parts.scheme}://{parts.netloc}"
    body = fill("posted_form.html", url=url, fields=rows)
    return page(say("leaving.title"), body, headers=headers, forms_lead_to=target, private=True)


def _icon(look: ProviderLook) -> Markup:
    """The name stands beside it, so it says nothing itself."""
    if look.image:
        return fill("icon_image.html", url=look.image)
    return Markup(asset(f"icons/{look.icon}.svg").strip())


def leads_to(goal: Goal) -> str:
    """Where the forms of a sign-in may end besides here."""
    if isinstance(goal, ApplicationGoal):
        return goal.origin
    return f"http://127.0.0.1:{goal.port}" if isinstance(goal, CliGoal) else ""


def _purpose(goal: Goal) -> Markup:
    if isinstance(goal, CliGoal):
        client = printable(goal.client)
        text = say("sign_in.for_client", client=client) if client else say("sign_in.for_command_line")
    elif isinstance(goal, ApplicationGoal):
        text = say("sign_in.for_application", application=goal.application)
    elif isinstance(goal, DeviceGoal):
        text = say("sign_in.for_device")
    else:
        return NOTHING
    return Markup(f"{text} ")
