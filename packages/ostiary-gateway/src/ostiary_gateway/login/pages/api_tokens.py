"""The page of API tokens: users create, list and revoke their own.

It requires the same permissions as requests to ``apitokens`` below ``/apis/ostiary.dev/v1``. A token is shown once, in
the response to the form that created it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from ostiary.core.text import printable
from ostiary.errors import ProviderError, ScopeError
from ostiary.model import Attributes, UserInfo
from ostiary_gateway.accounts.api_tokens import ApiTokens, scope_of
from ostiary_gateway.accounts.errors import AccountRefusal, NotPossible
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.browser_session import Visitor
from ostiary_gateway.login.events import LoginEvents
from ostiary_gateway.login.pages.markup import Markup, join
from ostiary_gateway.login.pages.messages import say, translated
from ostiary_gateway.login.pages.page import page
from ostiary_gateway.login.pages.pieces import described_problem, form_title, navigation, shown_time, time_text
from ostiary_gateway.login.pages.templates import fill
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.visit import client_text, field
from ostiary_gateway.wire.ostiary_dev import PREFIX
from ostiary_gateway.wire.request_info import request_info

MOST_DAYS_DIGITS = 5
PATH = "/auth/tokens"


class ApiTokenPages:
    """The page on which users manage their API tokens."""

    def __init__(self, api_tokens: ApiTokens, authorizer: Authorizer, events: LoginEvents) -> None:
        self._api_tokens = api_tokens
        self._authorizer = authorizer
        self._events = events

    async def may_use(self, user: UserInfo) -> bool:
        """Report whether *user* may have API tokens. False if the authorizer is unavailable."""
        try:
            return self._api_tokens.enabled and await self._may(user, "POST")
        except ProviderError:
            return False

    async def show(self, visitor: Visitor, *, admin: bool) -> LoginAnswer:
        if not self._api_tokens.enabled:
            return answers.error(404, "page not found")
        if not await self._may(visitor.session.user, "GET"):
            return _not_allowed()
        return await self._page(visitor, admin=admin)

    async def create(self, request: LoginRequest, visitor: Visitor, owner: Session, *, admin: bool) -> LoginAnswer:
        """Create a token and show it. The form's origin is already verified.

        *owner* is the visitor's session with a fresh attestation.
        """
        if not await self._may(owner.user, "POST"):
            return _not_allowed()
        name, days, scope = field(request, "name") or "", field(request, "days"), field(request, "scope") or ""
        try:
            lifetime = _days(days)
            issued = await self._api_tokens.create(
                owner, name, lifetime=lifetime, scope=scope, client=client_text(request, "token page")
            )
        except (AccountRefusal, ScopeError) as refusal:
            return await self._page(
                visitor,
                admin=admin,
                problem=_problem_text(refusal),
                name=name,
                days=days or "",
                scope=scope,
                status=400,
            )
        self._events.record_session(LoginEventKind.ISSUED, request, issued.session)
        body = fill(
            "api_token_made.html",
            name=printable(issued.session.name),
            token=issued.token.reveal(),
            until=shown_time(issued.expires_at),
        )
        return page(say("api_tokens.made_title"), body, private=True)

    async def revoke(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        user, session = visitor.session.user, field(request, "session")
        if session is None:
            return answers.error(400, "the form does not name a token")
        if not await self._may(user, "DELETE", f"/{session}"):
            return _not_allowed()
        answer = answers.redirect(PATH, 303)
        # An unknown token has expired or was revoked before, which is what the user wanted.
        with suppress(AccountRefusal):
            ended = await self._api_tokens.revoke(user.username, session, by=f"{user.username} (token page)")
            self._events.record_session(LoginEventKind.ENDED, request, ended, status=answer.status)
        return answer

    async def _page(
        self,
        visitor: Visitor,
        *,
        admin: bool,
        problem: str = "",
        name: str = "",
        days: str = "",
        scope: str = "",
        status: int = 200,
    ) -> LoginAnswer:
        sessions = await self._api_tokens.list(visitor.session.user.username)
        lifetimes = self._api_tokens.lifetimes(visitor.session.provider)
        rows = join(_row(session, visitor) for session in sessions)
        text, described = described_problem(problem)
        body = fill(
            "api_tokens.html",
            problem=text,
            described=described,
            rows=fill("api_token_list.html", rows=rows) if sessions else fill("api_token_none.html"),
            name=name,
            days=days or str(max(1, min(lifetimes.usual, lifetimes.longest).days)),
            longest=str(lifetimes.longest.days),
            scope=scope,
            form_token=visitor.form_token,
        )
        return page(
            form_title(say("api_tokens.title"), problem),
            body,
            status=status,
            navigation=navigation(PATH, admin=admin, tokens=True, form_token=visitor.form_token),
        )

    async def _may(self, user: UserInfo, method: str, name: str = "") -> bool:
        info = request_info(RequestLine(method, f"{PREFIX}/apitokens{name}"))
        return (await self._authorizer.authorize(Attributes(user, info))).allowed


def _row(session: Session, visitor: Visitor) -> Markup:
    last_used = say("common.never") if session.last_used_at is None else shown_time(session.last_used_at)
    return fill(
        "api_token.html",
        name=printable(session.name),
        created=shown_time(session.created_at),
        created_text=time_text(session.created_at),
        used=last_used,
        until=shown_time(session.expires_at),
        scope=printable(scope_of(session)) or say("api_tokens.scope_all"),
        id=session.id,
        form_token=visitor.form_token,
    )


def _days(text: str | None) -> timedelta | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MOST_DAYS_DIGITS or int(text) < 1:
        raise NotPossible("the lifetime must be a number of days")
    return timedelta(days=int(text))


def _problem_text(refusal: AccountRefusal | ScopeError) -> str:
    """Return the error, and for a scope the hint on its syntax."""
    return ": ".join(translated(text) for text in (refusal.summary, refusal.cause, refusal.hint) if text)


def _not_allowed() -> LoginAnswer:
    return answers.error(403, "permission denied: the policy does not allow you to have API tokens")
