"""Whether the user of a web application's session is still somebody, and in which groups: as at a renewal.

Called by the authenticator when it reads the token of an application's cookie from the store, never for one that it has
in memory. It is kept there for as long as an access token lives, and then checked again, so a running application sees
nothing of it: no redirect, and no other cookie. A "no" of the identity provider ends the session everywhere; if nobody
can be asked, nothing is let through.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ostiary.core.caching.cache import Cache
from ostiary.core.clock import Clock
from ostiary.core.tokens import Attested, Tokens, unseal_kept
from ostiary.errors import LoginRefused, OstiaryError, ProviderError
from ostiary.interfaces.identity import LoginRequest
from ostiary.interfaces.token_store import Found, RevocationKind, Session
from ostiary.model import Secret

# Sessions whose last check is remembered.
MOST_CHECKS = 10_000
# Another worker may be asking about the same session, with a refresh token that is good once.
MOST_TRIES = 20
PAUSE_SECONDS = 0.25

Recheck = Callable[[Session, LoginRequest, Secret | None], Awaitable[Attested]]
Pause = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _VisitorCheck:
    """`attested` is None where the answer was no."""

    at: datetime
    attested: Attested | None


class ApplicationChecks:
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
        """*stored* as it may be used, and until when; None if its user is nobody any more.

        Raises `ProviderError` if that cannot be found out.
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
            # First, so that what is revoked from here on ends what is written below.
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
            # What is kept for it may be another refresh token by now.
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
        """Write down who the user is, and what is kept now; False if the session has ended meanwhile."""
        try:
            if kept is not None and keeping is not None:
                await self._tokens.keep(current, keeping.reveal(), kept, expires_at=current.expires_at)
            elif current.user != before.user:
                if await self._tokens.store.session(current.id) is None:
                    return False
                await self._tokens.store.add(current, [])
        except LoginRefused:
            # Revoked at this very moment.
            return False
        return True


def _until(stored: Found, moment: datetime) -> Found:
    return replace(stored, token=replace(stored.token, expires_at=min(stored.token.expires_at, moment)))


def _could_not_ask(session: Session, cause: str) -> ProviderError:
    error = ProviderError("the user of a session cannot be checked", cause=cause, code="provider-failed")
    error.username = session.user.username
    return error
