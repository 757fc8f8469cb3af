"""Token to user: finds a token in memory or in the store.

Called by the engine for every request, and by the webhooks. A token is looked up in the store once. After that its
`TokenInUse` answers, until it expires or is revoked, as long as all revocations are known to be in force
(`revocation_feed`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from ostiary.core.clock import Clock
from ostiary.core.tokens import ApplicationTokens, Tokens
from ostiary.errors import ProviderError
from ostiary.gateway.authenticate.application_cookie import PresentedCookie
from ostiary.gateway.authenticate.cut_revoked_streams import OnRevoked, RevokedStreams
from ostiary.gateway.authenticate.revocation_feed import MAX_STALE_SECONDS, RevocationFeed
from ostiary.gateway.authenticate.tokens_in_use import TOKEN_BYTES, TOKEN_BYTES_PER_USER, TokenInUse, TokensInUse
from ostiary.interfaces.token_store import Found, Revocation, SessionKind
from ostiary.model import Secret

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
        self.in_use = TokensInUse(size=size, size_per_user=size_per_user)
        self._by_digest = self.in_use.by_digest
        self.revoked_streams = RevokedStreams(self.in_use, tokens, clock, on_revoked)
        self.feed = RevocationFeed(
            tokens.store,
            clock,
            max_stale=max_stale,
            apply=self.revoked_streams.apply,
            ask_again=self.revoked_streams.ask_about_all,
        )

    def recall(self, token_digest: bytes, at: float | None = None) -> TokenInUse | None:
        """The token, if it is in memory and good this very moment, which is *at* by the monotonic clock."""
        token = self._by_digest.get(token_digest)
        if token is None or token.revoked:
            return None
        if token.expires_at <= self._now():
            # For good, also if the clock is set back: the store knows how late it was.
            self.in_use.forget(token)
            return None
        return token if (self._monotonic() if at is None else at) < self.feed.fresh_until else None

    async def find(self, token_digest: bytes) -> TokenInUse | None:
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

    async def find_application(self, cookie: PresentedCookie) -> TokenInUse | None:
        """The same for the token in the cookie of a web application. Its user is checked again now and then."""
        return await self._find_application(cookie.digest, cookie.keeping)

    async def find_again(self, token: TokenInUse) -> TokenInUse | None:
        """*token* as the store has it now, of whichever kind; another object if its session has changed meanwhile."""
        if token.is_application:
            return await self._find_application(token.digest, token.keeping)
        return await self.find(token.digest)

    async def _find_application(self, token_digest: bytes, keeping: Secret | None) -> TokenInUse | None:
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

    async def _check_stream(self, token: TokenInUse) -> None:
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
