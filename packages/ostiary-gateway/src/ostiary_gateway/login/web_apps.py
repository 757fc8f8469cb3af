"""Sign-in for web applications: store where the browser was going, and return it there with a single-use code.

    application's host   begin   -> an id in the URL, and a secret in a cookie: the record has the target and a digest
    gateway's host       find    -> the user signs in, or is signed in already
                         issue   -> a code in the URL, valid once and for half a minute
    application's host   redeem  -> only for the browser whose cookie has the secret of `begin`

The target is validated before it is stored; no URL is taken from a request to ``/auth``. The id is not a secret: a
browser that follows a link with another user's id or code lacks the matching cookie. It can neither put its own session
into another browser nor obtain another user's session.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from hmac import compare_digest

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused
from ostiary.model import Secret
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.authentication.cookies import PresentedCookie, cookie_value, presented_cookie
from ostiary_gateway.interfaces.identity import LoginRequest, RequiredAuthentication
from ostiary_gateway.interfaces.token_store import RecordStore, Session
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.browser_session import BrowserSessions, Visitor, form_token
from ostiary_gateway.login.cookies import Cookie
from ostiary_gateway.login.events import LoginEvents
from ostiary_gateway.login.login_transactions import ApplicationReturnTo
from ostiary_gateway.login.pages import views
from ostiary_gateway.login.pages.messages import say
from ostiary_gateway.login.provider_routes import ProviderRoutes
from ostiary_gateway.login.records import Records
from ostiary_gateway.login.required import is_enough, required_from_json, required_json
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.session_api import SessionApi
from ostiary_gateway.login.visit import AddressLimit, Visit, comes_from, has_form_token, is_page_load, only
from ostiary_gateway.proxy.applications import Applications
from ostiary_gateway.sessions import ApplicationTokens

LIFETIME = timedelta(minutes=10)
# The browser follows the redirect immediately.
CODE_LIFETIME = timedelta(seconds=30)
# A longer target is not stored: the browser then returns to the application's prefix.
LONGEST_TARGET = 2048
_SECRET_LENGTH = 43


@dataclass(frozen=True, slots=True)
class SignInRequest:
    """A browser requested `target` of an application at `origin`. `browser` is the digest of its secret."""

    application: str
    origin: str
    target: str
    browser: str
    # The authentication required even of a user who is signed in.
    required: RequiredAuthentication | None = None


@dataclass(frozen=True, slots=True)
class Redeemed:
    """A redeemed code: its session, and what the application's cookie needs in addition to the token."""

    sign_in_request: SignInRequest
    session_id: str
    keeping: Secret | None


class ApplicationSignIns:
    """Pending sign-ins for web applications, and their single-use codes."""

    def __init__(self, store: RecordStore, *, secure: bool, clock: Clock) -> None:
        self._requests = Records(store, "application sign-in", LIFETIME, clock=clock)
        self._codes = Records(store, "application code", CODE_LIFETIME, clock=clock)
        self._cookie = Cookie("visit", secure=secure)

    async def begin(
        self,
        request: LoginRequest,
        *,
        application: str,
        origin: str,
        target: str,
        required: RequiredAuthentication | None = None,
    ) -> tuple[str, tuple[str, str]]:
        """Store where the browser was going. Return the id and the Set-Cookie header that binds it to the browser."""
        # One secret for all tabs: a new one would invalidate the sign-in in the first tab.
        secret = self._secret(request) or secrets.token_urlsafe(32)
        request_id = secrets.token_urlsafe(32)
        value = {"application": application, "origin": origin, "target": target, "browser": _digest(secret)}
        more = {} if required is None else {"required": required_json(required)}
        await self._requests.put(request_id, {**value, **more})
        return request_id, self._cookie.set(secret, seconds=LIFETIME.total_seconds())

    async def find(self, request_id: str) -> SignInRequest | None:
        value = await self._requests.find(request_id)
        if value is None:
            return None
        required = required_from_json(value["required"]) if "required" in value else None
        return SignInRequest(**{**value, "required": required})

    async def issue_code(self, sign_in_request: SignInRequest, visitor: Visitor) -> str:
        """Issue a code for the session of *visitor*."""
        code = secrets.token_urlsafe(32)
        value = {
            "application": sign_in_request.application,
            "origin": sign_in_request.origin,
            "target": sign_in_request.target,
        }
        keeping = visitor.keeping.reveal() if visitor.session.sealed else ""
        binding = {"browser": sign_in_request.browser, "session": visitor.session.id, "keeping": keeping}
        await self._codes.put(code, {**value, **binding})
        return code

    async def redeem(self, request: LoginRequest, code: str, origin: str) -> Redeemed:
        """Return what *code* was issued for, at the application of *origin*. The code is consumed in any case.

        Raises `LoginRefused` if it is invalid.
        """
        value = await self._codes.take(code)
        if value is None:
            raise LoginRefused("this sign-in has expired: open the application again", cause="unknown or spent code")
        sign_in_request = SignInRequest(value["application"], value["origin"], value["target"], value["browser"])
        if sign_in_request.origin != origin:
            raise LoginRefused(_OTHER_BROWSER, cause="the code is for another host")
        if not compare_digest(sign_in_request.browser, _digest(self._secret(request))):
            raise LoginRefused(_OTHER_BROWSER, cause="the code was issued for another browser")
        return Redeemed(sign_in_request, value["session"], Secret(value["keeping"]) if value["keeping"] else None)

    def _secret(self, request: LoginRequest) -> str:
        secret = self._cookie.of(request)
        return secret if len(secret) == _SECRET_LENGTH else ""


_OTHER_BROWSER = "this sign-in was started in another browser: open the application again"


def _digest(secret: str) -> str:
    return sha256(b"ostiary browser\0" + secret.encode("utf-8", "surrogatepass")).hexdigest()


# The sign-in and sign-out routes of web applications. The hosts may be the same one, with the same steps.
#
#     gateway's host       /auth/application?request=ID    sign in, and redirect back with a code
#     application's host   /auth/application?code=CODE     set the cookie, and redirect to the target
#                          /auth/logout                    end the session everywhere
#                          anything else below /auth       redirect to the gateway's host

_EXPIRED = "this sign-in has expired: open the application again"


class ApplicationVisits:
    """The endpoints below ``/auth`` that sign browsers in and out of web applications."""

    def __init__(
        self,
        applications: Applications,
        sign_ins: ApplicationSignIns,
        tokens: ApplicationTokens,
        *,
        browsers: BrowserSessions,
        sign_in: ProviderRoutes,
        sessions: SessionApi,
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
        """Respond to a request; *path* is what follows ``/auth``.

        Return None if it does not concern web applications.
        """
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
        # Never show a sign-in page at an application's host, whose scripts could read the password.
        return answers.redirect(self._applications.external_url + visit.request.path, 303)

    # --- sign in and return ---

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
            goal = ApplicationReturnTo(request_id, sign_in_request.application, sign_in_request.origin, required)
            return await self._sign_in.begin(visit, goal, None if visitor is None else visitor.session.provider)
        if wait := self._starts.wait(visit.request):
            return answers.too_many(wait)
        # A user who may no longer sign in gets no code. An attestation that is not recent is checked again.
        await self._browsers.attest(visitor, visit.request)
        # Read again: the check may have changed the provider's stored state.
        visitor = await self._browsers.find(visit.request) or visitor
        code = await self._sign_ins.issue_code(sign_in_request, visitor)
        return answers.redirect(f"{sign_in_request.origin}/auth/application?code={code}", 303)

    async def _arrive(self, request: LoginRequest, code: str, host: str) -> LoginAnswer:
        redeemed = await self._sign_ins.redeem(request, code, self._applications.origin(host))
        sign_in_request = redeemed.sign_in_request
        if self._cookie(sign_in_request.application).occurrences(request) > 1:
            # A new cookie would be one of several again, and the browser would be redirected here in a loop.
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

        Return None at the gateway's own host if the user is signed in there: that session has its own sign-out page.
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
    """Report whether the user clicked a link of the application itself.

    Links of other sites must not sign users out.
    """
    expected = {
        "sec-fetch-site": "same-origin",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
        "sec-fetch-user": "?1",
    }
    return request.method == "GET" and all(request.header(name) == value for name, value in expected.items())
