"""The pages of people who are signed in: a token, their sessions, a device or a command line to approve.

Called by the routes. Every change is a form of ours with the session's form token, sent by a page load from here. What
was attested a while ago is checked again before a token is issued for it.
"""

from __future__ import annotations

from dataclasses import replace

from ostiary.core.tokens import Tokens
from ostiary.errors import LoginRefused
from ostiary.gateway.audit.sign_ins import LoginEventKind
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.clusters import NO_CLUSTERS, Clusters
from ostiary.gateway.login.events import LoginEvents
from ostiary.gateway.login.pages import views
from ostiary.gateway.login.pages.admin.area import AdminPages
from ostiary.gateway.login.pages.api_tokens import ApiTokenPages
from ostiary.gateway.login.pages.messages import say
from ostiary.gateway.login.pages.narrowed_token import NarrowedTokenPage
from ostiary.gateway.login.pages.views.site import Site
from ostiary.gateway.login.programs.command_line import Codes, callback
from ostiary.gateway.login.programs.device import Devices, normal_code
from ostiary.gateway.login.sessions.browser import BrowserSessions, Visitor
from ostiary.gateway.login.sessions.calls import SessionCalls
from ostiary.gateway.login.sessions.lengths import SessionLengths
from ostiary.gateway.login.sessions.sign_outs import SignOuts
from ostiary.gateway.login.sign_in.flows import CliGoal, Flow, Flows
from ostiary.gateway.login.sign_in.providers import SignedIn
from ostiary.gateway.login.visit import client_text, field, has_form_token, only
from ostiary.interfaces.identity import LoginRequest

MOST_SESSIONS = 200
_NO_SUCH_CODE = "unknown code: it may be expired, used or misspelt"


class Pages:
    def __init__(
        self,
        site: Site,
        *,
        clusters: Clusters | None,
        tokens: Tokens,
        browsers: BrowserSessions,
        flows: Flows,
        codes: Codes,
        devices: Devices,
        sessions: SessionCalls,
        events: LoginEvents,
        lengths: SessionLengths,
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
        """A page for *visitor*. Raises `LoginRefused` if they may no longer sign in."""
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
        """For a program that continues when the browser is closed."""
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
        # Another person's session counts as unknown: this page tells nothing about others.
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
        # A step-up begins no session that could go on with what is kept.
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

    async def confirm_cli(self, goal: CliGoal, visitor: Visitor) -> LoginAnswer:
        """Ask a person who is signed in already: a link alone must not give their rights to a program."""
        return views.cli_confirm(visitor, goal, (await self._flows.begin(Flow(goal=goal)),))

    async def _decide_cli(self, request: LoginRequest, visitor: Visitor) -> LoginAnswer:
        goal = await self._flows.take_goal(request)
        if not isinstance(goal, CliGoal):
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
