"""What backends that check tokens themselves are told of a token: whose it is, until when, and what it may be used for.

    POST /webhooks/token-introspection   a TokenIntrospection, for the configured callers

Called by the webhook handler. Unlike a TokenReview it also answers about narrowed tokens, with their delegation:
whoever asks by this kind knows that the delegation comes before the policy (decision 0057). Unknown tokens count
against the address of the client that presented them to the backend (`limits.failuresPerMinute`); backends are always
answered.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from contextlib import suppress

from ostiary.core.counting.rates import FailedAttempts
from ostiary.core.tokens import digest, well_formed
from ostiary.errors import OstiaryError, TooManyRequests
from ostiary.gateway.authenticate.authenticator import TokenAuthenticator
from ostiary.gateway.authenticate.tokens_in_use import TokenInUse
from ostiary.gateway.issuer.claims import session_digest
from ostiary.wire import status
from ostiary.wire.ostiary_dev.token_introspection import TokenDescription, decode_question, encode_answer
from ostiary.wire.status import Answer

log = logging.getLogger("ostiary.gateway")

# The same for the unknown, the expired and the revoked.
NOBODY = Answer(200, encode_answer(None))


class TokenIntrospections:
    """Answers for one gateway."""

    def __init__(self, authenticator: TokenAuthenticator, failures: FailedAttempts) -> None:
        self._authenticator = authenticator
        self._failures = failures

    def answer(self, body: bytes) -> Answer | Awaitable[Answer]:
        try:
            text, address = decode_question(body)
            token = text.encode("utf-8", "surrogatepass")
        except ValueError as error:
            return status.bad_request(str(error))
        if not well_formed(token):
            return NOBODY
        token_digest = digest(token)
        live = self._authenticator.recall(token_digest)
        return self._look_up(token_digest, address) if live is None else _describe(live)

    async def _look_up(self, token_digest: bytes, address: str) -> Answer:
        try:
            live = await self._authenticator.find(token_digest)
        except OstiaryError as error:
            log.error("a token cannot be looked up", extra={"cause": error.cause or error.summary})
            return status.internal()
        if live is None and address:
            with suppress(TooManyRequests):  # for the client to see at the gateway; the backend is answered
                self._failures.charge(address, token_digest)
        return NOBODY if live is None else _describe(live)


def _describe(live: TokenInUse) -> Answer:
    session = live.session
    description = TokenDescription(
        live.user,
        # Sooner than its end for a program's token, whose holder is checked again then.
        live.expires_at,
        live.digest.hex(),
        session_digest(session.id),
        sequence=session.sequence or 0,
        began_at=int(session.created_at.timestamp()),
        delegation=live.delegation,
    )
    return Answer(200, encode_answer(description))
