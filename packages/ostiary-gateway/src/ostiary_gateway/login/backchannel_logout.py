"""Logouts started by an IdP: at ``/auth/<name>/logout``, by its server (back channel) or through a browser.

    handle_logout -> which sign-in has ended -> was this message used before -> every session of that sign-in ends

Cookies are ignored: only the message counts, and the provider verifies it. A logout that arrives while its sign-in is
in progress is not lost: the store has its number, and rejects sessions whose sign-in started before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused, ProviderError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import LoginRequest, Logout, PostedForm, Redirect, TakesLogouts
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.interfaces.token_store import OriginStore, RevocationKind
from ostiary_gateway.limits.rates import Buckets
from ostiary_gateway.login import responses as answers
from ostiary_gateway.login.browser_session import BrowserSessions
from ostiary_gateway.login.cookies import without_cookies
from ostiary_gateway.login.events import LoginEvents
from ostiary_gateway.login.pages import views
from ostiary_gateway.login.provider_contract import checked_url, contract_broken
from ostiary_gateway.login.replay_cache import UsedTokens
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.networks import network
from ostiary_gateway.sessions import Tokens, ended_origins

# Unverified messages from one address, and messages that any client could have sent. The limit is high: behind a proxy
# that is not trusted, the IdP shares its address with all clients, and its logouts must get through.
DOUBTFUL_PER_MINUTE = 600.0
USED = "used-logout"
# Sessions of one sign-in that are listed to find their users. All of its sessions end.
MOST_LISTED = 1000


# An IdP may load this response in a frame. It contains nothing to click.
_DONE = LoginAnswer(
    200,
    (
        ("Cache-Control", "no-store"),
        ("Pragma", "no-cache"),
        ("Referrer-Policy", "no-referrer"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Security-Policy", "default-src 'none'"),
    ),
)


class Logouts:
    """Handle logouts that an IdP initiates: end the sessions of the sign-in that the message names."""

    def __init__(
        self,
        identity: Mapping[str, Identity],
        tokens: Tokens,
        *,
        browsers: BrowserSessions,
        events: LoginEvents,
        external_url: str,
        provider_seconds: float,
        clock: Clock,
        counts: ImmediateCounts | None = None,
    ) -> None:
        self._taking = {
            name: taking
            for name, each in identity.items()
            if (taking := ability(each.instance, TakesLogouts)) is not None
        }
        self._tokens = tokens
        self._store = ability(tokens.store, OriginStore)
        objects = ability(tokens.store, ObjectStore)
        self._used = None if objects is None else UsedTokens(objects, clock=clock, kind=USED)
        self._browsers = browsers
        self._events = events
        self._external_url = external_url
        self._seconds = provider_seconds
        rate = DOUBTFUL_PER_MINUTE
        self._doubtful = Buckets(rate / 60, rate, clock=clock, counts=counts, name="doubtful logouts")

    def at(self, name: str) -> str:
        """Return the logout URL to register at the IdP of this provider."""
        return f"{self._external_url}/auth/{name}/logout"

    def takes(self, provider: Identity | None) -> bool:
        return provider is not None and provider.name in self._taking

    async def answer(self, request: LoginRequest, provider: Identity) -> LoginAnswer:
        if request.method not in ("GET", "POST"):
            return answers.method_not_allowed(["GET", "POST"])
        address = network(request.remote_address)
        if wait := self._doubtful.empty_for(address):
            return answers.too_many(wait)
        ended: dict[str, int] = {}
        try:
            logout = await self._ask(request, provider)
            if not logout.verified:
                self._doubtful.take(address)
            await self._apply(logout, provider, ended)
            answer = await self._going_on(logout, request, provider)
        except LoginRefused as refusal:
            self._doubtful.take(address)
            answer = answers.error(400, "the logout is not accepted")
            return self._events.record_refusal(refusal, request, answer, provider.name)
        except Exception as error:
            answer = self._events.record_failure(error, request, provider.name)
        if len(ended) > 1:
            # Drop the entry without a username if other origins ended sessions of a named user.
            ended.pop("", None)
        for username, count in ended.items():
            self._events.record_logout(
                request, provider=provider.name, username=username, sessions=count, status=answer.status
            )
        return answer

    async def _going_on(self, logout: Logout, request: LoginRequest, provider: Identity) -> LoginAnswer:
        if logout.is_return:
            # A link to this path signs no user out.
            is_signed_in = await self._browsers.find(request) is not None
            return answers.redirect("/auth/token", 303) if is_signed_in else views.signed_out()
        if isinstance(logout.answer, Redirect):
            return answers.redirect(checked_url(logout.answer.url, provider.name), 303)
        if isinstance(logout.answer, PostedForm):
            return views.posted_form(checked_url(logout.answer.url, provider.name), logout.answer.fields)
        return _DONE

    async def _ask(self, request: LoginRequest, provider: Identity) -> Logout:
        shown = replace(without_cookies(request), callback_url=self.at(provider.name))
        async with asyncio.timeout(self._seconds):
            logout: object = await self._taking[provider.name].handle_logout(shown)
        if not isinstance(logout, Logout):
            raise contract_broken(provider, f"it answered with {type(logout).__name__}, instead of a logout")
        if bool(logout.token_id) != (logout.once_until is not None):
            raise contract_broken(provider, "a message that is good once has an id, and a time until which it is kept")
        return logout

    async def _apply(self, logout: Logout, provider: Identity, ended: dict[str, int]) -> None:
        """End the sessions that *logout* names, and count them per user in *ended*."""
        origins = ended_origins(provider.name, session_id=logout.session_id, subject=logout.subject)
        if not origins:
            return
        if self._store is None or self._used is None:
            raise _store_cannot()
        if logout.token_id and await self._used.was_used(provider.name, logout.token_id):
            raise LoginRefused("the logout is not accepted", cause="the message was used before")
        await self._end(self._store, origins, logout, provider, ended)
        if logout.once_until is not None:
            # Mark the message as used last: if sessions could not be ended, the IdP may send it again.
            await self._used.use_up(provider.name, logout.token_id, until=logout.once_until)

    async def _end(
        self,
        store: OriginStore,
        origins: tuple[str, ...],
        logout: Logout,
        provider: Identity,
        ended: dict[str, int],
    ) -> None:
        failure: ProviderError | None = None
        for origin in origins:
            sessions = await store.sessions_from(origin, limit=MOST_LISTED)
            owners = sorted({session.user.username for session in sessions})
            if not owners and not logout.verified:
                continue
            # Once per user: JWT verifiers are notified by user name. The first call ends all of the sessions.
            for owner in owners or [""]:
                by = f"{provider.name}: the identity system has ended the sign-in"
                try:
                    count = await self._tokens.revoke(RevocationKind.ORIGIN, origin, by=by, owner=owner)
                except ProviderError as error:
                    # This process rejects the sessions already. Try the other users too.
                    failure, count = error, 0
                ended[owner] = ended.get(owner, 0) + count
        if failure is not None:
            raise failure


def _store_cannot() -> ProviderError:
    return ProviderError(
        "logouts of the identity system cannot be carried out",
        cause="the token store does not keep which sign-in a session came from",
        hint="use a token store with the abilities OriginStore and ObjectStore",
        code="token-store-unavailable",
    )
