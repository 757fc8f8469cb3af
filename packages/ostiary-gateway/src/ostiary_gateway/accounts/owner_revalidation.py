"""Revalidation of the owner of a workload's token, when the token is read from the store.

    a token of a service account     does the account exist, and is it active?
    an API token of a user           as at a refresh of a session: query the identity and group providers again

The authenticator caches the token until the next check is due, so its use costs nothing in between. If the identity
provider rejects the owner, the token ends everywhere. If it is unavailable, the request fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ostiary.core.account_names import account_of
from ostiary.core.cache import Cache
from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused, OstiaryError, ProviderError
from ostiary_gateway.accounts.service_accounts import PROVIDER, ServiceAccounts
from ostiary_gateway.interfaces.token_store import Found, Session, SessionKind
from ostiary_gateway.sessions import Attested, Tokens

# The last use of a token is not written again before this has passed.
PAUSE = timedelta(minutes=5)
# How long uses are collected before they are written together.
COLLECT_SECONDS = 1.0
# More tokens than are looked up in that time.
MOST_WAITING = 10_000


class TokenUse:
    """Record in the background when API tokens were last used.

    A use is recorded when the token is read from the store, so it is about as exact as the interval of the owner
    checks. It is written if the store has none of the last minutes.
    """

    def __init__(self, tokens: Tokens, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._waiting: dict[str, datetime] = {}
        self._news = asyncio.Event()

    def note(self, session: Session) -> None:
        now = self._clock.now()
        is_known = session.last_used_at is not None and now - session.last_used_at < PAUSE
        if not is_known and len(self._waiting) < MOST_WAITING:
            self._waiting[session.id] = now
            self._news.set()

    async def run(self) -> None:
        """Write uses until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(COLLECT_SECONDS)
            await self.write()

    async def write(self) -> None:
        """Write the recorded uses. They are lost if the store is unavailable, which is fine: they are approximate."""
        uses, self._waiting = self._waiting, {}
        self._news.clear()
        if uses:
            await self._tokens.store.note_use(uses)


# Owners whose last check is cached.
MOST_CHECKS = 10_000
# Returns the current attributes of a session's owner. Raises `LoginRefused` if the user no longer exists.
RecheckOwner = Callable[[Session], Awaitable[Attested]]


@dataclass(frozen=True, slots=True)
class _Check:
    """Result of a check. `attested` is None if the provider rejected the owner."""

    at: datetime
    attested: Attested | None


class OwnerRevalidation:
    """Check the owner of each workload token, at most once per interval, and end the token if its owner is invalid."""

    def __init__(
        self,
        tokens: Tokens,
        accounts: ServiceAccounts,
        recheck: RecheckOwner,
        use: TokenUse,
        *,
        interval: timedelta,
        clock: Clock,
    ) -> None:
        self._tokens = tokens
        self._accounts = accounts
        self._recheck = recheck
        self._use = use
        self._interval = interval
        self._clock = clock
        self._checks: Cache[str, _Check] = Cache(
            seconds=interval.total_seconds(), clock=clock, entries=MOST_CHECKS, share=MOST_CHECKS
        )

    async def check(self, stored: Found) -> Found | None:
        """Return *stored* with its current owner, expiring when the next check is due; None if the owner is invalid.

        Raises `ProviderError` if the owner cannot be checked.
        """
        session = stored.session
        if session.kind is SessionKind.API_TOKEN:
            self._use.note(session)
        if session.provider == PROVIDER:
            return await self._check_account(stored)
        if session.kind is not SessionKind.API_TOKEN:
            return stored
        now = self._clock.now()
        if now - session.created_at < self._interval:
            return _until(stored, session.created_at + self._interval)
        check = await self._checks.fill(session.id, lambda: self._ask(session))
        if check.attested is None:
            return None
        user, sources = check.attested.user, check.attested.sources
        current = replace(stored, session=replace(session, user=user, sources=sources))
        return _until(current, check.at + self._interval)

    async def find(self, token: str | bytes) -> Found | None:
        """Like `Tokens.find`, but None if the owner of the access token is no longer valid.

        Use it before a token is exchanged for another credential, which may never be checked here again.
        """
        stored = await self._tokens.find(token)
        return None if stored is None else await self.check(stored)

    async def _check_account(self, stored: Found) -> Found | None:
        name = account_of(stored.session.user.username)
        account = None if name is None else await self._accounts.find(name)
        if account is None or not account.is_active:
            # Not revoked: another replica may have a newer configuration, which declares it.
            return None
        return _until(stored, self._clock.now() + self._interval)

    async def _ask(self, session: Session) -> _Check:
        now = self._clock.now()
        # Read the number first, so that a concurrent revocation also ends the session that is written below.
        sequence = await self._tokens.sequence()
        try:
            attested = await self._recheck(session)
            if attested.user.username != session.user.username:
                raise LoginRefused("the owner has another name now", cause="the user name has changed")
        except LoginRefused as refusal:
            if refusal.retry_after is not None:
                raise _could_not_ask(session, refusal.cause or refusal.summary) from None
            await self._end(session, "ostiary: the owner of the API token was refused by the identity provider")
            return _Check(now, None)
        except OstiaryError as error:
            raise _could_not_ask(session, error.cause or error.summary) from None
        except asyncio.CancelledError:
            raise
        except Exception as error:
            raise _could_not_ask(session, type(error).__name__) from None
        if attested.user != session.user and not await self._write(session.id, attested, sequence):
            return _Check(now, None)
        return _Check(now, attested)

    async def _write(self, session_id: str, attested: Attested, sequence: int) -> bool:
        """Store the owner's current attributes, so that lists and revocations by group use them. False if it has ended.

        The session gets *sequence*, the number of a revocation before which it was still alive, because the store keeps
        the revocations of the last hour only.
        """
        session = await self._tokens.store.session(session_id)
        if session is None:
            return False
        current = replace(session, user=attested.user, sources=attested.sources, sequence=sequence)
        try:
            await self._tokens.store.add(current, [])
        except LoginRefused:
            # The session was revoked concurrently.
            return False
        return True

    async def _end(self, session: Session, by: str) -> None:
        await self._tokens.end_session(session, by=by)


def _until(stored: Found, moment: datetime) -> Found:
    return replace(stored, token=replace(stored.token, expires_at=min(stored.token.expires_at, moment)))


def _could_not_ask(session: Session, cause: str) -> ProviderError:
    error = ProviderError("the owner of an API token cannot be checked", cause=cause, code="provider-failed")
    error.username = session.user.username
    return error
