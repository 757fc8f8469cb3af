"""Pages of signed-in users: tokens, sessions, and approval of devices and command lines.

Every change is a form with the session's form token, sent by a page load from our own pages. An attestation that is not
recent is checked again before a token is issued.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from ostiary.core.scopes import Delegation, narrow, parse_scope, with_discovery
from ostiary.core.text import printable
from ostiary.errors import LoginRefused, ScopeError
from ostiary.wire.resource_names import scope_notes
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.admin.area import AdminPages
from ostiary_gateway.login.browser_session import BrowserSessions, Visitor
from ostiary_gateway.login.clusters import NO_CLUSTERS, Clusters
from ostiary_gateway.login.command_line import Codes, callback
from ostiary_gateway.login.device import Devices, normal_code
from ostiary_gateway.login.events import LoginEvents
from ostiary_gateway.login.identity_service import SignedIn
from ostiary_gateway.login.login_transactions import CliReturnTo, Flow, LoginTransactions
from ostiary_gateway.login.pages import views
from ostiary_gateway.login.pages.api_tokens import ApiTokenPages
from ostiary_gateway.login.pages.markup import NOTHING, Markup, join
from ostiary_gateway.login.pages.messages import say, sentence, translated
from ostiary_gateway.login.pages.page import page
from ostiary_gateway.login.pages.pieces import described_problem, form_title, navigation, shown_time, span_text
from ostiary_gateway.login.pages.site import Site
from ostiary_gateway.login.pages.templates import fill
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.rp_logout import SignOuts
from ostiary_gateway.login.session_api import SessionApi
from ostiary_gateway.login.session_lifetimes import SessionLifetimes
from ostiary_gateway.login.visit import client_text, field, has_form_token, only
from ostiary_gateway.sessions import IssuedToken, Tokens

# The page that creates a scoped token for a script or an agent. The token has its own session, so that it is listed and
# can be ended with the others. Sessions that are never refreshed are short.

HERE = "/auth/token/narrow"
LIFETIMES = tuple(timedelta(minutes=minutes) for minutes in (10, 30, 60))
_SELECTED, _CHECKED = Markup(" selected"), Markup(" checked")


class NarrowedTokenPage:
    """The page on which users create scoped tokens."""

    def __init__(self, tokens: Tokens, events: LoginEvents, lengths: SessionLifetimes) -> None:
        self._tokens = tokens
        self._events = events
        self._lengths = lengths

    def show(self, visitor: Visitor, *, admin: bool) -> LoginAnswer:
        return self._form(visitor, admin=admin, discovery=True)

    async def make(self, request: LoginRequest, visitor: Visitor, signed: SignedIn, *, admin: bool) -> LoginAnswer:
        """Issue the token that the form requests. *signed* is the visitor's current attestation."""
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
        """A session that is never refreshed lasts at most as long as one whose user cannot be checked again."""
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
    """Return the page with the token. It has no form and sends no referrer."""
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


MOST_SESSIONS = 200
_NO_SUCH_CODE = "unknown code: it may be expired, used or misspelt"


class Pages:
    """The pages of a signed-in user."""

    def __init__(
        self,
        site: Site,
        *,
        clusters: Clusters | None,
        tokens: Tokens,
        browsers: BrowserSessions,
        flows: LoginTransactions,
        codes: Codes,
        devices: Devices,
        sessions: SessionApi,
        events: LoginEvents,
        lengths: SessionLifetimes,
        sign_outs: SignOuts,
        admin: AdminPages | None,
        api_tokens: ApiTokenPages | None,
    ) -> None:
        self._site = site
        self._clusters = clusters
        self._narrowed = NarrowedTokenPage(tokens, events, lengths)
        self._tokens = tokens
        self._browsers = browsers
        self._flows = flows
        self._codes = codes
        self._devices = devices
        self._sessions = sessions
        self._events = events
        self._lengths = lengths
        self._sign_outs = sign_outs
        self._admin = admin
        self._api_tokens = api_tokens

    async def answer(self, steps: list[str], request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        """Return a page for *visitor*. Raises `LoginRefused` if they may no longer sign in."""
        if request.method == "POST":
            if not has_form_token(request, visitor.form_token):
                return answers.error(403, "the form belongs to another session: load the page again")
            return await self._change(steps, request, visitor)
        if request.method not in ("GET", "HEAD"):
            return answers.method_not_allowed(["GET", "POST"])
        admin, visitor = await self._is_admin(visitor), await self._with_areas(visitor)
        match steps:
            case ["token"]:
                return await self._home(visitor, admin=admin)
            case ["token", "narrow"]:
                return self._narrowed.show(visitor, admin=admin)
            case ["sessions"]:
                return await self._own_sessions(visitor, admin=admin)
            case ["tokens"] if self._api_tokens is not None:
                return await self._api_tokens.show(visitor, admin=admin)
            case ["device"]:
                return await self._device(request, visitor, admin=admin)
            case ["logout"]:
                return views.sign_out(visitor.session.user.username, visitor.form_token)
            case ["admin", *rest] if self._admin is not None:
                return await self._admin.answer(rest, request, visitor)
        return answers.error(404, "page not found")

    async def _change(self, steps: list[str], request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        match steps:
            case ["token"]:
                return await self._new_token(request, visitor)
            case ["token", "narrow"]:
                signed = await self._attest(visitor, request)
                shown_to, admin = await self._with_areas(visitor), await self._is_admin(visitor)
                return await self._narrowed.make(request, shown_to, signed, admin=admin)
            case ["sessions"]:
                return await self._end_session(request, visitor)
            case ["tokens"] if self._api_tokens is not None:
                return await self._change_api_tokens(request, visitor, self._api_tokens)
            case ["logout"]:
                return await self._sign_out(request, visitor)
            case ["device"]:
                return await self._decide_device(request, visitor)
            case ["cli"]:
                return await self._decide_cli(request, visitor)
            case ["admin"] if self._admin is not None:
                return await self._admin.end_session(request, visitor)
        return answers.error(404, "page not found")

    async def _is_admin(self, visitor: Visitor) -> bool:
        return self._admin is not None and await self._admin.may_enter(visitor.session.user)

    async def _with_areas(self, visitor: Visitor) -> Visitor:
        may_use = self._api_tokens is not None and await self._api_tokens.may_use(visitor.session.user)
        return replace(visitor, has_api_tokens=may_use)

    async def _attest(self, visitor: Visitor, request: LoginRequest) -> SignedIn:
        return await self._browsers.attest(visitor, request)

    async def _hand_over(self, visitor: Visitor, request: LoginRequest) -> SignedIn:
        """Return a sign-in for a client that outlives the browser session."""
        return await self._browsers.hand_over(visitor, request)

    # --- tokens and sessions ---

    async def _home(self, visitor: Visitor, *, admin: bool) -> LoginAnswer:
        user, clusters = visitor.session.user, self._clusters
        return views.home(
            self._site,
            visitor,
            lifetime=self._tokens.lifetime,
            admin=admin,
            asks_nobody=self._lengths.asks_nobody(visitor.session.provider, kept=bool(visitor.session.sealed)),
            offered=NO_CLUSTERS if clusters is None else await clusters.of(user),
        )

    async def _new_token(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        signed = await self._attest(visitor, request)
        issued = await self._tokens.issue(
            signed.attested.user,
            provider=signed.provider,
            sources=signed.attested.sources,
            client=client_text(request, "token page"),
            sequence=signed.sequence,
            origins=signed.attested.origins,
            session_lifetime=self._lengths.of(signed.provider, kept=False),
            until=signed.attested.until,
        )
        self._events.record_session(LoginEventKind.ISSUED, request, issued.session)
        return views.token(self._site, issued, lifetime=issued.expires_at - issued.session.created_at)

    async def _change_api_tokens(
        self, request: LoginRequest, visitor: Visitor, api_tokens: ApiTokenPages
    ) -> LoginAnswer:
        if field(request, "session") is not None:
            return await api_tokens.revoke(request, visitor)
        attested = (await self._attest(visitor, request)).attested
        owner = replace(visitor.session, user=attested.user, sources=attested.sources)
        return await api_tokens.create(request, visitor, owner, admin=await self._is_admin(visitor))

    async def _own_sessions(self, visitor: Visitor, *, admin: bool) -> LoginAnswer:
        username = visitor.session.user.username
        sessions = await self._tokens.store.sessions(username=username, limit=MOST_SESSIONS)
        return views.sessions(self._site, visitor, sessions, admin=admin)

    async def _end_session(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        session_id = field(request, "session")
        session = await self._tokens.store.session(session_id) if session_id else None
        # Sessions of other users count as unknown, so that this page discloses nothing about them.
        is_ours = session is not None and session.id == visitor.session.id
        answer = self._signed_out_page() if is_ours else answers.redirect("/auth/sessions", 303)
        if session is not None and session.user.username == visitor.session.user.username:
            await self._sessions.end(session, request, answer)
        return answer

    async def _sign_out(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        answer = self._signed_out_page()
        await self._sessions.end(visitor.session, request, answer, everywhere=field(request, "everywhere") == "true")
        return await self._sign_outs.answer(visitor, request, answer, (self._browsers.forget(),))

    def _signed_out_page(self) -> LoginAnswer:
        return views.signed_out((self._browsers.forget(),))

    # --- devices ---

    async def _device(self, request: LoginRequest, visitor: Visitor, *, admin: bool) -> LoginAnswer:
        typed = only(request.query, "code")
        if typed is None:
            return views.device_code(visitor, admin=admin)
        if wait := await self._devices.wait(request, visitor.session):
            return answers.too_many(wait)
        code = normal_code(typed)
        device = await self._devices.find(code) if code else None
        ticket = None if device is None else await self._devices.ticket(device)
        if device is None or (device.step_up and ticket is None):
            return views.device_code(visitor, problem=_NO_SUCH_CODE, status=404, admin=admin)
        return views.device_confirm(visitor, device, ticket)

    async def _decide_device(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        code, decision = normal_code(field(request, "code") or ""), field(request, "decision")
        if decision not in ("approve", "deny"):
            return answers.error(400, "the form has no decision")
        if wait := await self._devices.wait(request, visitor.session):
            return answers.too_many(wait)
        asking = await self._devices.find(code) if code else None
        step_up = asking is not None and bool(asking.step_up)
        # A step-up starts no session that could use the provider's stored state.
        attest = self._attest if step_up else self._hand_over
        signed = await attest(visitor, request) if decision == "approve" else None
        device = await self._devices.decide(code, signed) if code else None
        if device is None:
            return views.device_code(visitor, problem=_NO_SUCH_CODE, status=404)
        if signed is None:
            answer = views.message(say("device.denied_title"), say("device.denied"))
            denied = LoginRefused("a device was denied", cause=f"by {_name(visitor)}")
            return self._events.record_refusal(denied, request, answer)
        if step_up:
            return views.message(say("step_up.device_title"), say("step_up.device"))
        return views.message(say("device.approved_title"), say("device.approved"))

    # --- command lines ---

    async def confirm_cli(self, goal: CliReturnTo, visitor: Visitor) -> LoginAnswer:
        """Require confirmation from a signed-in user: a link alone must not grant their rights to a client."""
        return views.cli_confirm(visitor, goal, (await self._flows.begin(Flow(goal=goal)),))

    async def _decide_cli(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        goal = await self._flows.take_goal(request)
        if not isinstance(goal, CliReturnTo):
            return answers.error(
                400, "this sign-in was already answered or has expired: start again on the command line"
            )
        if field(request, "decision") != "approve":
            denied = LoginRefused("a command line was denied", cause=f"by {_name(visitor)}")
            return self._events.record_refusal(denied, request, self._back(callback(goal, error="access_denied")))
        code = await self._codes.issue(goal, await self._hand_over(visitor, request), request)
        return self._back(callback(goal, code=code))

    def _back(self, url: str) -> LoginAnswer:
        return answers.redirect(url, 303).with_headers(self._flows.forget())


def _name(visitor: Visitor) -> str:
    return visitor.session.user.username
