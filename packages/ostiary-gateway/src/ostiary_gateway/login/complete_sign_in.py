"""Response to a sign-in: a token, a browser session, a redirect to another page, or an error.

A waiting command line receives the error as well, in the redirect that it waits for.
"""

from __future__ import annotations

from dataclasses import replace

from ostiary.errors import LoginRefused, OstiaryError
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.interfaces.identity import Challenge, LoginRequest
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.browser_session import BrowserSessions
from ostiary_gateway.login.command_line import Codes, FailedSignIns, callback
from ostiary_gateway.login.events import LoginEvents, failure_answer
from ostiary_gateway.login.identity_service import Elsewhere, Outcome, SignedIn
from ostiary_gateway.login.login_transactions import (
    ApplicationReturnTo,
    CliReturnTo,
    DeviceReturnTo,
    LoginTransactions,
    ReturnTo,
)
from ostiary_gateway.login.pages import views
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.session_lifetimes import SessionLifetimes
from ostiary_gateway.login.visit import AddressLimit, Visit, client_text
from ostiary_gateway.observability.tracing import traced_step
from ostiary_gateway.sessions import Tokens


class CompleteSignIn:
    """Build the response to a finished, denied or failed sign-in."""

    def __init__(
        self,
        tokens: Tokens,
        *,
        flows: LoginTransactions,
        codes: Codes,
        failures: FailedSignIns,
        browsers: BrowserSessions,
        events: LoginEvents,
        lengths: SessionLifetimes,
        starts: AddressLimit,
        step_up: bool,
    ) -> None:
        self._step_up = step_up
        self._tokens = tokens
        self._flows = flows
        self._codes = codes
        self._failures = failures
        self._browsers = browsers
        self._events = events
        self._lengths = lengths
        self._starts = starts

    async def answer(self, visit: Visit, outcome: Outcome, goal: ReturnTo) -> LoginAnswer:
        """Return the response for *outcome*.

        If the store raises an error, it is raised here, and nothing was issued.
        """
        if isinstance(outcome, Challenge):
            return answers.challenge(outcome.www_authenticate, outcome.advice)
        if isinstance(outcome, Elsewhere):
            return await self._send_elsewhere(visit, outcome)
        answer = await self._finish(visit, outcome, goal)
        proof = outcome.www_authenticate
        return answer.with_headers(("WWW-Authenticate", proof)) if proof else answer

    async def _finish(self, visit: Visit, outcome: SignedIn, goal: ReturnTo) -> LoginAnswer:
        if goal is None and not visit.html:
            return await self._issue(visit.request, outcome)
        headers = [self._flows.forget()]
        url = "/auth/token"
        if isinstance(goal, DeviceReturnTo):
            url = f"/auth/device?code={goal.user_code}"
        elif isinstance(goal, ApplicationReturnTo):
            url = f"/auth/application?request={goal.request}"
        elif isinstance(goal, CliReturnTo):
            code = await self._codes.issue(goal, outcome, visit.request)
            url = callback(goal, code=code)
            # The command line outlives the browser session, so its session gets the provider's stored state.
            outcome = replace(outcome, attested=replace(outcome.attested, kept=None))
        if visit.html:
            with traced_step("issue tokens"):
                session, cookie = await self._browsers.begin(visit.request, outcome)
            self._events.record_session(LoginEventKind.ISSUED, visit.request, session, status=303)
            headers.append(cookie)
        return answers.redirect(url, 303).with_headers(*headers)

    async def _issue(self, request: LoginRequest, signed_in: SignedIn) -> LoginAnswer:
        attested = signed_in.attested
        with traced_step("issue tokens"):
            pair = await self._tokens.issue(
                attested.user,
                provider=signed_in.provider,
                sources=attested.sources,
                client=client_text(request),
                kept=attested.kept,
                sequence=signed_in.sequence,
                origins=attested.origins,
                session_lifetime=self._lengths.of(signed_in.provider, kept=attested.kept is not None),
                until=attested.until,
            )
        self._events.record_session(LoginEventKind.ISSUED, request, pair.session)
        return answers.token_pair(pair, step_up=self._step_up).with_headers(self._flows.forget())

    async def _send_elsewhere(self, visit: Visit, outcome: Elsewhere) -> LoginAnswer:
        if wait := self._starts.wait(visit.request):
            return answers.too_many(wait)
        cookie = await self._flows.begin(outcome.flow)
        if outcome.form:
            return views.posted_form(outcome.url, outcome.form, (cookie,))
        if visit.html and visit.request.method == "POST":
            return views.leaving(outcome.url, (cookie,))
        return answers.redirect(outcome.url).with_headers(cookie)

    async def refusal(self, refusal: LoginRefused, request: LoginRequest, goal: ReturnTo) -> LoginAnswer:
        """Return the response to a denied sign-in, without recording it."""
        told = await self._callback_with_error(goal, refusal.code, refusal.summary, request)
        return told or answers.refusal(refusal)

    async def failure(self, error: Exception, request: LoginRequest, provider: str, goal: ReturnTo) -> LoginAnswer:
        """Record an outage or a contract violation of a provider. Return the response."""
        code = error.code if isinstance(error, OstiaryError) else "provider-failed"
        cause = error.summary if isinstance(error, LoginRefused) else failure_answer(error).message
        instead = await self._callback_with_error(goal, code, cause, request)
        return self._events.record_failure(error, request, provider, instead=instead)

    async def _callback_with_error(
        self, goal: ReturnTo, code: str, cause: str, request: LoginRequest
    ) -> LoginAnswer | None:
        """Return a redirect that reports the error to the waiting command line; None if there is none."""
        if not isinstance(goal, CliReturnTo):
            return None
        url = await self._failures.callback(goal, code, cause, request.request_id)
        return answers.redirect(url, 303).with_headers(self._flows.forget())
