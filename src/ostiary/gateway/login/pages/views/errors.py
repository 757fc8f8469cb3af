"""The pages that say that something went wrong, or is done; also at the host of a web application."""

from __future__ import annotations

from collections.abc import Iterable

from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.pages.markup import NOTHING, Markup
from ostiary.gateway.login.pages.messages import say, sentence, translated
from ostiary.gateway.login.pages.page import page
from ostiary.gateway.login.pages.templates import fill

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
    """What went wrong, in a sentence, and what to do; the number leads the operator to the rest."""
    heading = _heading(answer.status)
    body = fill(
        "error.html",
        heading=heading,
        text=sentence(answer.message),
        what_to_do=_advice(answer.status),
        reference=reference(request_id),
    )
    # A challenge for a password would make the browser ask with a window of its own.
    headers = [
        (name, value)
        for name, value in answer.headers
        if name in ("Retry-After", "Allow", "Set-Cookie") or (name == "WWW-Authenticate" and not is_basic(value))
    ]
    return page(heading, body, status=answer.status, headers=headers)


def application_error(answer: LoginAnswer, request_id: str, *, front: str = "/", advice: str = "") -> LoginAnswer:
    """As `error`, at the host of an application, which begins at *front*.

    With *advice* the request itself was refused, whoever the person is.
    """
    heading = say("error.heading_refused") if advice else _heading(answer.status)
    # Somebody else may have the permission that the person lacks.
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
