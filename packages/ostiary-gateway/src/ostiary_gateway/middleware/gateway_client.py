"""Asks the gateway what only it knows: whose an opaque token is, and what was revoked.

Called by the authenticator and by the follower of revocations. Every call is bounded in time and size. Whatever
prevents an answer is a `ProviderError`, which says what the operator can do and quotes nothing that was sent or
received.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ostiary.core.clock import Clock
from ostiary.core.watched_file import Fingerprint, fingerprint
from ostiary.errors import TransportError
from ostiary.keys.address import key_file
from ostiary_gateway.middleware.config import TrustedGateway
from ostiary_gateway.providers.common.outbound import HttpAnswer, Outbound, SecretFile
from ostiary_gateway.settings.outgoing import OutgoingTls, client_context
from ostiary_gateway.wire.revoked_credentials import RevokedCredentials, decode_revoked_credentials
from ostiary_gateway.wire.token_introspection import PATH as INTROSPECTION
from ostiary_gateway.wire.token_introspection import TokenDescription, decode_answer, question

# What errors call it.
SYSTEM = "the gateway"
REVOCATIONS = "/webhooks/revoked-credentials"
# Tokens that are looked up at a time. The list of revocations does not wait for them: it is followed, and fetched at
# once where it has become too old.
LOOK_UPS = 32
CONCURRENCY = LOOK_UPS + 2
# How often the files of TLS are looked at: certificates are renewed in place.
LOOK_SECONDS = 1.0
T = TypeVar("T")
_HINTS = {
    401: "the token, or the name of the client certificate, must be one of webhooks.callers of the gateway",
    404: "set webhooks.introspection: true in the gateway's configuration",
}


class GatewayQuestions:
    """One event loop uses it. Raises `TransportError` if a file of TLS cannot be used."""

    def __init__(self, gateway: TrustedGateway, clock: Clock) -> None:
        self._url = gateway.url
        self._tls = gateway.tls
        self._seconds = gateway.timeout.total_seconds()
        self._monotonic = clock.monotonic
        self._token = (
            None if gateway.token_file is None else SecretFile(gateway.token_file, "the token for the gateway")
        )
        self._fingerprints = _fingerprints(self._tls)
        self._look_at = clock.monotonic() + LOOK_SECONDS
        self._outbound = self._connect()
        self._retired: Outbound | None = None

    async def describe(self, token: str, address: str = "") -> TokenDescription | None:
        """What *token* attests; None if nobody is authenticated by it. Raises `ProviderError`.

        The gateway counts unknown tokens of the client's *address*.
        """
        url = self._url + INTROSPECTION
        answer = await self._ask("POST", url, self._seconds, body=question(token, address))
        return self._read(url, answer, decode_answer)

    async def fetch_revoked(self, after: int | None, wait: int) -> RevokedCredentials:
        """What was revoked lately; with *after*, when there is a later revocation, or *wait* seconds have passed."""
        url = self._url + REVOCATIONS + ("" if after is None else f"?after={after}&wait={wait}")
        answer = await self._ask("GET", url, self._seconds + (0 if after is None else wait))
        return self._read(url, answer, decode_revoked_credentials)

    async def close(self) -> None:
        await self._outbound.close()
        if self._retired is not None:
            await self._retired.close()

    async def _ask(self, method: str, url: str, seconds: float, body: object = None) -> HttpAnswer:
        outbound = await self._current()
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token.current().reveal()}"}
        try:
            # Around the whole of it: whoever waits for a connection has no more time than whoever has one.
            async with asyncio.timeout(seconds):
                answer = await outbound.ask(method, url, headers=headers, json_body=body)
        except TimeoutError:
            answer = None
        if answer is None:
            raise self._outbound.failure(url, f"it did not answer within {seconds:g} seconds")
        if answer.status != 200:
            raise outbound.failure(url, f"it answered with status {answer.status}", _HINTS.get(answer.status))
        return answer

    def _read(self, url: str, answer: HttpAnswer, decode: Callable[[Mapping[str, Any]], T]) -> T:
        cause = "it is not a JSON object"
        if isinstance(answer.body, dict):
            try:
                return decode(answer.body)
            except ValueError as error:
                cause = str(error)
        raise self._outbound.failure(url, f"its answer cannot be used: {cause}", "is this the address of a gateway?")

    async def _current(self) -> Outbound:
        """The connections to the gateway, new ones if a file of TLS was changed."""
        if self._monotonic() < self._look_at:
            return self._outbound
        self._look_at = self._monotonic() + LOOK_SECONDS
        fingerprints = _fingerprints(self._tls)
        if fingerprints != self._fingerprints:
            try:
                renewed = self._connect()
            except TransportError:
                # The files may be in the middle of being replaced; what we have still serves.
                return self._outbound
            # Those with questions under way end in peace: they are closed when the next ones take their place.
            before, self._retired = self._retired, self._outbound
            self._outbound, self._fingerprints = renewed, fingerprints
            if before is not None:
                await before.close()
        return self._outbound

    def _connect(self) -> Outbound:
        # Its own limit of time is the longest that anybody waits here.
        return Outbound(SYSTEM, context=client_context(self._tls), seconds=120.0, concurrency=CONCURRENCY)


def _fingerprints(tls: OutgoingTls) -> tuple[Fingerprint | None, ...]:
    return tuple(None if file is None else fingerprint(file) for file in (tls.ca, tls.certificate, key_file(tls.key)))
