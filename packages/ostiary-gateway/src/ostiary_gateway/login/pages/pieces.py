"""Page fragments: navigation, times and durations, errors above a form, groups of a session."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ostiary.core.text import printable
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.login.pages.markup import NOTHING, Markup, join
from ostiary_gateway.login.pages.messages import counted, say, sentence
from ostiary_gateway.login.pages.templates import fill

DESCRIBED = Markup(' aria-invalid="true" aria-describedby="problem"')
FOCUS = Markup(" autofocus")


def navigation(here: str, *, admin: bool, tokens: bool = False, form_token: str = "") -> Markup:
    links = {"/auth/token": say("navigation.home"), "/auth/sessions": say("navigation.sessions")}
    if tokens:
        links["/auth/tokens"] = say("navigation.api_tokens")
    links["/auth/device"] = say("navigation.device")
    if admin:
        links["/auth/admin"] = say("navigation.admin")
    rows = (
        fill("navigation_here.html" if url == here else "navigation_link.html", url=url, text=text)
        for url, text in links.items()
    )
    sign_out = fill("navigation_sign_out.html", form_token=form_token) if form_token else NOTHING
    return fill("navigation.html", links=join(rows), sign_out=sign_out)


def groups_of(session: Session) -> Markup:
    if not session.user.groups:
        return say("home.no_groups")
    sources = dict(session.sources)
    return join(
        fill("group.html", name=printable(group), source=printable(sources.get(group, "")) or say("common.unknown"))
        for group in session.user.groups
    )


# --- sentences ---


def described_problem(text: str) -> tuple[Markup, Markup]:
    """Return an error above a form, and the attributes of its field. Both are empty if *text* is."""
    return problem_note(text), DESCRIBED if text else NOTHING


def problem_note(text: str) -> Markup:
    return fill("problem.html", text=sentence(text)) if text else NOTHING


def form_title(title: Markup, problem: str) -> Markup:
    """Return the title of a page with a form. Screen readers announce the title first, so it mentions an error."""
    return say("common.error_title", title=title) if problem else title


# --- times ---


def shown_time(moment: datetime) -> Markup:
    """Return a time that the page's script converts to local time. Without scripts it stays in UTC."""
    exact = moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return fill("time.html", exact=exact, text=time_text(moment))


def time_text(moment: datetime) -> Markup:
    utc = moment.astimezone(UTC)
    month = say(f"time.month_{utc.month}")
    return say("time.moment", day=str(utc.day), month=month, year=str(utc.year), clock=utc.strftime("%H:%M"))


def span_text(span: timedelta) -> Markup:
    seconds = int(span.total_seconds())
    if seconds < 60:
        return counted("time.seconds", seconds)
    if seconds >= 3600 and seconds // 60 % 60 == 0:
        return counted("time.hours", seconds // 3600)
    return counted("time.minutes", seconds // 60)
