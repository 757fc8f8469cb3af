"""The page where a person makes a token that is less than they are, for a script or an agent.

Called by `signed_in`. The token has a session of its own, so that it is listed with the others and can be ended there;
like every session that nobody renews it is short.
"""

from __future__ import annotations

from datetime import timedelta

from ostiary.core.delegation import Delegation, narrow, parse_scope
from ostiary.core.delegation.parsing import with_discovery
from ostiary.core.text import printable
from ostiary.core.tokens import IssuedToken, Tokens
from ostiary.errors import ScopeError
from ostiary.gateway.audit.sign_ins import LoginEventKind
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.events import LoginEvents
from ostiary.gateway.login.pages.markup import NOTHING, Markup, join
from ostiary.gateway.login.pages.messages import say, sentence, translated
from ostiary.gateway.login.pages.page import page
from ostiary.gateway.login.pages.pieces import described_problem, form_title, navigation, shown_time, span_text
from ostiary.gateway.login.pages.templates import fill
from ostiary.gateway.login.sessions.browser import Visitor
from ostiary.gateway.login.sessions.lengths import SessionLengths
from ostiary.gateway.login.sign_in.providers import SignedIn
from ostiary.gateway.login.visit import client_text, field
from ostiary.interfaces.identity import LoginRequest
from ostiary.wire.request.misspellings import scope_notes

HERE = "/auth/token/narrow"
LIFETIMES = tuple(timedelta(minutes=minutes) for minutes in (10, 30, 60))
_SELECTED, _CHECKED = Markup(" selected"), Markup(" checked")


class NarrowedTokenPage:
    def __init__(self, tokens: Tokens, events: LoginEvents, lengths: SessionLengths) -> None:
        self._tokens = tokens
        self._events = events
        self._lengths = lengths

    def show(self, visitor: Visitor, *, admin: bool) -> LoginAnswer:
        return self._form(visitor, admin=admin, discovery=True)

    async def make(self, request: LoginRequest, visitor: Visitor, signed: SignedIn, *, admin: bool) -> LoginAnswer:
        """The token that the form asks for. *signed* says who the visitor is, as of now."""
        text, actor = field(request, "scope") or "", field(request, "actor") or ""
        lifetime, discovery = self._lifetime(request, visitor), field(request, "discovery") == "true"
        try:
            scope = parse_scope(text)
            delegation = narrow(None, with_discovery(scope) if discovery else scope, actor)
        except ScopeError as error:
            problem = ": ".join(translated(text) for text in (error.summary, error.cause) if text)
            return self._form(
                visitor, admin=admin, scope=text, actor=actor, lifetime=lifetime, discovery=discovery, problem=problem
            )
        issued = await self._tokens.issue_token(
            signed.attested.user,
            provider=signed.provider,
            sources=signed.attested.sources,
            sequence=signed.sequence,
            origins=signed.attested.origins,
            client=client_text(request, f"{actor or 'narrowed token'}: {delegation}"),
            lifetime=lifetime,
            until=signed.attested.until,
            delegation=delegation.encode(),
        )
        reason = f"narrowed to {delegation}"
        self._events.record_session(LoginEventKind.ISSUED, request, issued.session, reason=reason)
        return _token_page(issued, delegation, issued.expires_at - issued.session.created_at)

    def _choices(self, visitor: Visitor) -> tuple[timedelta, ...]:
        """A session that nobody renews is as short as one whose user cannot be checked again."""
        longest = self._lengths.of(visitor.session.provider, kept=False) or LIFETIMES[-1]
        return tuple(each for each in LIFETIMES if each <= longest) or (longest,)

    def _lifetime(self, request: LoginRequest, visitor: Visitor) -> timedelta:
        text, choices = field(request, "lifetime") or "", self._choices(visitor)
        return next((each for each in choices if _seconds(each) == text), choices[0])

    def _form(
        self,
        visitor: Visitor,
        *,
        admin: bool,
        discovery: bool,
        scope: str = "",
        actor: str = "",
        lifetime: timedelta = LIFETIMES[0],
        problem: str = "",
    ) -> LoginAnswer:
        problem_row, described = described_problem(problem)
        options = join(
            fill(
                "option.html",
                value=_seconds(each),
                text=span_text(each),
                selected=_SELECTED if each == lifetime else NOTHING,
            )
            for each in self._choices(visitor)
        )
        body = fill(
            "narrow.html",
            problem=problem_row,
            described=described,
            scope=scope,
            actor=actor,
            lifetimes=options,
            discovery=_CHECKED if discovery else NOTHING,
            form_token=visitor.form_token,
        )
        title = form_title(say("narrow.title"), problem)
        links = navigation("/auth/token", admin=admin, tokens=visitor.has_api_tokens, form_token=visitor.form_token)
        return page(title, body, status=400 if problem else 200, navigation=links)


def _token_page(issued: IssuedToken, delegation: Delegation, lifetime: timedelta) -> LoginAnswer:
    """Like the page of an ordinary token it has no form, and tells nobody where its visitor comes from."""
    actor = (
        fill("fact.html", name=say("narrow.used_by"), value=printable(delegation.actor))
        if delegation.actor
        else NOTHING
    )
    notes = join(fill("note.html", kind="plain", text=sentence(note)) for note in scope_notes(delegation.scopes[-1]))
    body = fill(
        "narrowed.html",
        token=issued.token.reveal(),
        until=shown_time(issued.expires_at),
        lifetime=span_text(lifetime),
        scope=printable(str(delegation)),
        actor=actor,
        notes=notes,
        user=printable(issued.session.user.username),
    )
    return page(say("narrow.made_title"), body, private=True)


def _seconds(lifetime: timedelta) -> str:
    return str(int(lifetime.total_seconds()))
