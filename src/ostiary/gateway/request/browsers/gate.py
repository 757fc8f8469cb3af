"""The first step of a request to a web application: is it public, a program's, or a browser's, and whose?

    public path              forwarded without a user                         request.browsers.anonymous
    Authorization            a program: goes on as everywhere
    no cookie                a page load is led to the sign-in page, everything else gets a 401
    cookie                   a request of another site gets a 403; else the token is found, and the request goes on

Called by the engine for a head that it has not seen before, and only where an upstream has ``auth: browser`` or
``public``. It only says who sends a request: what they may do is decided as for programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ostiary.core.caching.cache import Cache
from ostiary.core.clock import Clock
from ostiary.errors import ProviderError, TooManyRequests
from ostiary.gateway.admit.limits import Limits
from ostiary.gateway.authenticate.application_cookie import PresentedCookie, presented_cookie
from ostiary.gateway.authenticate.authenticator import TokenAuthenticator
from ostiary.gateway.authenticate.browser_request import BrowserRequest, browser_request
from ostiary.gateway.authenticate.tokens_in_use import TokenInUse
from ostiary.gateway.config.values import is_listed
from ostiary.gateway.http1.headers import WEBSOCKET_BEARER
from ostiary.gateway.http1.request_head import RequestHead
from ostiary.gateway.request.answers import Answers
from ostiary.gateway.request.browsers.anonymous import AnonymousRequests
from ostiary.gateway.request.browsers.authorization import forward_authorization
from ostiary.gateway.request.browsers.pages import BrowserPages
from ostiary.gateway.request.request_tasks import RequestTasks
from ostiary.gateway.request.stages import OwnApi, Passage
from ostiary.gateway.request.target import AmbiguousRequest, split_target
from ostiary.gateway.upstream.applications import Applications
from ostiary.gateway.upstream.routes import Routes
from ostiary.gateway.upstream.upstreams import Upstream

# A page that stays open asks again and again with a token that has ended.
MOST_ENDED = 4096
ENDED_SECONDS = 10.0
_CROSS_SITE = "the request was sent by a page of another site"
_DO_IT_THERE = "Nothing was changed. If you meant to do this, open the application and do it there."
_NO_WORKER = "applications on the gateway's own host cannot install service workers"

Ask = Callable[[Passage, TokenInUse], None]


class BrowserGate:
    """For the requests of one engine. *ask* goes on with a request whose token is known."""

    def __init__(
        self,
        routes: Routes,
        applications: Applications,
        pages: BrowserPages,
        own_apis: Sequence[OwnApi],
        *,
        authenticator: TokenAuthenticator,
        limits: Limits,
        answers: Answers,
        tasks: RequestTasks,
        anonymous: AnonymousRequests,
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

    def take(self, passage: Passage) -> bool:
        """Handle a request that is public, or comes from a browser; False for all others."""
        request = passage.exchange.request
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
            self._anonymous.serve(passage)
            return True
        if not upstream.settings.is_application or not self._applications.origin(host):
            return False
        target = f"{path}?{query}" if query else path
        return self._take_browser(passage, upstream, host=host, target=target)

    def _take_browser(self, passage: Passage, upstream: Upstream, *, host: str, target: str) -> bool:
        request, scanned = passage.exchange.request, passage.scanned
        cookie = presented_cookie(request.headers, upstream.name, secure=self._applications.secure)
        passes_authorization = upstream.settings.pass_authorization and cookie is not None
        if _has_websocket_token(request) or (scanned.authorization is not None and not passes_authorization):
            return False
        browser = browser_request(request.method, request.headers, upgrade=request.upgrade)
        if browser.starts_worker and self._applications.is_gateways_own(host):
            # It would see whatever is sent to the sign-in pages, passwords included.
            self._refuse(passage, upstream, browser, _NO_WORKER)
        elif cookie is None:
            self._require_sign_in(passage, upstream, browser, target, attempted=False)
        elif not browser.is_from(self._applications.origin(host)):
            self._refuse(passage, upstream, browser, _CROSS_SITE)
        else:
            forward_authorization(scanned)
            self._identify(passage, upstream, browser, cookie, target)
        return True

    # --- who is it ---

    def _identify(
        self, passage: Passage, upstream: Upstream, browser: BrowserRequest, cookie: PresentedCookie, target: str
    ) -> None:
        token = self._authenticator.recall(cookie.digest)
        if token is not None:
            self._ask(passage, token)
        elif self._ended.get(cookie.digest):
            self._require_sign_in(passage, upstream, browser, target, attempted=True)
        else:
            self._tasks.start_for(passage, self._look_up(passage, upstream, browser, cookie, target))

    async def _look_up(
        self, passage: Passage, upstream: Upstream, browser: BrowserRequest, cookie: PresentedCookie, target: str
    ) -> None:
        address = passage.exchange.connection.remote_address
        try:
            async with self._limits.lookup(address):
                token = await self._authenticator.find_application(cookie)
            if passage.exchange.gone:
                return
            if token is None:
                # Not looked up again, so the next request with it is not charged.
                self._ended.put(cookie.digest, True)
                self._limits.failures.charge(address)
        except TooManyRequests as error:
            self._answers.send_too_many(passage, error, "failures")
        except ProviderError as error:
            self._answers.send_store_unavailable(passage, error, upstream)
        else:
            if token is not None:
                self._ask(passage, token)
            else:
                self._require_sign_in(passage, upstream, browser, target, attempted=True)

    # --- answers ---

    def _require_sign_in(
        self, passage: Passage, upstream: Upstream, browser: BrowserRequest, target: str, *, attempted: bool
    ) -> None:
        if browser.is_navigation:
            self._tasks.start_for(passage, self._begin_sign_in(passage, upstream, target))
        elif browser.shows_page:
            message = "you are not signed in any more, and what you sent was not forwarded"
            page = self._pages.refusal(passage, 401, message, upstream.settings.prefix)
            self._answers.send_page(passage, page.code, page.headers, page.body, reason="a form without a session")
        else:
            self._answers.send_sign_in_required(passage, attempted=attempted)

    async def _begin_sign_in(self, passage: Passage, upstream: Upstream, target: str) -> None:
        page = await self._pages.begin_sign_in(passage, upstream, target=target)
        self._answers.send_page(passage, page.code, page.headers, page.body, reason="not signed in: led to sign-in")

    def _refuse(self, passage: Passage, upstream: Upstream, browser: BrowserRequest, reason: str) -> None:
        if browser.shows_page:
            page = self._pages.refusal(passage, 403, reason, upstream.settings.prefix, _DO_IT_THERE)
            self._answers.send_page(passage, page.code, page.headers, page.body, reason=reason)
        else:
            self._answers.send_cross_site(passage, reason)


def _has_websocket_token(request: RequestHead) -> bool:
    return bool(request.upgrade) and any(
        WEBSOCKET_BEARER in value for name, value in request.headers if name.lower() == b"sec-websocket-protocol"
    )
