"""``/auth``: who is at the door, which groups they are in, and then, and only then, a token.

    /auth, /auth/<name>                                    handle_client    -> user | redirect | challenge
    /auth/provider, /auth/<name>/provider                  handle_provider  -> user
    /auth/groups/provider, /auth/<name>/groups/provider    groups_from_provider
    user -> groups, relevant ones only -> token            POST /auth/renew, /auth/logout

With one identity provider ``/auth`` leads straight to it; with several it lists them. Programs get JSON, and browsers
get pages and a session of their own: a form where a password is asked for, and in the end ``/auth/token``. A login may
also be for a command line (``/auth/cli``) or for a device (``/auth/device``); what it is for stands in its flow.

Called by the listener. The providers identify (`login.steps`), and this owns everything else: tokens, their lifetime,
what they attest, how it is told. A "no" is 401, 403 or 429; "could not ask" is 500 or 503; neither issues a token.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from ostiary.core.abilities import ability
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config.edit import dump
from ostiary.core.counting.rates import Buckets
from ostiary.core.tokens import Tokens
from ostiary.errors import LoginRefused, OstiaryError
from ostiary.gateway.audit.sign_ins import LoginEventKind, OnEvent, log_event
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.config.settings import Groups, Identity
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.browser import Browsers
from ostiary.gateway.login.events import LoginEvents
from ostiary.gateway.login.flows import CliGoal, DeviceGoal, Flow, Flows, Goal, ParkedReturns
from ostiary.gateway.login.groups import GroupChecks, RelevantGroups
from ostiary.gateway.login.pages import views
from ostiary.gateway.login.pages.admin import AdminPages
from ostiary.gateway.login.pages.signed_in import Pages
from ostiary.gateway.login.pages.views import Site
from ostiary.gateway.login.programs import command_line as cli
from ostiary.gateway.login.programs.command_line import Codes
from ostiary.gateway.login.programs.device import Devices, Pending, normal_code
from ostiary.gateway.login.records import record_store
from ostiary.gateway.login.renewal import SessionLengths
from ostiary.gateway.login.sessions import SessionCalls
from ostiary.gateway.login.steps import Elsewhere, Outcome, SignedIn, Step, Steps, returns_by_post
from ostiary.gateway.login.visit import (
    AddressLimit,
    Visit,
    client_text,
    comes_from,
    field,
    is_page_load,
    only,
    wants_html,
)
from ostiary.gateway.siblings.messages import EveryEndedRequest, EveryRefusal
from ostiary.interfaces.identity import Challenge, LoginRequest, SignIn, TellsSignIn
from ostiary.interfaces.shared_counts import ImmediateCounts

PROVIDER_SECONDS = 30.0
# Logins that are begun from one address, whether or not they are ever finished.
STARTS_PER_MINUTE = 60.0
UNCHECKED_SESSION = timedelta(hours=1)
_PAGES = frozenset(("token", "sessions", "device", "admin"))


class Login:
    """One instance serves one event loop, and all its logins at once."""

    def __init__(
        self,
        *,
        identity: Sequence[Identity],
        groups: Sequence[Groups] = (),
        relevant_groups: RelevantGroups,
        tokens: Tokens,
        external_url: str,
        authorities_pem: str | None = None,
        authorizer: Authorizer | None = None,
        ended: EveryEndedRequest | None = None,
        refusals: EveryRefusal | None = None,
        counts: ImmediateCounts | None = None,
        clock: Clock = SYSTEM_CLOCK,
        on_event: OnEvent = log_event,
        provider_seconds: float = PROVIDER_SECONDS,
        starts_per_minute: float = STARTS_PER_MINUTE,
        unchecked_session: timedelta = UNCHECKED_SESSION,
    ) -> None:
        url = self._external_url = external_url.rstrip("/")
        secure = url.startswith("https://")
        store = record_store(tokens.store, clock)
        checks = GroupChecks(groups, relevant_groups)
        self._identity = {provider.name: provider for provider in identity}
        self._tokens = tokens
        self._site = Site(url, authorities_pem, tuple((each.name, each.label) for each in identity))
        self._events = LoginEvents(on_event)
        starts = Buckets(starts_per_minute / 60, starts_per_minute, clock=clock, counts=counts, name="sign-ins")
        self._starts = AddressLimit(starts)
        lengths = self._lengths = SessionLengths(self._identity, unchecked=unchecked_session)
        self._steps = Steps(
            self._identity, checks, store, external_url=url, provider_seconds=provider_seconds, clock=clock
        )
        self._flows = Flows(store, secure=secure, clock=clock)
        self._parked = ParkedReturns(store, clock=clock)
        self._codes = Codes(store, tokens, lengths, clock=clock)
        self._devices = Devices(store, tokens, lengths, external_url=url, clock=clock, counts=counts)
        self._sessions = SessionCalls(tokens, self._steps, self._events, clock=clock)
        self._browsers = Browsers(tokens, self._steps.recheck, lengths, secure=secure, clock=clock)
        self._pages = Pages(
            self._site,
            tokens=tokens,
            browsers=self._browsers,
            flows=self._flows,
            codes=self._codes,
            devices=self._devices,
            sessions=self._sessions,
            events=self._events,
            lengths=lengths,
            admin=None if authorizer is None else AdminPages(tokens, authorizer, refusals, ended),
        )

    async def handle(self, request: LoginRequest, request_id: str = "") -> LoginAnswer:
        """Answers every request to ``/auth`` and below. *request_id* is what a person may tell the operator."""
        visit = Visit(replace(request, request_id=request_id), wants_html(request))
        answer = self._events.record_answer(visit.request, await self._answered(visit))
        return views.error(answer, request_id) if visit.html and answer.message else answer

    def record_unreadable(self, request: LoginRequest, status: int, reason: str) -> None:
        """A request to ``/auth`` was refused before it could be read."""
        self._events.record_unreadable(request, status, reason)

    async def _answered(self, visit: Visit) -> LoginAnswer:
        request = visit.request
        match request.path.split("/"):
            case ["", "auth", *steps]:
                foreign = request.method == "POST" and not comes_from(request, self._external_url)
                if foreign and not self._takes_foreign_form(steps):
                    return answers.error(403, "the form was sent from another site")
                return await self._route(visit, steps)
        return answers.error(404, "page not found")

    def _takes_foreign_form(self, steps: list[str]) -> bool:
        """Whether this is where an identity system's page sends a form back to. Nothing is done with it at once."""
        provider, rest = self._provider(steps)
        return provider is not None and rest == ["provider"] and returns_by_post(provider)

    async def _route(self, visit: Visit, steps: list[str]) -> LoginAnswer:
        request = visit.request
        match steps:
            case ["renew"]:
                return await self._sessions.renew(request)
            case ["logout"] if not visit.html:
                return await self._sessions.logout(request)
            case ["whoami"]:
                return await self._sessions.whoami(request)
            case ["methods" | "kubeconfig"] if request.method not in ("GET", "HEAD"):
                return answers.method_not_allowed(["GET"])
            case ["methods"]:
                kinds = {name: _kind(provider) for name, provider in self._identity.items()}
                return answers.methods(kinds, self._external_url)
            case ["kubeconfig"]:
                return answers.download(dump(self._site.kubeconfig), f"{self._site.context}.kubeconfig")
            case ["cli", "token"]:
                return await self._exchange(request)
            case ["device", "token"]:
                return await self._poll(request)
            case ["device"] if request.method == "POST" and not visit.html:
                return await self._begin_device(request)
            case ["cli"] if request.method != "POST":
                return await self._cli(visit)
            case [first, *_] if first in _PAGES or first in ("logout", "cli"):
                return await self._page(visit, steps)
            case []:
                return await self._front(visit)
        return await self._provider_path(visit, steps)

    async def _front(self, visit: Visit) -> LoginAnswer:
        """``/auth`` itself."""
        if visit.html and visit.request.method == "GET" and await self._guarded_find(visit) is not None:
            return answers.redirect("/auth/token", 303)
        if len(self._identity) == 1:
            return await self._provider_path(visit, [])
        if visit.html:
            urls = {name: f"/auth/{name}" for name in self._identity}
            return views.choose(self._site, urls, None, (self._flows.forget(),))
        return answers.choices({name: f"{self._external_url}/auth/{name}" for name in self._identity})

    async def _guarded_find(self, visit: Visit) -> object:
        try:
            return await self._browsers.find(visit.request)
        except OstiaryError:
            # Whoever cannot be recognised signs in, and is told then what is wrong.
            return None

    # --- the providers' paths ---

    async def _provider_path(self, visit: Visit, steps: list[str]) -> LoginAnswer:
        provider, rest = self._provider(steps)
        if provider is None:
            return answers.error(404, "page not found")
        match rest:
            case []:
                return await self._visit(visit, provider, None)
            case ["start"]:
                return await self._start(visit, provider)
            case ["provider"] if returns_by_post(provider):
                return await self._return_by_post(visit, provider)
            case ["provider"]:
                return await self._return(visit, provider, Step.RETURN)
            case ["groups", "provider"]:
                return await self._return(visit, provider, Step.GROUPS)
        return answers.error(404, "page not found")

    def _provider(self, steps: list[str]) -> tuple[Identity | None, list[str]]:
        if steps and steps[0] in self._identity:
            return self._identity[steps[0]], steps[1:]
        return (next(iter(self._identity.values())) if len(self._identity) == 1 else None), steps

    async def _start(self, visit: Visit, provider: Identity) -> LoginAnswer:
        """A visit for what this browser has said before that it signs in for."""
        try:
            goal = await self._flows.goal(visit.request)
        except OstiaryError as error:
            return self._events.record_failure(error, visit.request, provider.name)
        if goal is None:
            return answers.error(400, "this sign-in has expired: start again")
        # A provider is asked as by any other visit: our own way to it is nothing to it.
        return await self._visit(_as_visit(visit, provider), provider, goal, pending=True)

    async def _visit(self, visit: Visit, provider: Identity, goal: Goal, *, pending: bool = False) -> LoginAnswer:
        request, typed = visit.request, ""
        if visit.html and request.method == "POST" and field(request, "username") is not None:
            typed, request = field(request, "username") or "", _as_basic(request)
        try:
            outcome = await self._steps.visit(provider, request, goal)
            if isinstance(outcome, Challenge) and visit.html and views.is_basic(outcome.www_authenticate):
                problem = "wrong user name or password" if visit.request.method == "POST" else ""
                return await self._form(visit, provider, goal, pending=pending, problem=problem, username=typed)
            return await self._concluded(visit, outcome, goal)
        except LoginRefused as refusal:
            answer = self._no(goal, refusal.code) or answers.refused(refusal)
            if visit.html and (typed or views.is_basic(refusal.www_authenticate)):
                answer = await self._form_again(visit, provider, goal, pending=pending, refusal=refusal, username=typed)
            return self._events.record_refusal(refusal, request, answer, provider.name)
        except Exception as error:
            return self._failed(error, visit, provider.name, goal)

    async def _form_again(
        self, visit: Visit, provider: Identity, goal: Goal, *, pending: bool, refusal: LoginRefused, username: str
    ) -> LoginAnswer:
        refused, problem = answers.refused(refusal), refusal.summary
        try:
            return await self._form(
                visit, provider, goal, pending=pending, refused=refused, problem=problem, username=username
            )
        except Exception as error:
            # The refusal itself must be told all the same.
            return self._failed(error, visit, provider.name, goal)

    async def _return_by_post(self, visit: Visit, provider: Identity) -> LoginAnswer:
        """The form waits here until the browser comes by itself, with the cookie that says which login it began."""
        request = visit.request
        try:
            if request.method == "POST":
                if wait := self._starts.wait(request):
                    return answers.too_many(wait)
                return answers.redirect(await self._parked.park(request), 303)
            visit = replace(visit, request=await self._parked.claim(request))
        except Exception as error:
            return self._events.record_failure(error, request, provider.name)
        return await self._return(visit, provider, Step.RETURN)

    async def _return(self, visit: Visit, provider: Identity, step: Step) -> LoginAnswer:
        flow: Flow | None = None
        try:
            flow = await self._flows.finish(visit.request)
            if step is Step.GROUPS:
                outcome = await self._steps.returned_with_groups(provider, visit.request, flow)
            else:
                outcome = await self._steps.returned(provider, visit.request, flow)
            return await self._concluded(visit, outcome, None if flow is None else flow.goal)
        except LoginRefused as refusal:
            answer = self._no(flow.goal if flow else None, refusal.code) or answers.refused(refusal)
            return self._events.record_refusal(refusal, visit.request, answer, provider.name)
        except Exception as error:
            return self._failed(error, visit, provider.name, flow.goal if flow else None)

    # --- what comes of it ---

    async def _concluded(self, visit: Visit, outcome: Outcome, goal: Goal) -> LoginAnswer:
        if isinstance(outcome, Challenge):
            return answers.challenge(outcome.www_authenticate)
        if isinstance(outcome, Elsewhere):
            return await self._away(visit, outcome)
        if goal is None and not visit.html:
            return await self._issued(visit.request, outcome)
        headers = [self._flows.forget()]
        url = "/auth/token"
        if isinstance(goal, DeviceGoal):
            url = f"/auth/device?code={goal.user_code}"
        elif isinstance(goal, CliGoal):
            code = await self._codes.issue(goal, outcome, visit.request)
            url = cli.callback(goal, code=code)
            # The command line goes on when the browser is closed: what the provider keeps is for its session.
            outcome = replace(outcome, attested=replace(outcome.attested, kept=None))
        if visit.html:
            session, cookie = await self._browsers.begin(visit.request, outcome)
            self._events.record_session(LoginEventKind.ISSUED, visit.request, session, status=303)
            headers.append(cookie)
        return answers.redirect(url, 303).with_headers(*headers)

    async def _issued(self, request: LoginRequest, signed: SignedIn) -> LoginAnswer:
        attested = signed.attested
        pair = await self._tokens.issue(
            attested.user,
            provider=signed.provider,
            sources=attested.sources,
            client=client_text(request),
            kept=attested.kept,
            session_lifetime=self._lengths.of(signed.provider, kept=attested.kept is not None),
        )
        self._events.record_session(LoginEventKind.ISSUED, request, pair.session)
        return answers.issued(pair).with_headers(self._flows.forget())

    async def _away(self, visit: Visit, outcome: Elsewhere) -> LoginAnswer:
        if wait := self._starts.wait(visit.request):
            return answers.too_many(wait)
        cookie = await self._flows.begin(outcome.flow)
        if visit.html and visit.request.method == "POST":
            return views.leaving(outcome.url, (cookie,))
        return answers.redirect(outcome.url).with_headers(cookie)

    async def _form(
        self,
        visit: Visit,
        provider: Identity,
        goal: Goal,
        *,
        pending: bool,
        refused: LoginAnswer | None = None,
        problem: str = "",
        username: str = "",
    ) -> LoginAnswer:
        """The page that asks for name and password, of a browser whose goal we remember."""
        if goal is not None and not pending and (wait := self._starts.wait(visit.request)):
            return answers.too_many(wait)
        headers = [] if goal is None or pending else [await self._flows.begin(Flow(goal=goal))]
        status = 200
        if refused is not None:
            status = refused.status
            # Every 401 has a challenge; one for a password would make the browser ask with a window of its own.
            shown = refused if status != 401 else answers.bearer_challenge()
            headers += [header for header in shown.headers if header[0] in ("Retry-After", "WWW-Authenticate")]
        return views.password(
            self._site,
            provider=provider.name,
            action=f"/auth/{provider.name}" + ("" if goal is None else "/start"),
            goal=goal,
            problem=problem,
            username=username,
            status=status,
            headers=headers,
        )

    def _failed(self, error: Exception, visit: Visit, provider: str, goal: Goal) -> LoginAnswer:
        told = self._no(goal, error.code if isinstance(error, OstiaryError) else "provider-failed")
        return self._events.record_failure(error, visit.request, provider, instead=told)

    def _no(self, goal: Goal, code: str) -> LoginAnswer | None:
        """The command line that waits is told; None if none does."""
        if not isinstance(goal, CliGoal):
            return None
        return answers.redirect(cli.callback(goal, error=code), 303).with_headers(self._flows.forget())

    # --- command lines ---

    async def _cli(self, visit: Visit) -> LoginAnswer:
        if visit.request.method != "GET":
            return answers.method_not_allowed(["GET", "POST"])
        try:
            goal = cli.goal_of(visit.request)
        except ValueError as error:
            return answers.error(400, str(error))
        named = only(visit.request.query, "provider")
        if named is not None and named not in self._identity:
            return answers.error(404, "unknown identity provider")
        return await self._begin(visit, goal, named)

    async def _begin(self, visit: Visit, goal: CliGoal | DeviceGoal, named: str | None = None) -> LoginAnswer:
        """Sign in for *goal*: with a word of the person, if that is done already; else with the provider of choice."""
        try:
            visitor = await self._browsers.find(visit.request) if visit.html else None
            if visitor is not None and isinstance(goal, CliGoal) and named in (None, visitor.session.provider):
                if wait := self._starts.wait(visit.request):
                    return answers.too_many(wait)
                return await self._pages.confirm_cli(goal, visitor)
            if named is None and len(self._identity) > 1:
                return await self._offer(visit, goal)
        except Exception as error:
            return self._failed(error, visit, "", goal)
        provider = self._identity[named] if named else next(iter(self._identity.values()))
        return await self._visit(_as_visit(visit, provider), provider, goal)

    async def _offer(self, visit: Visit, goal: CliGoal | DeviceGoal) -> LoginAnswer:
        if not visit.html:
            return answers.error(400, "there are several identity providers: choose one with provider=")
        if wait := self._starts.wait(visit.request):
            return answers.too_many(wait)
        urls = {name: f"/auth/{name}/start" for name in self._identity}
        return views.choose(self._site, urls, goal, (await self._flows.begin(Flow(goal=goal)),))

    async def _exchange(self, request: LoginRequest) -> LoginAnswer:
        if request.method != "POST":
            return answers.method_not_allowed(["POST"])
        try:
            issued = await self._codes.exchange(request)
        except Exception as error:
            return self._events.record_failure(error, request)
        if issued is None:
            refusal = LoginRefused("invalid device code", cause="the code is unknown, used, or belongs to another user")
            return self._events.record_refusal(refusal, request, answers.grant_refused("invalid_grant"))
        self._events.record_session(LoginEventKind.ISSUED, request, issued.session)
        return answers.issued(issued)

    # --- devices ---

    async def _begin_device(self, request: LoginRequest) -> LoginAnswer:
        if wait := self._starts.wait(request):
            return answers.too_many(wait)
        try:
            return answers.json_answer(200, await self._devices.begin(request))
        except Exception as error:
            return self._events.record_failure(error, request)

    async def _poll(self, request: LoginRequest) -> LoginAnswer:
        if request.method != "POST":
            return answers.method_not_allowed(["POST"])
        try:
            issued = await self._devices.poll(request)
        except Pending as pending:
            return answers.grant_refused(pending.error, routine=pending.is_routine)
        except Exception as error:
            return self._events.record_failure(error, request)
        self._events.record_session(LoginEventKind.ISSUED, request, issued.session)
        return answers.issued(issued)

    # --- pages ---

    async def _page(self, visit: Visit, steps: list[str]) -> LoginAnswer:
        request = visit.request
        if not visit.html:
            return answers.error(406, "this is a page for browsers")
        if not is_page_load(request):
            return answers.error(403, "this page does not accept requests from scripts")
        try:
            visitor = await self._browsers.find(request)
            if visitor is not None:
                answer = await self._pages.answer(steps, request, visitor)
                return self._events.record_answer(request, answer, visitor=visitor.session.user.username)
        except LoginRefused as refusal:
            return self._events.record_refusal(
                refusal, request, answers.refused(refusal).with_headers(self._browsers.forget())
            )
        except Exception as error:
            return self._events.record_failure(error, request)
        if request.method == "POST":
            return answers.error(401, "you are not signed in any more: the session has expired").with_headers(_BEARER)
        if steps == ["device"]:
            return await self._device_signed_out(visit)
        led = answers.redirect("/auth", 303)
        if steps[0] != "admin":
            return led
        stranger = LoginRefused(
            "sign-in is required for this page", cause="not signed in: redirected to the sign-in page"
        )
        return self._events.record_refusal(stranger, request, led)

    async def _device_signed_out(self, visit: Visit) -> LoginAnswer:
        code = normal_code(only(visit.request.query, "code") or "")
        if code:
            return await self._begin(visit, DeviceGoal(code))
        problem = "this is not a device code: a code has eight letters" if visit.request.query else ""
        return views.device_code(problem=problem)


_BEARER = ("WWW-Authenticate", answers.bearer_challenge().header("WWW-Authenticate") or "")


def _as_visit(visit: Visit, provider: Identity) -> Visit:
    return replace(visit, request=replace(visit.request, path=f"/auth/{provider.name}", query=()))


def _as_basic(request: LoginRequest) -> LoginRequest:
    """A form with name and password as a provider is asked by any program."""
    username, password = (field(request, name) or "" for name in ("username", "password"))
    kept = tuple(header for header in request.headers if header[0] not in ("authorization", "content-type"))
    # With a colon in it the name would end there, and be another one.
    pair = f"{username}:{password}" if ":" not in username else ":"
    encoded = base64.b64encode(pair.encode("utf-8", "surrogatepass")).decode()
    return replace(request, method="GET", form=(), headers=(*kept, ("authorization", f"Basic {encoded}")))


def _kind(provider: Identity) -> str:
    telling = ability(provider.instance, TellsSignIn)
    return SignIn.REDIRECT.value if telling is None else telling.sign_in.value
