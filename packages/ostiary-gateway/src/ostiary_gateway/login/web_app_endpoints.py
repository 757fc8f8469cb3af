"""Web application sign-in for the proxy: redirects to sign-in, error pages, and checks of running sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ostiary.core.cache import Cache
from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused, OstiaryError, ProviderError
from ostiary.model import Secret
from ostiary_gateway.audit.source_ips import Network, source_ips
from ostiary_gateway.config.branding import DEFAULT_LOOK, Branding
from ostiary_gateway.interfaces.identity import LoginRequest, RequiredAuthentication
from ostiary_gateway.interfaces.token_store import Found, RevocationKind, Session
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.pages import views
from ostiary_gateway.login.pages.readers import Readers
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.login.visit import AddressLimit
from ostiary_gateway.login.web_apps import LONGEST_TARGET, ApplicationSignIns
from ostiary_gateway.proxy.applications import Applications
from ostiary_gateway.proxy.browsers import PageAnswer
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.sessions import Attested, Tokens, unseal_kept

# Sign-ins that one address may start without a session. Each is a record in the store for ten minutes.
STARTS_PER_MINUTE = 120.0


class ApplicationPages:
    """Implements `ostiary_gateway.proxy.browsers.BrowserPages`."""

    def __init__(
        self,
        applications: Applications,
        sign_ins: ApplicationSignIns,
        starts: Buckets,
        trusted_proxies: Sequence[Network] = (),
        *,
        look: Branding = DEFAULT_LOOK,
    ) -> None:
        self._applications = applications
        self._sign_ins = sign_ins
        self._starts = AddressLimit(starts)
        self._readers = Readers(look.for_other_proxies(), secure=applications.secure)
        self._trusted = trusted_proxies

    async def begin_sign_in(
        self, ctx: RequestContext, upstream: Upstream, *, target: str, required: RequiredAuthentication | None = None
    ) -> PageAnswer:
        host = ctx.exchange.request.host.decode("latin-1")
        request = self._request(ctx)
        if wait := self._starts.wait(request):
            return self._page(request, ctx, answers.too_many(wait), upstream.settings.prefix)
        if len(target) > LONGEST_TARGET:
            target = upstream.settings.prefix
        try:
            request_id, cookie = await self._sign_ins.begin(
                request,
                application=upstream.name,
                origin=self._applications.origin(host),
                target=target,
                required=required,
            )
        except OstiaryError:
            return self._page(request, ctx, answers.outage(503), upstream.settings.prefix)
        url = f"{self._applications.external_url}/auth/application?request={request_id}"
        return _encode(answers.redirect(url, 303).with_headers(cookie, ("Vary", "Accept, Cookie, Sec-Fetch-Mode")))

    def refusal(self, ctx: RequestContext, code: int, message: str, front: str, advice: str = "") -> PageAnswer:
        return self._page(self._request(ctx), ctx, answers.error(code, message), front, advice)

    def _page(
        self, request: LoginRequest, ctx: RequestContext, answer: LoginAnswer, front: str, advice: str = ""
    ) -> PageAnswer:
        # The URL is the application's: a language parameter would be forwarded to it.
        with self._readers.reading(request, linked=False):
            return _encode(views.application_error(answer, ctx.audit_id, front=front, advice=advice))

    def _request(self, ctx: RequestContext) -> LoginRequest:
        headers = tuple(
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in ctx.exchange.request.headers
        )
        forwarded = [line.decode("latin-1") for line in ctx.scanned.forwarded_for]
        remote = ctx.exchange.connection.remote_address
        address = source_ips(remote, forwarded_for=forwarded, trusted=self._trusted)[0]
        return LoginRequest("GET", "/auth/application", headers=headers, remote_address=address)


def _encode(answer: LoginAnswer) -> PageAnswer:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    return PageAnswer(answer.status, headers, answer.body)


# Checks of the user of a web application's session, as at a session refresh.
#
# The authenticator runs them when it reads the token of an application's cookie from the store, not for a cached token.
# A token is cached for the lifetime of an access token and then checked again, so a running application notices
# nothing: no redirect and no new cookie. A denial by the identity provider ends the session everywhere. If it cannot be
# queried, no request is let through.

# Sessions whose last check is cached.
MOST_CHECKS = 10_000
# Another worker may be refreshing the same session, with a refresh token that can be used only once.
MOST_TRIES = 20
PAUSE_SECONDS = 0.25

Recheck = Callable[[Session, LoginRequest, Secret | None], Awaitable[Attested]]
Pause = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _VisitorCheck:
    """Result of a check. `attested` is None if the identity provider denied it."""

    at: datetime
    attested: Attested | None


class ApplicationChecks:
    """Periodic checks, at the identity provider, of the users of application sessions."""

    def __init__(
        self, tokens: Tokens, recheck: Recheck, *, interval: timedelta, clock: Clock, pause: Pause = asyncio.sleep
    ) -> None:
        self._tokens = tokens
        self._recheck = recheck
        self._interval = interval
        self._clock = clock
        self._pause = pause
        self._checks: Cache[str, _VisitorCheck] = Cache(
            seconds=interval.total_seconds(), clock=clock, entries=MOST_CHECKS, share=MOST_CHECKS
        )

    async def check(self, stored: Found, keeping: Secret | None) -> Found | None:
        """Return *stored* with current attributes and the time until which it may be used. None if its user was denied.

        Raises `ProviderError` if the identity provider cannot be queried.
        """
        session = stored.session
        if self._clock.now() - session.created_at < self._interval:
            return _until(stored, session.created_at + self._interval)
        check = await self._checks.fill(session.id, lambda: self._ask(session, keeping))
        if check.attested is None:
            return None
        current = replace(session, user=check.attested.user, sources=check.attested.sources)
        return _until(replace(stored, session=current), check.at + self._interval)

    async def _ask(self, session: Session, keeping: Secret | None) -> _VisitorCheck:
        now = self._clock.now()
        for _ in range(MOST_TRIES):
            # Read first: a revocation from this moment on also ends the session written below.
            sequence = await self._tokens.sequence()
            try:
                attested = await self._attest(session, keeping)
            except LoginRefused as refusal:
                if refusal.retry_after is None:
                    by = "ostiary: refused by the identity provider at refresh"
                    await self._tokens.revoke(RevocationKind.SESSION, session.id, by=by)
                    return _VisitorCheck(now, None)
            else:
                current = replace(session, user=attested.user, sources=attested.sources, sequence=sequence)
                is_alive = await self._write(current, session, attested.kept, keeping)
                return _VisitorCheck(now, attested if is_alive else None)
            await self._pause(PAUSE_SECONDS)
            again = await self._tokens.store.session(session.id)
            if again is None:
                return _VisitorCheck(now, None)
            # The provider's stored state may contain another refresh token by now.
            session = again
        raise _could_not_ask(session, "another worker is asking about the same session")

    async def _attest(self, session: Session, keeping: Secret | None) -> Attested:
        kept = None if keeping is None else unseal_kept(session, keeping.reveal())
        try:
            attested = await self._recheck(session, LoginRequest("POST", "/auth/renew"), kept)
        except (LoginRefused, asyncio.CancelledError):
            raise
        except OstiaryError as error:
            raise _could_not_ask(session, error.cause or error.summary) from None
        except Exception as error:
            raise _could_not_ask(session, type(error).__name__) from None
        if attested.user.username != session.user.username:
            raise LoginRefused("this session has expired: sign in again", cause="the user name has changed")
        return attested

    async def _write(self, current: Session, before: Session, kept: Secret | None, keeping: Secret | None) -> bool:
        """Store the user and the provider's state. Return False if the session has ended in the meantime."""
        try:
            if kept is not None and keeping is not None:
                await self._tokens.keep(current, keeping.reveal(), kept, expires_at=current.expires_at)
            elif current.user != before.user:
                if await self._tokens.store.session(current.id) is None:
                    return False
                await self._tokens.store.add(current, [])
        except LoginRefused:
            # The session was revoked in the meantime.
            return False
        return True


def _until(stored: Found, moment: datetime) -> Found:
    return replace(stored, token=replace(stored.token, expires_at=min(stored.token.expires_at, moment)))


def _could_not_ask(session: Session, cause: str) -> ProviderError:
    error = ProviderError("the user of a session cannot be checked", cause=cause, code="provider-failed")
    error.username = session.user.username
    return error
