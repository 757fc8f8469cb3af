"""Puts a revocation into force: the tokens that it concerns are no longer good, and their open streams are cut.

    which tokens in use does it concern?  ->  ask the store about each  ->  end those that are gone, cut their streams

Called by the revocation feed for every revocation of the store, and by the app for one that the store could not take.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ostiary.core.clock import Clock
from ostiary.core.tokens import Tokens, ends_token
from ostiary.gateway.authenticate.tokens_in_use import TokenInUse, TokensInUse
from ostiary.interfaces.token_store import Revocation, RevocationKind

# Told every revocation that was put into force, and how many streams that cut.
OnRevoked = Callable[[Revocation, int], None]


class RevokedStreams:
    """Ends the tokens in use that revocations concern, and cuts their streams."""

    def __init__(self, in_use: TokensInUse, tokens: Tokens, clock: Clock, on_revoked: OnRevoked) -> None:
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

    def _affected_tokens(self, revocation: Revocation) -> list[TokenInUse]:
        return [token for token in self._in_use.every() if ends_token(revocation, token.digest, token.session)]

    async def _ask_again(self, affected: Collection[TokenInUse], *, surely_gone: bool = False) -> int:
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

    async def _is_still_good(self, token: TokenInUse) -> bool:
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
