"""Authenticate tokens, from the cache or the token store, and follow revocations.

A token is looked up once. Its `CachedToken` is then used until it expires or is revoked, as long as `RevocationFeed`
confirms that all revocations were applied.
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

MAX_STALE_SECONDS = 5.0
# Maximum poll interval without notifications; shorter if `max_stale` is short.
POLL_SECONDS = 1.0
POLLS_PER_MAX_STALE = 4

log = logging.getLogger("ostiary.gateway")


class RevocationFeed:
    """Follows the store's revocations by sequence number.

        confirm: fetch revocations after the last applied number -> apply -> fresh for `max_stale`
        run: confirm -> wait for a notification, a second at most -> confirm ...

    Calls *apply* for each revocation in order, and *ask_again* if some may have been missed. Notifications only trigger
    a poll, so losing them is harmless. If the store is unavailable for longer than `max_stale`, cached tokens are no
    longer accepted.
    """

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
        # The sequence number of the last applied revocation; None before the first poll.
        self.applied: int | None = None
        self.fresh_until = float("-inf")

    @property
    def poll_seconds(self) -> float:
        return min(POLL_SECONDS, self._max_stale / POLLS_PER_MAX_STALE)

    @property
    def age(self) -> float:
        """Seconds since all revocations were known to be applied; zero before the first poll."""
        return 0.0 if self.applied is None else self._monotonic() - (self.fresh_until - self._max_stale)

    @property
    def is_stale(self) -> bool:
        return self._monotonic() >= self.fresh_until

    async def run(self) -> None:
        """Poll while the gateway runs. It may fail and be restarted without missing a revocation."""
        while True:
            await self.confirm()
            assert self.applied is not None, "confirmed just now"
            await self._store.wait_for_revocations(self.applied, self.poll_seconds)

    async def confirm(self) -> None:
        """Apply new revocations; raises `ProviderError` if the store is unavailable."""
        async with self._lock:
            await self._confirm()

    async def ensure_fresh(self) -> None:
        """Call `confirm` if the state is stale. Concurrent callers share one call."""
        if not self.is_stale:
            return
        async with self._lock:
            if self.is_stale:
                await self._confirm()

    async def wait_until_applied(self, after: int, seconds: float) -> None:
        """Wait until a revocation above *after* was applied, but at most *seconds*.

        For code that forwards revocations. Only `run` may wait at the store.
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
        # Set only after all were applied: after a failure they are applied again.
        self.applied = batch.head
        if is_new:
            self._advanced.set()
            self._advanced = asyncio.Event()
        self.fresh_until = asked_at + self._max_stale

    def report(self) -> str:
        """Return the error for readiness probes, empty if there is none. Changes are logged once."""
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


# Called with each applied revocation and the number of streams that it closed.
OnRevoked = Callable[[Revocation, int], None]


class RevokedStreams:
    """Applies revocations: ends the cached tokens that they affect, and closes their streams.

    The store is queried again for each affected token.
    """

    def __init__(self, in_use: TokenCache, tokens: Tokens, clock: Clock, on_revoked: OnRevoked) -> None:
        self._in_use = in_use
        self._tokens = tokens
        self._now = clock.now
        self._on_revoked = on_revoked

    async def apply(self, revocation: Revocation) -> None:
        """Apply *revocation*; raises `ProviderError` if the store is unavailable."""
        affected = self._affected_tokens(revocation)
        # A revoked token is invalid in any case. Other kinds do not apply to later sign-ins, which only the
        # store can distinguish.
        cut = await self._ask_again(affected, surely_gone=revocation.kind is RevocationKind.TOKEN)
        self._on_revoked(revocation, cut)

    async def ask_about_all(self) -> None:
        """Query the store again for every cached token: some revocations may have been missed."""
        await self._ask_again(self._in_use.every())

    def end_at_once(self, revocation: Revocation) -> None:
        """Apply a revocation that could not be stored, without querying the store."""
        self._in_use.epoch += 1
        for token in self._affected_tokens(revocation):
            self._in_use.forget(token)
            self._in_use.end(token)

    def _affected_tokens(self, revocation: Revocation) -> list[CachedToken]:
        return [token for token in self._in_use.every() if ends_token(revocation, token.digest, token.session)]

    async def _ask_again(self, affected: Collection[CachedToken], *, surely_gone: bool = False) -> int:
        """Evict the tokens and look them up again. End the invalid ones and return the number of closed streams.

        Raises if the store is unavailable; tokens with streams are then looked up the next time.
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
            # The token expired during its stream, which lives as long as the session.
            session = await self._tokens.store.session(token.session.id)
        if session is None:
            return False
        # Its times may have been corrected after a clock change.
        token.session = session
        return True


# Checks the owner of a machine token that was found. Returns the token as it may be used, or None.
CheckHolder = Callable[[Found], Awaitable[Found | None]]


class CheckVisitor(Protocol):
    """Like `CheckHolder`, for the user of a web application's session.

    *keeping* decrypts the data stored for the session.
    """

    def __call__(self, stored: Found, keeping: Secret | None) -> Awaitable[Found | None]: ...


class TokenAuthenticator:
    """Authenticates tokens, and follows the revocations that end them."""

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
        # Set by each configuration; a reload replaces them.
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
        """Return the token if it is cached and valid at *at*, the current monotonic time."""
        token = self._by_digest.get(token_digest)
        if token is None or token.revoked:
            return None
        if token.expires_at <= self._now():
            # Evicted even if the clock is set back later: the store corrects its times.
            self.in_use.forget(token)
            return None
        return token if (self._monotonic() if at is None else at) < self.feed.fresh_until else None

    async def find(self, token_digest: bytes) -> CachedToken | None:
        """Look the token up in the store. Return None if it is unknown, expired or revoked.

        Raises `ProviderError` if the store is unavailable, or cannot confirm all revocations, or if the owner of a
        machine token cannot be checked.
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
            # A revocation arrived during the lookup, whose result may be older.
        return None if stored is None else self.in_use.remember(stored, ends_at)

    async def find_application(self, cookie: PresentedCookie) -> CachedToken | None:
        """Like `find`, for the cookie of a web application. Its user is checked again periodically."""
        return await self._find_application(cookie.digest, cookie.keeping)

    async def find_again(self, token: CachedToken) -> CachedToken | None:
        """Look up *token*, of either kind, again. Returns another object if its session has changed."""
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
        """Check the owners of machine tokens and web application sessions that have streams, if the check is due.

        Streams of users that are gone are closed. Raises `ProviderError` at the end if a check failed; those streams
        continue.
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
                # Gone, or in other groups than when its streams were authorized, as after a refresh.
                self.in_use.forget(token)
                self.in_use.end(token)
            else:
                token.expires_at = checked.token.expires_at

    @property
    def size(self) -> int:
        """The number of cached tokens."""
        return len(self.in_use)

    @property
    def open_streams(self) -> int:
        return self.in_use.open_streams

    def tick(self) -> None:
        """Evict expired tokens, and close the streams of expired sessions."""
        self.in_use.expire(self._now())

    async def follow_revocations(self) -> None:
        """Run while the gateway runs. It may fail and be restarted without missing a revocation."""
        await self.feed.run()

    def end_at_once(self, revocation: Revocation) -> None:
        """Apply a revocation that could not be stored, without querying the store."""
        self.revoked_streams.end_at_once(revocation)
