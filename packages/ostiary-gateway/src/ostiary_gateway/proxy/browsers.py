"""Requests to web applications: authenticate browsers by cookie, and forward public paths without a user.

    public path        forwarded without a user
    Authorization      another client: continues like any other request
    no cookie          a page load is redirected to sign in, any other request gets a 401
    cookie             a request from another site gets a 403; otherwise the token is looked up

The gate runs for heads that are not cached, if an upstream has ``auth: browser`` or ``public``. It only authenticates;
authorization is the same as for other clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from ostiary.core.cache import Cache
from ostiary.core.clock import Clock
from ostiary.errors import ProviderError, TooManyRequests
from ostiary.model import UserInfo
from ostiary_gateway.audit.source_ips import Network, source_ips
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authentication.cookies import BrowserRequest, PresentedCookie, browser_request, presented_cookie
from ostiary_gateway.authentication.token_cache import CachedToken, KnownUser
from ostiary_gateway.authorization.cached_decision import NOTHING_ASKED
from ostiary_gateway.config.values import is_listed
from ostiary_gateway.http1.headers import WEBSOCKET_BEARER, FilteredHeaders, Headers
from ostiary_gateway.http1.request_head import RequestHead
from ostiary_gateway.interfaces.identity import RequiredAuthentication
from ostiary_gateway.interfaces.token_store import Found, Session, TokenRecord
from ostiary_gateway.limits.limits import Limits
from ostiary_gateway.networks import network
from ostiary_gateway.proxy.applications import Applications
from ostiary_gateway.proxy.context import BuiltinApi, RequestContext, RequestPlan
from ostiary_gateway.proxy.plan_cache import Planner
from ostiary_gateway.proxy.request_tasks import RequestTasks
from ostiary_gateway.proxy.resolver import NoRoute, RequestResolver
from ostiary_gateway.proxy.responses import Responses
from ostiary_gateway.proxy.routes import Routes
from ostiary_gateway.proxy.target import AmbiguousRequest, split_target
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.sessions import well_formed


def forward_authorization(scanned: FilteredHeaders) -> None:
    """Forward an application's ``Authorization`` header, unless it contains a token of the gateway.

    Called for an upstream with ``passAuthorization`` if the user is authenticated by a cookie, or the path is public.
    In any other request the header is for the gateway.
    """
    authorization, scanned.authorization = scanned.authorization, None
    if authorization is None:
        return
    # In any position: upstreams differ in the spaces and schemes that they accept.
    if not any(well_formed(part) for part in authorization.split()):
        scanned.lines += b"Authorization: " + authorization + b"\r\n"


# Public paths: forwarded without a user and without authorization.

ANONYMOUS = UserInfo("system:anonymous", groups=("system:unauthenticated",))
_NEVER = datetime.max.replace(tzinfo=UTC)
_ALWAYS = datetime.min.replace(tzinfo=UTC)
_NOBODY = Found(TokenRecord(b"", "", _ALWAYS, _NEVER), Session("", ANONYMOUS, "", _ALWAYS, _NEVER))

Admit = Callable[[RequestContext, CachedToken, RequestPlan], None]


class PublicPathAccess:
    """Serves the public paths of one engine. *admit* continues with an authorized request.

    Audit events have Kubernetes' anonymous user. Limits apply per network address, so that one visitor of public pages
    cannot use up the limits of all.
    """

    def __init__(
        self,
        questions: RequestResolver,
        planner: Planner,
        limits: Limits,
        answers: Responses,
        admit: Admit,
        *,
        trusted_proxies: Sequence[Network] = (),
    ) -> None:
        self._trusted_proxies = trusted_proxies
        self._questions = questions
        self._planner = planner
        self._limits = limits
        self._answers = answers
        self._admit = admit
        self._known_user = KnownUser(ANONYMOUS)

    def serve(self, ctx: RequestContext) -> None:
        request = ctx.exchange.request
        try:
            question = self._questions.of(request)
        except (AmbiguousRequest, ValueError) as error:
            self._answers.send_bad_request(ctx, str(error))
            return
        except NoRoute:
            self._answers.send_no_route(ctx)
            return
        assert question.public, "the gate has looked at the same path"
        if question.upstream is not None and question.upstream.settings.pass_authorization:
            forward_authorization(ctx.scanned)
        plan = self._planner.make(request, question, NOTHING_ASKED, ANONYMOUS)
        forwarded = [line.decode("latin-1") for line in ctx.scanned.forwarded_for]
        remote = ctx.exchange.connection.remote_address
        address = network(source_ips(remote, forwarded_for=forwarded, trusted=self._trusted_proxies)[0])
        plan.share = self._limits.share(UserInfo(f"{ANONYMOUS.username} {address}", groups=ANONYMOUS.groups))
        # A token per request: revoking it closes the stream of this request, but not of later ones.
        self._admit(ctx, CachedToken(_NOBODY, self._known_user), plan)


class PageAnswer(NamedTuple):
    """A page, or a redirect to one."""

    code: int
    headers: Headers
    body: bytes


class BrowserPages(Protocol):
    async def begin_sign_in(
        self, ctx: RequestContext, upstream: Upstream, *, target: str, required: RequiredAuthentication | None = None
    ) -> PageAnswer:
        """Redirect the browser to sign in, and then back to *target*, a path and query on the same host.

        *required* is what a signed-in user must prove in addition.
        """

    def refusal(self, ctx: RequestContext, code: int, message: str, front: str, advice: str = "") -> PageAnswer:
        """Return an error page with a link to *front*, the prefix of the application.

        *advice* is what to do about the error if missing permissions are not the reason.
        """


# A page that stays open repeats its requests with an expired session.
MOST_ENDED = 4096
ENDED_SECONDS = 10.0
_CROSS_SITE = "the request was sent by a page of another site"
_DO_IT_THERE = "Nothing was changed. If you meant to do this, open the application and do it there."
_NO_WORKER = "applications on the gateway's own host cannot install service workers"

Ask = Callable[[RequestContext, CachedToken], None]


class BrowserGate:
    """Authenticate the browsers of one engine. *ask* continues with a request whose token was found."""

    def __init__(
        self,
        routes: Routes,
        applications: Applications,
        pages: BrowserPages,
        own_apis: Sequence[BuiltinApi],
        *,
        authenticator: TokenAuthenticator,
        limits: Limits,
        answers: Responses,
        tasks: RequestTasks,
        anonymous: PublicPathAccess,
        ask: Ask,
        clock: Clock,
    ) -> None:
        self._routes = routes
        self._applications = applications
        self._pages = pages
        self._own_prefixes = tuple(own.prefix for own in own_apis)
        self._authenticator = authenticator
        self._limits = limits
        self._answers = answers
        self._tasks = tasks
        self._anonymous = anonymous
        self._ask = ask
        self._ended: Cache[bytes, bool] = Cache(
            seconds=ENDED_SECONDS, clock=clock, entries=MOST_ENDED, share=MOST_ENDED
        )

    def take(self, ctx: RequestContext) -> bool:
        """Serve a request if it is public or from a browser. Return False for all others."""
        request = ctx.exchange.request
        host = request.host.decode("latin-1")
        try:
            path, query = split_target(request.target, host=request.host, any_name=True)
        except AmbiguousRequest:
            return False
        if path.startswith(self._own_prefixes):
            return False
        upstream = self._routes.find(host, path)
        if upstream is None:
            return False
        if upstream.settings.public and is_listed(path, upstream.settings.public):
            self._anonymous.serve(ctx)
            return True
        if not upstream.settings.is_application or not self._applications.origin(host):
            return False
        target = f"{path}?{query}" if query else path
        return self._take_browser(ctx, upstream, host=host, target=target)

    def _take_browser(self, ctx: RequestContext, upstream: Upstream, *, host: str, target: str) -> bool:
        request, scanned = ctx.exchange.request, ctx.scanned
        cookie = presented_cookie(request.headers, upstream.name, secure=self._applications.secure)
        passes_authorization = upstream.settings.pass_authorization and cookie is not None
        if _has_websocket_token(request) or (scanned.authorization is not None and not passes_authorization):
            return False
        browser = browser_request(request.method, request.headers, upgrade=request.upgrade)
        if browser.starts_worker and self._applications.is_gateways_own(host):
            # A service worker would see everything that is sent to the sign-in pages, including passwords.
            self._refuse(ctx, upstream, browser, _NO_WORKER)
        elif cookie is None:
            self._require_sign_in(ctx, upstream, browser, target, attempted=False)
        elif not browser.is_from(self._applications.origin(host)):
            self._refuse(ctx, upstream, browser, _CROSS_SITE)
        else:
            forward_authorization(scanned)
            self._identify(ctx, upstream, browser, cookie, target)
        return True

    # --- authentication ---

    def _identify(
        self, ctx: RequestContext, upstream: Upstream, browser: BrowserRequest, cookie: PresentedCookie, target: str
    ) -> None:
        token = self._authenticator.recall(cookie.digest)
        if token is not None:
            self._ask(ctx, token)
        elif self._ended.get(cookie.digest):
            self._require_sign_in(ctx, upstream, browser, target, attempted=True)
        else:
            self._tasks.start_for(ctx, self._look_up(ctx, upstream, browser, cookie, target))

    async def _look_up(
        self, ctx: RequestContext, upstream: Upstream, browser: BrowserRequest, cookie: PresentedCookie, target: str
    ) -> None:
        address = ctx.exchange.connection.remote_address
        try:
            async with self._limits.lookup(address):
                token = await self._authenticator.find_application(cookie)
            if ctx.exchange.gone:
                return
            if token is None:
                # Cached, so that repeated requests with this cookie are not charged.
                self._ended.put(cookie.digest, True)
                self._limits.failures.charge(address)
        except TooManyRequests as error:
            self._answers.send_too_many(ctx, error, "failures")
        except ProviderError as error:
            self._answers.send_store_unavailable(ctx, error, upstream)
        else:
            if token is not None:
                self._ask(ctx, token)
            else:
                self._require_sign_in(ctx, upstream, browser, target, attempted=True)

    # --- responses ---

    def _require_sign_in(
        self, ctx: RequestContext, upstream: Upstream, browser: BrowserRequest, target: str, *, attempted: bool
    ) -> None:
        if browser.is_navigation:
            self._tasks.start_for(ctx, self._begin_sign_in(ctx, upstream, target))
        elif browser.shows_page:
            message = "you are not signed in any more, and what you sent was not forwarded"
            page = self._pages.refusal(ctx, 401, message, upstream.settings.prefix)
            self._answers.send_page(ctx, page.code, page.headers, page.body, reason="a form without a session")
        else:
            self._answers.send_sign_in_required(ctx, attempted=attempted)

    async def _begin_sign_in(self, ctx: RequestContext, upstream: Upstream, target: str) -> None:
        page = await self._pages.begin_sign_in(ctx, upstream, target=target)
        self._answers.send_page(ctx, page.code, page.headers, page.body, reason="not signed in: led to sign-in")

    def _refuse(self, ctx: RequestContext, upstream: Upstream, browser: BrowserRequest, reason: str) -> None:
        if browser.shows_page:
            page = self._pages.refusal(ctx, 403, reason, upstream.settings.prefix, _DO_IT_THERE)
            self._answers.send_page(ctx, page.code, page.headers, page.body, reason=reason)
        else:
            self._answers.send_cross_site(ctx, reason)


def _has_websocket_token(request: RequestHead) -> bool:
    return bool(request.upgrade) and any(
        WEBSOCKET_BEARER in value for name, value in request.headers if name.lower() == b"sec-websocket-protocol"
    )
