"""Token to user: finds a token in memory or in the store.

Called by the engine for every request, and by the webhooks. A token is looked up in the store once. After that its
`CachedToken` answers, until it expires or is revoked, as long as all revocations are known to be in force
(`revocation_feed`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Protocol

from ostiary.core.clock import Clock
from ostiary.errors import ProviderError
from ostiary.model import Secret
from ostiary_gateway.authentication.cookies import PresentedCookie
from ostiary_gateway.authentication.token_cache import TOKEN_BYTES, TOKEN_BYTES_PER_USER, CachedToken, TokenCache
from ostiary_gateway.interfaces.token_store import Found, Revocation, RevocationKind, SessionKind, TokenStore
from ostiary_gateway.sessions import ApplicationTokens, Tokens, ends_token

# Follows the store's revocations by their sequence numbers, and knows since when all of them are in force here.
#
#     confirm: what came after the last number that was applied? -> apply -> fresh for `max_stale`
#     run: confirm -> wait until the store wakes us, a second at most -> confirm ...
#
# Called by the authenticator. Notifications only wake it up: if all of them are lost, the next poll finds what is new.
# When the store cannot be asked for longer than `max_stale`, the tokens in memory are no longer trusted.

MAX_STALE_SECONDS = 5.0
# The longest time between two polls when no notification comes; less if `max_stale` is short.
POLL_SECONDS = 1.0
POLLS_PER_MAX_STALE = 4

log = logging.getLogger("ostiary.gateway")


class RevocationFeed:
    """Calls *apply* for every revocation, in order, and *ask_again* when some may have been missed."""

    def __init__(
        self,
        store: TokenStore,
        clock: Clock,
        *,
        max_stale: float,
        apply: Callable[[Revocation], Awaitable[None]],
        ask_again: Callable[[], Awaitable[None]],
    ) -> None:
        self._store = store
        self._monotonic = clock.monotonic
        self._max_stale = max_stale
        self._apply, self._ask_again = apply, ask_again
        self._lock = asyncio.Lock()
        self._reported = False
        self._advanced = asyncio.Event()
        # The sequence number of the last revocation that is in force here; None before the first poll.
        self.applied: int | None = None
        self.fresh_until = float("-inf")

    @property
    def poll_seconds(self) -> float:
        return min(POLL_SECONDS, self._max_stale / POLLS_PER_MAX_STALE)

    @property
    def age(self) -> float:
        """How many seconds ago all revocations were in force; zero before the first poll."""
        return 0.0 if self.applied is None else self._monotonic() - (self.fresh_until - self._max_stale)

    @property
    def is_stale(self) -> bool:
        return self._monotonic() >= self.fresh_until

    async def run(self) -> None:
        """Poll as long as the gateway runs. It may fail and be started again; nothing is missed then."""
        while True:
            await self.confirm()
            assert self.applied is not None, "confirmed just now"
            await self._store.wait_for_revocations(self.applied, self.poll_seconds)

    async def confirm(self) -> None:
        """Put into force what is new. Raises `ProviderError` if the store cannot be asked."""
        async with self._lock:
            await self._confirm()

    async def ensure_fresh(self) -> None:
        """`confirm` if the last time is too long ago. Of many callers one asks, and the others wait for it."""
        if not self.is_stale:
            return
        async with self._lock:
            if self.is_stale:
                await self._confirm()

    async def wait_until_applied(self, after: int, seconds: float) -> None:
        """Return when a revocation of a larger number than *after* is in force here; after *seconds* at the latest.

        For those who tell others of revocations; only `run` may ask the store to wait.
        """
        advanced = self._advanced
        if self.applied is None or self.applied <= after:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await advanced.wait()

    async def _confirm(self) -> None:
        asked_at = self._monotonic()
        batch = await self._store.revocations_after(self.applied)
        if self.applied is None or not batch.complete:
            await self._ask_again()
        for revocation in batch.revocations:
            await self._apply(revocation)
        is_new = self.applied != batch.head
        # Only when all of them are in force: after a failure they are applied once more.
        self.applied = batch.head
        if is_new:
            self._advanced.set()
            self._advanced = asyncio.Event()
        self.fresh_until = asked_at + self._max_stale

    def report(self) -> str:
        """What a readiness probe is told, empty while all is well. A change is logged once."""
        trouble = ""
        if self.applied is not None and self.is_stale:
            trouble = f"not confirmed for {self.age:.0f} s: requests are refused"
        if bool(trouble) != self._reported:
            self._reported = bool(trouble)
            if trouble:
                extra = {"seconds": round(self.age, 1), "max_stale": self._max_stale}
                log.error("revocations cannot be confirmed: requests are refused with 503", extra=extra)
            else:
                log.warning("revocations are confirmed again")
        return trouble


# Puts a revocation into force: the tokens that it concerns are no longer good, and their open streams are cut.
#
#     which tokens in use does it concern?  ->  ask the store about each  ->  end those that are gone, cut their streams
#
# Called by the revocation feed for every revocation of the store, and by the app for one that the store could not take.

# Told every revocation that was put into force, and how many streams that cut.
OnRevoked = Callable[[Revocation, int], None]


class RevokedStreams:
    """Ends the tokens in use that revocations concern, and cuts their streams."""

    def __init__(self, in_use: TokenCache, tokens: Tokens, clock: Clock, on_revoked: OnRevoked) -> None:
        self._in_use = in_use
        self._tokens = tokens
        self._now = clock.now
        self._on_revoked = on_revoked

    async def apply(self, revocation: Revocation) -> None:
        """Put *revocation* into force; raises `ProviderError` if the store cannot be asked."""
        affected = self._affected_tokens(revocation)
        # A revoked token is gone for certain. The other kinds spare what began later, which the store knows.
        cut = await self._ask_again(affected, surely_gone=revocation.kind is RevocationKind.TOKEN)
        self._on_revoked(revocation, cut)

    async def ask_about_all(self) -> None:
        """Some revocations may have been missed: ask the store about every token in use."""
        await self._ask_again(self._in_use.every())

    def end_at_once(self, revocation: Revocation) -> None:
        """Put into force what the store could not write down, and cannot be asked about."""
        self._in_use.epoch += 1
        for token in self._affected_tokens(revocation):
            self._in_use.forget(token)
            self._in_use.end(token)

    def _affected_tokens(self, revocation: Revocation) -> list[CachedToken]:
        return [token for token in self._in_use.every() if ends_token(revocation, token.digest, token.session)]

    async def _ask_again(self, affected: Collection[CachedToken], *, surely_gone: bool = False) -> int:
        """Trust none of them until the store is asked, and end those that are gone; returns how many streams that cut.

        If the store cannot be asked this raises, and what has streams still is asked about the next time.
        """
        self._in_use.epoch += 1
        for token in affected:
            self._in_use.forget(token)
        cut = 0
        for token in affected:
            if surely_gone or not await self._is_still_good(token):
                cut += self._in_use.end(token)
        return cut

    async def _is_still_good(self, token: CachedToken) -> bool:
        if token.expires_at > self._now() or token.delegation:
            stored = await self._tokens.lookup(token.digest)
            session = None if stored is None else stored.session
        elif token.streams_until <= self._now():
            return False
        else:
            # The token has expired while its stream goes on; the stream lives as long as the session.
            session = await self._tokens.store.session(token.session.id)
        if session is None:
            return False
        # Its times may have been corrected with the clock.
        token.session = session
        return True


# What is still to be checked about a token of a program that was found: as it may be used, or None if it may not.
CheckHolder = Callable[[Found], Awaitable[Found | None]]


class CheckVisitor(Protocol):
    """The same about the user of a web application's session; *keeping* opens what is kept for that session."""

    def __call__(self, stored: Found, keeping: Secret | None) -> Awaitable[Found | None]: ...


class TokenAuthenticator:
    """Finds tokens, and follows the revocations that end them."""

    def __init__(
        self,
        tokens: Tokens,
        clock: Clock,
        *,
        size: int = TOKEN_BYTES,
        size_per_user: int = TOKEN_BYTES_PER_USER,
        on_revoked: OnRevoked = lambda revocation, cut: None,
        max_stale: float = MAX_STALE_SECONDS,
    ) -> None:
        self._tokens = tokens
        # Of the configuration at work; a reload puts another one in its place.
        self.check_holder: CheckHolder | None = None
        self.check_visitor: CheckVisitor | None = None
        self._application_tokens = ApplicationTokens(tokens, clock)
        self._now, self._monotonic = clock.now, clock.monotonic
        self.in_use = TokenCache(size=size, size_per_user=size_per_user)
        self._by_digest = self.in_use.by_digest
        self.revoked_streams = RevokedStreams(self.in_use, tokens, clock, on_revoked)
        self.feed = RevocationFeed(
            tokens.store,
            clock,
            max_stale=max_stale,
            apply=self.revoked_streams.apply,
            ask_again=self.revoked_streams.ask_about_all,
        )

    def recall(self, token_digest: bytes, at: float | None = None) -> CachedToken | None:
        """The token, if it is in memory and good this very moment, which is *at* by the monotonic clock."""
        token = self._by_digest.get(token_digest)
        if token is None or token.revoked:
            return None
        if token.expires_at <= self._now():
            # For good, also if the clock is set back: the store knows how late it was.
            self.in_use.forget(token)
            return None
        return token if (self._monotonic() if at is None else at) < self.feed.fresh_until else None

    async def find(self, token_digest: bytes) -> CachedToken | None:
        """The token, looked up in the store; None if it is unknown, expired or revoked, which are all the same here.

        Raises `ProviderError` if the store cannot be asked, or cannot confirm that no revocation is missing here, or if
        nobody can say whether the holder of a program's token is still somebody.
        """
        await self.feed.ensure_fresh()
        while True:
            epoch = self.in_use.epoch
            stored = await self._tokens.find_digest(token_digest)
            ends_at = None if stored is None else stored.token.expires_at
            if stored is not None and stored.session.kind is not SessionKind.SIGN_IN and self.check_holder is not None:
                stored = await self.check_holder(stored)
            if epoch == self.in_use.epoch:
                break
            # A revocation came while the store was asked: its answer may be older than that.
        return None if stored is None else self.in_use.remember(stored, ends_at)

    async def find_application(self, cookie: PresentedCookie) -> CachedToken | None:
        """The same for the token in the cookie of a web application. Its user is checked again now and then."""
        return await self._find_application(cookie.digest, cookie.keeping)

    async def find_again(self, token: CachedToken) -> CachedToken | None:
        """*token* as the store has it now, of whichever kind; another object if its session has changed meanwhile."""
        if token.is_application:
            return await self._find_application(token.digest, token.keeping)
        return await self.find(token.digest)

    async def _find_application(self, token_digest: bytes, keeping: Secret | None) -> CachedToken | None:
        await self.feed.ensure_fresh()
        while True:
            epoch = self.in_use.epoch
            stored = await self._application_tokens.find(token_digest)
            ends_at = None if stored is None else stored.token.expires_at
            if stored is not None and self.check_visitor is not None:
                stored = await self.check_visitor(stored, keeping)
            if epoch == self.in_use.epoch:
                break
        if stored is None:
            return None
        token = self.in_use.remember(stored, ends_at)
        token.keeping, token.is_application = keeping, True
        return token

    async def check_streams(self) -> None:
        """Look up the tokens of programs and of web applications that have open streams and whose check is due.

        Whoever is gone is cut.

        Raises `ProviderError` after all of them, if somebody could not be asked about: their streams go on.
        """
        now, failure = self._now(), None
        for token in self.in_use.every():
            is_checked = token.is_application or token.session.kind is not SessionKind.SIGN_IN
            if is_checked and token.streams and token.expires_at <= now:
                try:
                    await self._check_stream(token)
                except ProviderError as error:
                    failure = error
        if failure is not None:
            raise failure

    async def _check_stream(self, token: CachedToken) -> None:
        check: CheckHolder | None
        if token.is_application:
            stored = await self._application_tokens.find(token.digest)
            check = None if self.check_visitor is None else partial(self.check_visitor, keeping=token.keeping)
        else:
            stored, check = await self._tokens.find_digest(token.digest), self.check_holder
        if stored is not None and check is not None:
            checked = await check(stored)
            if checked is None or checked.session.user != token.user:
                # Gone; or in other groups than those with which its streams were allowed, as after a renewal.
                self.in_use.forget(token)
                self.in_use.end(token)
            else:
                token.expires_at = checked.token.expires_at

    @property
    def size(self) -> int:
        """How many tokens are in use."""
        return len(self.in_use)

    @property
    def open_streams(self) -> int:
        return self.in_use.open_streams

    def tick(self) -> None:
        """Forget what has expired, and end the streams of sessions that have."""
        self.in_use.expire(self._now())

    async def follow_revocations(self) -> None:
        """Runs as long as the gateway does. It may fail and be begun again, and has missed nothing then."""
        await self.feed.run()

    def end_at_once(self, revocation: Revocation) -> None:
        """Put into force what the store could not write down, and cannot be asked about."""
        self.revoked_streams.end_at_once(revocation)
