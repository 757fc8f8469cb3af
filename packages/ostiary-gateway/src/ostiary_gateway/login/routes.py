"""Routes of ``/auth``.

    /auth, /auth/<name>, and the returns from IdPs                 provider_routes
    /auth/cli, /auth/device                                        provider_routes, then pages.signed_in
    /auth/cli/ended                                                pages.views: last page of a command-line sign-in
    /auth/cli/token, /auth/device, /auth/device/token              token_endpoint.TokenRequests
    POST /auth/token without a browser                             token_endpoint.TokenExchanger
    /auth/renew, /auth/logout, /auth/whoami                        session_api
    /auth/upstreams, /auth/kubeconfig/all                          ClusterAnswers
    /auth/step-up                                                  step_up.StepUpCalls
    /auth/token, /auth/tokens, /auth/sessions, /auth/admin         pages.signed_in, admin
    /auth/application, and the hosts of web applications           web_apps

With one identity provider ``/auth`` redirects to it; with several it lists them. Clients without a browser get JSON.
Browsers get pages and a browser session, a form where a password is required, and finally ``/auth/token``. A denial is
401, 403 or 429; an outage is 500 or 503. Neither issues a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.scopes import Delegation, decode
from ostiary.core.yaml.edit import dump
from ostiary.errors import LoginRefused, OstiaryError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.accounts.api_tokens import ApiTokens
from ostiary_gateway.audit.sign_ins import OnEvent, log_event
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.step_up import StepUpRules
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.branding import DEFAULT_LOOK, Branding
from ostiary_gateway.config.provider import Groups, Identity
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.admin.area import AdminPages, AdminSources
from ostiary_gateway.login.backchannel_logout import Logouts
from ostiary_gateway.login.browser_session import BrowserSessions, Visitor
from ostiary_gateway.login.challenges import StoredDemands, Tickets
from ostiary_gateway.login.clusters import NO_CLUSTERS, Clusters, UsersClusters
from ostiary_gateway.login.command_line import Codes, FailedSignIns, goal_of
from ostiary_gateway.login.complete_sign_in import CompleteSignIn
from ostiary_gateway.login.device import Devices, normal_code
from ostiary_gateway.login.events import LoginEvents
from ostiary_gateway.login.groups import GroupChecks, RelevantGroups
from ostiary_gateway.login.identity_service import IdentityService, for_people
from ostiary_gateway.login.login_transactions import (
    CliReturnTo,
    DeviceReturnTo,
    Flow,
    LoginTransactions,
    PendingCallbacks,
)
from ostiary_gateway.login.machine_grants import Grants
from ostiary_gateway.login.pages import views
from ostiary_gateway.login.pages.api_tokens import ApiTokenPages
from ostiary_gateway.login.pages.readers import Readers
from ostiary_gateway.login.pages.signed_in import Pages
from ostiary_gateway.login.pages.site import Site, provider_look, sign_in_kind
from ostiary_gateway.login.provider_routes import ProviderRoutes
from ostiary_gateway.login.records import record_store
from ostiary_gateway.login.replay_cache import UsedTokens
from ostiary_gateway.login.required import is_enough
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.rp_logout import SignOuts
from ostiary_gateway.login.session_api import SessionApi
from ostiary_gateway.login.session_lifetimes import SessionLifetimes
from ostiary_gateway.login.step_up import StepUpCalls, StepUps
from ostiary_gateway.login.token_endpoint import FindToken, JwtRequests, TokenExchanger, TokenRequests
from ostiary_gateway.login.visit import (
    AddressLimit,
    Visit,
    bearer,
    comes_from,
    has_stream_key,
    is_page_load,
    only,
    wants_html,
)
from ostiary_gateway.login.web_apps import ApplicationSignIns, ApplicationVisits
from ostiary_gateway.proxy.applications import Applications
from ostiary_gateway.sessions import ApplicationTokens, Attested, Tokens

if TYPE_CHECKING:
    from ostiary_gateway.issuer.issuer import JwtIssuer


class ClusterAnswers:
    """The clusters that a user can use, as JSON and as a kubeconfig.

    Serves clients with a token and browsers with a session.
    """

    def __init__(
        self,
        site: Site,
        clusters: Clusters | None,
        *,
        sessions: SessionApi,
        browsers: BrowserSessions,
        events: LoginEvents,
    ) -> None:
        self._site = site
        self._clusters = clusters
        self._sessions = sessions
        self._browsers = browsers
        self._events = events

    async def list_clusters(self, request: LoginRequest) -> LoginAnswer:
        offered = await self._offered(request)
        return offered if isinstance(offered, LoginAnswer) else answers.clusters(offered, self._site.external_url)

    async def download_kubeconfig(self, request: LoginRequest) -> LoginAnswer:
        offered = await self._offered(request)
        if isinstance(offered, LoginAnswer):
            return offered
        if not offered.clusters:
            return answers.error(404, "there is no cluster that you may use")
        kubeconfig = self._site.kubeconfig_of(offered.clusters)
        return answers.download(dump(kubeconfig), f"{self._site.context}.kubeconfig")

    async def _offered(self, request: LoginRequest) -> UsersClusters | LoginAnswer:
        """Return the caller's clusters, or the error response."""
        if request.method not in ("GET", "HEAD"):
            return answers.method_not_allowed(["GET"])
        try:
            caller = await self._caller(request)
            if isinstance(caller, LoginAnswer):
                return caller
            user, delegation = caller
            return NO_CLUSTERS if self._clusters is None else await self._clusters.of(user, delegation)
        except Exception as error:
            return self._events.record_failure(error, request)

    async def _caller(self, request: LoginRequest) -> tuple[UserInfo, Delegation | None] | LoginAnswer:
        token = bearer(request)
        if token is not None:
            record = await self._sessions.find(token)
            if record is None:
                return answers.no_good_token()
            delegation = decode(record.token.delegation) if record.token.delegation else None
            return record.session.user, delegation
        # Page loads only: a script of an upstream on this host sends the session cookie too.
        visitor = await self._browsers.find(request) if is_page_load(request) else None
        return answers.bearer_challenge() if visitor is None else (visitor.session.user, None)


PROVIDER_SECONDS = 30.0
# Login transactions that one address may start, finished or not.
STARTS_PER_MINUTE = 60.0
UNCHECKED_SESSION = timedelta(hours=1)
# Kind of the replay entries for assertions and other single-use proofs of identity.
USED_PROOF = "used-proof"
_PAGES = frozenset(("token", "tokens", "sessions", "device", "admin"))


class Login:
    """Serve every request to ``/auth``. One instance serves one event loop and handles requests concurrently."""

    def __init__(
        self,
        *,
        identity: Sequence[Identity],
        groups: Sequence[Groups] = (),
        relevant_groups: RelevantGroups,
        tokens: Tokens,
        external_url: str,
        authorities_pem: str | None = None,
        look: Branding = DEFAULT_LOOK,
        authorizer: Authorizer | None = None,
        admin: AdminSources | None = None,
        issuer: JwtIssuer | None = None,
        api_tokens: ApiTokens | None = None,
        find_token: FindToken | None = None,
        counts: ImmediateCounts | None = None,
        applications: Applications | None = None,
        clusters: Clusters | None = None,
        step_up: StepUpRules | None = None,
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
        self._clock = clock
        self._identity = {provider.name: provider for provider in identity}
        self._people = for_people(self._identity)
        self._site = Site(url, authorities_pem, {each.name: provider_look(each) for each in identity})
        self._readers = Readers(look, secure=secure)
        self._events = LoginEvents(on_event)
        starts = Buckets(starts_per_minute / 60, starts_per_minute, clock=clock, counts=counts, name="sign-ins")
        self._starts = AddressLimit(starts)
        lengths = SessionLifetimes(self._identity, groups, unchecked=unchecked_session)
        objects = ability(tokens.store, ObjectStore)
        providers = self._providers = IdentityService(
            self._identity,
            checks,
            store,
            last_revocation=tokens.sequence,
            external_url=url,
            provider_seconds=provider_seconds,
            used=None if objects is None else UsedTokens(objects, clock=clock, kind=USED_PROOF),
            clock=clock,
        )
        flows = self._flows = LoginTransactions(store, secure=secure, clock=clock)
        rules = step_up or StepUpRules(())
        tickets = Tickets(store, clock=clock)
        self.step_up_demands = StoredDemands(store, self._identity, clock=clock)
        self._step_up_calls = StepUpCalls(tokens, rules, self.step_up_demands, tickets, self._events, clock=clock)
        step_ups = self._step_ups = StepUps(tokens, tickets, self.step_up_demands, clock=clock)
        grants = Grants(tokens, lengths, step_ups)
        codes = Codes(store, grants, clock=clock)
        failures = self._failures = FailedSignIns(store, clock=clock)
        devices = self._devices = Devices(store, grants, external_url=url, clock=clock, counts=counts)
        self._token_requests = TokenRequests(codes, devices, self._events, self._starts, step_up=bool(rules))
        self._exchange = TokenExchanger(
            self._identity,
            tokens,
            providers=providers,
            jwts=JwtRequests(issuer, find_token or tokens.find, self._events, clock=clock),
            find_token=find_token or tokens.find,
            used=None if objects is None else UsedTokens(objects, clock=clock),
            events=self._events,
            external_url=url,
            clock=clock,
            counts=counts,
        )
        self._sessions = SessionApi(
            tokens,
            providers,
            self._events,
            find_token=find_token or tokens.find,
            clock=clock,
            step_up=bool(rules),
        )
        self._browsers = BrowserSessions(tokens, providers.recheck, lengths, secure=secure, clock=clock)
        self._outcomes = CompleteSignIn(
            tokens,
            flows=flows,
            codes=codes,
            failures=failures,
            browsers=self._browsers,
            events=self._events,
            lengths=lengths,
            starts=self._starts,
            step_up=bool(rules),
        )
        logouts = Logouts(
            self._identity,
            tokens,
            browsers=self._browsers,
            events=self._events,
            external_url=url,
            provider_seconds=provider_seconds,
            clock=clock,
            counts=counts,
        )
        self._sign_in = ProviderRoutes(
            self._identity,
            self._site,
            providers=providers,
            outcomes=self._outcomes,
            flows=flows,
            parked=PendingCallbacks(store, clock=clock),
            events=self._events,
            starts=self._starts,
            exchange=self._exchange,
            logouts=logouts,
        )
        self._application_sign_ins = ApplicationSignIns(store, secure=secure, clock=clock)
        self._visits = (
            ApplicationVisits(
                applications,
                self._application_sign_ins,
                ApplicationTokens(tokens, clock),
                browsers=self._browsers,
                sign_in=self._sign_in,
                sessions=self._sessions,
                events=self._events,
                starts=self._starts,
                clock=clock,
            )
            if applications
            else None
        )
        self._clusters = ClusterAnswers(
            self._site, clusters, sessions=self._sessions, browsers=self._browsers, events=self._events
        )
        self._admin = None if admin is None else AdminPages(admin, self._browsers.find)
        self._pages = Pages(
            self._site,
            clusters=clusters,
            tokens=tokens,
            browsers=self._browsers,
            flows=flows,
            codes=codes,
            devices=devices,
            sessions=self._sessions,
            events=self._events,
            lengths=lengths,
            sign_outs=SignOuts(
                self._identity, events=self._events, return_url=logouts.at, provider_seconds=provider_seconds
            ),
            admin=self._admin,
            api_tokens=None
            if authorizer is None or api_tokens is None
            else ApiTokenPages(api_tokens, authorizer, self._events),
        )

    @property
    def applications(self) -> ApplicationSignIns:
        return self._application_sign_ins

    async def recheck_visitor(self, session: Session, request: LoginRequest, kept: Secret | None) -> Attested:
        """Return what the providers attest now for the user of a web application session, as a session refresh does.

        *kept* is the provider's stored state for the session.
        """
        return await self._providers.recheck(session, request, kept)

    async def recheck(self, session: Session) -> Attested:
        """Return what the providers attest now for the user of *session*, as a session refresh does.

        For sessions that are never refreshed, such as those of API tokens.
        """
        return await self._providers.recheck(session, LoginRequest("POST", "/auth/renew"))

    async def handle(self, request: LoginRequest, request_id: str = "") -> LoginAnswer:
        """Respond to a request to ``/auth`` or below. *request_id* is shown on error pages, for the user to quote."""
        visit = Visit(replace(request, request_id=request_id), wants_html(request))
        if (chosen := self._readers.choice(visit)) is not None:
            return chosen
        with self._readers.reading(visit.request):
            answer = self._events.record_answer(visit.request, await self._answer(visit))
            return views.error(answer, request_id) if visit.html and answer.message else answer

    def record_unreadable(self, request: LoginRequest, status: int, reason: str) -> None:
        """Record a request to ``/auth`` that was rejected before it could be parsed."""
        self._events.record_unreadable(request, status, reason)

    async def _answer(self, visit: Visit) -> LoginAnswer:
        request = visit.request
        match request.path.split("/"):
            case ["", "auth", *path]:
                if self._visits is not None and (answer := await self._visits.answer(visit, path)) is not None:
                    return answer
                foreign = request.method == "POST" and not comes_from(request, self._external_url)
                if foreign and not self._sign_in.accepts_foreign_form(path):
                    return answers.error(403, "the form was sent from another site")
                return await self._route(visit, path)
        return answers.error(404, "page not found")

    async def _route(self, visit: Visit, path: list[str]) -> LoginAnswer:
        request = visit.request
        match path:
            case ["renew"]:
                return await self._sessions.renew(request)
            case ["logout"] if not visit.html:
                return await self._sessions.logout(request)
            case ["whoami"]:
                return await self._sessions.whoami(request)
            case ["upstreams"]:
                return await self._clusters.list_clusters(request)
            case ["kubeconfig", "all"]:
                return await self._clusters.download_kubeconfig(request)
            case ["step-up"]:
                return await self._step_up_calls.answer(request)
            case ["methods" | "kubeconfig"] if request.method not in ("GET", "HEAD"):
                return answers.method_not_allowed(["GET"])
            case ["methods"]:
                kinds = {name: sign_in_kind(provider).value for name, provider in self._people.items()}
                programs = [name for name in self._identity if name not in self._people]
                return answers.methods(kinds, programs, self._external_url)
            case ["kubeconfig"]:
                return answers.download(dump(self._site.kubeconfig), f"{self._site.context}.kubeconfig")
            case ["cli", "token"]:
                return await self._token_requests.exchange_code(request)
            case ["token"] if request.method == "POST" and not visit.html:
                return await self._exchange.exchange(request)
            case ["device", "token"]:
                return await self._token_requests.poll_device(request)
            case ["device"] if request.method == "POST" and not visit.html:
                return await self._token_requests.begin_device(request)
            case ["cli", "ended"] if visit.html and request.method in ("GET", "HEAD"):
                return await self._cli_ended(request)
            case ["cli"] if request.method != "POST":
                return await self._cli(visit)
            case ["admin", "decisions", "stream"] if self._admin is not None:
                return await self._stream(visit, self._admin)
            case [first, *_] if first in _PAGES or first in ("logout", "cli"):
                return await self._page(visit, path)
            case []:
                return await self._front(visit)
        return await self._sign_in.answer(visit, path)

    async def _front(self, visit: Visit) -> LoginAnswer:
        """Respond to ``/auth`` itself."""
        if visit.html and visit.request.method == "GET" and await self._is_signed_in(visit):
            return answers.redirect("/auth/token", 303)
        if len(self._people) == 1 or len(self._identity) == 1:
            return await self._sign_in.answer(visit, [])
        if visit.html:
            urls = {name: f"/auth/{name}" for name in self._people}
            return views.choose(self._site, urls, None, (self._flows.forget(),))
        return answers.choices({name: f"{self._external_url}/auth/{name}" for name in self._people})

    async def _is_signed_in(self, visit: Visit) -> bool:
        try:
            return await self._browsers.find(visit.request) is not None
        except OstiaryError:
            # The sign-in that follows fails too, and reports the error.
            return False

    # --- command lines ---

    async def _cli(self, visit: Visit) -> LoginAnswer:
        if visit.request.method != "GET":
            return answers.method_not_allowed(["GET", "POST"])
        try:
            goal = goal_of(visit.request)
        except ValueError as error:
            return answers.error(400, str(error))
        name = only(visit.request.query, "provider")
        if name is not None and name not in self._identity:
            answer = answers.error(404, "unknown identity provider")
            return await self._refuse(visit, goal, answer) if visit.html else answer
        if goal.step_up:
            return await self._confirm_step_up(visit, goal)
        return await self._begin(visit, goal, name)

    async def _refuse(self, visit: Visit, goal: CliReturnTo, answer: LoginAnswer) -> LoginAnswer:
        """Redirect to the waiting command line with the error of *answer*."""
        refusal = LoginRefused(answer.message)
        back = await self._outcomes.refusal(refusal, visit.request, goal)
        return self._events.record_refusal(refusal, visit.request, back)

    async def _cli_ended(self, request: LoginRequest) -> LoginAnswer:
        """Return the last page of a sign-in that a command line started."""
        try:
            failed = await self._failures.find(only(request.query, "failure") or "")
        except OstiaryError:
            # The page is then shown without the details of the failure.
            failed = None
        return views.cli_ended(only(request.query, "error") or "", failed)

    async def _confirm_step_up(self, visit: Visit, goal: CliReturnTo) -> LoginAnswer:
        """Show the waiting request first: the IdP may confirm the step-up without prompting the user."""
        try:
            ticket = await self._step_ups.tickets.find(goal.step_up)
            if ticket is None or ticket.provider not in self._people:
                return await self._refuse(visit, goal, answers.error(400, "this step-up has expired: start again"))
            if wait := self._starts.wait(visit.request):
                return answers.too_many(wait)
            cookie = await self._flows.begin(Flow(goal=replace(goal, required=ticket.required)))
        except Exception as error:
            return await self._outcomes.failure(error, visit.request, "", goal)
        return views.step_up_confirm(ticket, goal.client, f"/auth/{ticket.provider}/start", (cookie,))

    async def _device_step_up(self, visit: Visit, visitor: Visitor) -> LoginAnswer | None:
        """Start a new sign-in if the device needs a step-up.

        Return None if the visitor's sign-in already satisfies it.
        """
        code = normal_code(only(visit.request.query, "code") or "")
        device = await self._devices.find(code) if code and visit.request.method == "GET" else None
        ticket = await self._step_ups.tickets.find(device.step_up) if device is not None and device.step_up else None
        if ticket is None or is_enough(visitor.session.user, ticket.required, self._clock.now()):
            return None
        return await self._sign_in.begin(visit, DeviceReturnTo(code, ticket.required), ticket.provider)

    async def _begin(self, visit: Visit, goal: CliReturnTo | DeviceReturnTo, name: str | None = None) -> LoginAnswer:
        """Sign in for *goal*. A user who is already signed in only confirms the command line."""
        try:
            visitor = await self._browsers.find(visit.request) if visit.html else None
            if visitor is not None and isinstance(goal, CliReturnTo) and name in (None, visitor.session.provider):
                if wait := self._starts.wait(visit.request):
                    return answers.too_many(wait)
                return await self._pages.confirm_cli(goal, visitor)
        except Exception as error:
            return await self._outcomes.failure(error, visit.request, "", goal)
        return await self._sign_in.begin(visit, goal, name)

    # --- pages ---

    async def _page(self, visit: Visit, path: list[str]) -> LoginAnswer:
        request = visit.request
        if not visit.html:
            return answers.error(406, "this is a page for browsers")
        if not is_page_load(request):
            return answers.error(403, "this page does not accept requests from scripts")
        try:
            visitor = await self._browsers.find(request)
            if visitor is not None and path == ["device"] and (away := await self._device_step_up(visit, visitor)):
                return away
            if visitor is not None:
                answer = await self._pages.answer(path, request, visitor)
                return self._events.record_answer(request, answer, visitor=visitor.session.user.username)
        except LoginRefused as refusal:
            return self._events.record_refusal(
                refusal, request, answers.refusal(refusal).with_headers(self._browsers.forget())
            )
        except Exception as error:
            return self._events.record_failure(error, request)
        if request.method == "POST":
            return answers.error(401, "you are not signed in any more: the session has expired").with_headers(_BEARER)
        if path == ["device"]:
            return await self._device_signed_out(visit)
        to_sign_in = answers.redirect("/auth", 303)
        if path[0] != "admin":
            return to_sign_in
        not_signed_in = LoginRefused(
            "sign-in is required for this page", cause="not signed in: redirected to the sign-in page"
        )
        return self._events.record_refusal(not_signed_in, request, to_sign_in)

    async def _stream(self, visit: Visit, admin: AdminPages) -> LoginAnswer:
        """Return the event stream of an admin page. The key in the URL keeps scripts of other pages out."""
        request = visit.request
        if request.method != "GET":
            return answers.method_not_allowed(["GET"])
        try:
            visitor = await self._browsers.find(request)
            if visitor is None:
                return answers.error(401, "you are not signed in any more: the session has expired")
            if not comes_from(request, self._external_url) or not has_stream_key(request, visitor.stream_key):
                return answers.error(403, "this address is for a page of this session: load that page again")
            answer = await admin.stream(request, visitor)
            return self._events.record_answer(request, answer, visitor=visitor.session.user.username)
        except Exception as error:
            return self._events.record_failure(error, request)

    async def _device_signed_out(self, visit: Visit) -> LoginAnswer:
        code = normal_code(only(visit.request.query, "code") or "")
        if code:
            return await self._begin(visit, DeviceReturnTo(code))
        problem = "this is not a device code: a code has eight letters" if visit.request.query else ""
        return views.device_code(problem=problem)


_BEARER = ("WWW-Authenticate", answers.bearer_challenge().header("WWW-Authenticate") or "")
