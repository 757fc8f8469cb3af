"""Tokens in the cookies of web applications: issued under the session of a browser, each for one application.

Called by the sign-in routes (issue) and by the authenticator (find). The store has the digest of token and application
together, so a token that is presented at another application is an unknown one. It ends with its session.
"""

from __future__ import annotations

from ostiary.core.clock import Clock
from ostiary.core.tokens.program_tokens import session_ended
from ostiary.core.tokens.token_format import APPLICATION_PREFIX, application_digest, new_token
from ostiary.core.tokens.tokens import Tokens
from ostiary.interfaces.token_store import Found, Session, TokenKind, TokenRecord
from ostiary.model import Secret


class ApplicationTokens:
    def __init__(self, tokens: Tokens, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock

    async def issue(self, session_id: str, application: str) -> tuple[Session, Secret]:
        """A new token for *application*, and its session as it is now; raises `LoginRefused` if that has ended."""
        session = await self._tokens.store.session(session_id)
        if session is None:
            raise session_ended("the session is unknown, expired or revoked")
        token = new_token(APPLICATION_PREFIX)
        record = TokenRecord(
            application_digest(token.reveal(), application),
            session.id,
            self._clock.now(),
            session.expires_at,
            TokenKind.APPLICATION,
        )
        is_unsaved = bool(self._tokens.unsaved) and self._tokens.unsaved.end(Found(record, session))
        if is_unsaved or not await self._tokens.store.add_tokens(session.id, [record]):
            raise session_ended("the session is unknown, expired or revoked")
        return session, token

    async def find(self, token_digest: bytes) -> Found | None:
        """The token of which this is the digest, if it and its session are alive."""
        entry = await self._tokens.lookup(token_digest)
        return entry if entry is not None and entry.token.kind is TokenKind.APPLICATION else None
