"""The routes that a web application's visitors pass: sign in and come back, and sign out.

    gateway's host       /auth/application?request=ID    signs in, and sends the browser back with a code
    application's host   /auth/application?code=CODE     sets the cookie, and leads to where the browser wanted to go
                         /auth/logout                    ends the session everywhere
                         anything else below /auth       is at the gateway's host

Called by the routes of ``/auth``. The hosts may be the same one: then the steps are, too.
"""

from __future__ import annotations

from ostiary.core.clock import Clock
from ostiary.core.tokens import ApplicationTokens
from ostiary.errors import LoginRefused
from ostiary.gateway.audit.sign_ins import LoginEventKind
from ostiary.gateway.authenticate.application_cookie import (
    PresentedCookie,
    cookie_value,
    presented_cookie,
)
from ostiary.gateway.login import answers
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.applications.sign_ins import ApplicationSignIns, Redeemed, SignInRequest
from ostiary.gateway.login.cookies import Cookie
from ostiary.gateway.login.events import LoginEvents
from ostiary.gateway.login.pages import views
from ostiary.gateway.login.pages.messages import say
from ostiary.gateway.login.sessions.browser import BrowserSessions, form_token
from ostiary.gateway.login.sessions.calls import SessionCalls
from ostiary.gateway.login.sign_in.flows import ApplicationGoal
from ostiary.gateway.login.sign_in.paths import SignInPaths
from ostiary.gateway.login.sign_in.required import is_enough
from ostiary.gateway.login.visit import AddressLimit, Visit, comes_from, has_form_token, is_page_load, only
from ostiary.gateway.upstream.applications import Applications
from ostiary.interfaces.identity import LoginRequest
from ostiary.interfaces.token_store import Session

_EXPIRED = "this sign-in has expired: open the application again"


class ApplicationVisits:
    def __init__(
        self,
        applications: Applications,
        sign_ins: ApplicationSignIns,
        tokens: ApplicationTokens,
        *,
        browsers: BrowserSessions,
        sign_in: SignInPaths,
        sessions: SessionCalls,
        events: LoginEvents,
        starts: AddressLimit,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._applications = applications
        self._sign_ins = sign_ins
        self._tokens = tokens
        self._browsers = browsers
        self._sign_in = sign_in
        self._sessions = sessions
        self._events = events
        self._starts = starts

    async def answer(self, visit: Visit, path: list[str]) -> LoginAnswer | None:
        """*path* is what follows ``/auth``. None: it is nothing about web applications."""
        host = visit.request.header("host") or ""
        is_gateways_own = self._applications.is_gateways_own(host)
        if path == ["application"]:
            return await self._application(visit, host, is_gateways_own=is_gateways_own)
        if not visit.html or not self._applications.at(host):
            return None
        if path == ["logout"]:
            return await self._sign_out(visit.request, host, is_gateways_own=is_gateways_own)
        if is_gateways_own:
            return None
        if visit.request.method not in ("GET", "HEAD"):
            return answers.error(404, "page not found")
        # Nobody signs in at the host of an application, whose scripts would see the password.
        return answers.redirect(self._applications.external_url + visit.request.path, 303)

    # --- sign in, and come back ---

    async def _application(self, visit: Visit, host: str, *, is_gateways_own: bool) -> LoginAnswer:
        request = visit.request
        if request.method not in ("GET", "HEAD"):
            return answers.method_not_allowed(["GET"])
        if not visit.html or not is_page_load(request):
            return answers.error(403, "this page does not accept requests from scripts")
        code, request_id = only(request.query, "code"), only(request.query, "request")
        try:
            if code is not None and self._applications.at(host):
                return await self._arrive(request, code, host)
            sign_in_request = (
                await self._sign_ins.find(request_id) if request_id is not None and is_gateways_own else None
            )
            if sign_in_request is None or request_id is None:
                return answers.error(400, _EXPIRED)
            return await self._enter(visit, sign_in_request, request_id)
        except LoginRefused as refusal:
            return self._events.record_refusal(refusal, request, answers.refusal(refusal))
        except Exception as error:
            return self._events.record_failure(error, request)

    async def _enter(self, visit: Visit, sign_in_request: SignInRequest, request_id: str) -> LoginAnswer:
        visitor, required = await self._browsers.find(visit.request), sign_in_request.required
        if visitor is None or not is_enough(visitor.session.user, required, self._clock.now()):
            goal = ApplicationGoal(request_id, sign_in_request.application, sign_in_request.origin, required)
            return await self._sign_in.begin(visit, goal, None if visitor is None else visitor.session.provider)
        if wait := self._starts.wait(visit.request):
            return answers.too_many(wait)
        # Who may no longer sign in gets no code; what was attested a while ago is checked again.
        await self._browsers.attest(visitor, visit.request)
        # Read again: the check may have changed what is kept.
        visitor = await self._browsers.find(visit.request) or visitor
        code = await self._sign_ins.issue_code(sign_in_request, visitor)
        return answers.redirect(f"{sign_in_request.origin}/auth/application?code={code}", 303)

    async def _arrive(self, request: LoginRequest, code: str, host: str) -> LoginAnswer:
        redeemed = await self._sign_ins.redeem(request, code, self._applications.origin(host))
        sign_in_request = redeemed.sign_in_request
        if self._cookie(sign_in_request.application).occurrences(request) > 1:
            # A new one would be one of several again, and the browser be led here once more.
            raise LoginRefused(
                "your browser sends several cookies of one name: delete the cookies of this site, and try again",
                cause="somebody else has set a cookie with the name of ours",
            )
        path = sign_in_request.target.partition("?")[0]
        if sign_in_request.application not in self._applications.serving(host, path):
            raise LoginRefused(_EXPIRED, cause="the configuration has changed: the target is not the application's")
        session, cookie = await self._begin(redeemed)
        answer = answers.redirect(sign_in_request.target, 303).with_headers(cookie)
        reason = f'for the web application "{sign_in_request.application}"'
        self._events.record_session(LoginEventKind.ISSUED, request, session, status=303, reason=reason)
        return answer

    async def _begin(self, redeemed: Redeemed) -> tuple[Session, tuple[str, str]]:
        application = redeemed.sign_in_request.application
        session, token = await self._tokens.issue(redeemed.session_id, application)
        lasts = (session.expires_at - session.created_at).total_seconds()
        return session, self._cookie(application).set(cookie_value(token, redeemed.keeping), seconds=lasts)

    # --- sign out ---

    async def _sign_out(self, request: LoginRequest, host: str, *, is_gateways_own: bool) -> LoginAnswer | None:
        """End the sessions that this browser has at the applications of *host*.

        None at the gateway's own host if the person is signed in there: that session has a page of its own.
        """
        try:
            if is_gateways_own and await self._browsers.find(request) is not None:
                return None
            presented = self._presented(request, host)
            entries = [await self._tokens.find(cookie.digest) for cookie in presented]
            sessions = [entry.session for entry in entries if entry is not None]
            signed_out = self._signed_out_page(host)
            if not sessions:
                return signed_out
            tokens = [form_token(cookie.token) for cookie in presented]
            is_form = request.method == "POST" and comes_from(request, self._applications.origin(host))
            if not _is_own_click(request) and not (is_form and any(has_form_token(request, each) for each in tokens)):
                if request.method == "POST":
                    return answers.error(403, "the form was sent from another site")
                return views.sign_out(sessions[0].user.username, tokens[0])
            for session in sessions:
                await self._sessions.end(session, request, signed_out)
        except Exception as error:
            return self._events.record_failure(error, request)
        return signed_out

    def _presented(self, request: LoginRequest, host: str) -> list[PresentedCookie]:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers]
        secure = self._applications.secure
        cookies = (presented_cookie(headers, each.name, secure=secure) for each in self._applications.at(host))
        return [cookie for cookie in cookies if cookie is not None]

    def _signed_out_page(self, host: str) -> LoginAnswer:
        return views.message(
            say("sign_out.done_title"),
            say("application.signed_out"),
            link=(self._applications.at(host)[0].settings.prefix, say("application.open_again")),
            headers=[self._cookie(each.name).forget() for each in self._applications.at(host)],
        )

    def _cookie(self, application: str) -> Cookie:
        return Cookie(f"app-{application}", secure=self._applications.secure)


def _is_own_click(request: LoginRequest) -> bool:
    """Whether a person has clicked on a link of the application itself. Other sites' links must not sign people out."""
    expected = {
        "sec-fetch-site": "same-origin",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
        "sec-fetch-user": "?1",
    }
    return request.method == "GET" and all(request.header(name) == value for name, value in expected.items())
