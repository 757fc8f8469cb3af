"""Client of the gateway's webhooks: introspection of opaque tokens, and the list of revocations.

Every call is limited in time and size. Failures are `ProviderError`, with a hint for the operator and without quoting
anything sent or received.
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

# How error messages call it.
SYSTEM = "the gateway"
REVOCATIONS = "/webhooks/revoked-credentials"
# Maximum number of concurrent lookups. Two more connections are reserved for revocations, which must not wait for
# lookups.
LOOK_UPS = 32
CONCURRENCY = LOOK_UPS + 2
# How often TLS files are checked for changes: certificates are rotated in place.
LOOK_SECONDS = 1.0
T = TypeVar("T")
_HINTS = {
    401: "the token, or the name of the client certificate, must be one of webhooks.callers of the gateway",
    404: "set webhooks.introspection: true in the gateway's configuration",
}


class GatewayQuestions:
    """A client of the gateway.

    An instance belongs to one event loop. Raises `TransportError` if a TLS file cannot be used.
    """

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
        """Return what *token* attests, or None if it is invalid. Raises `ProviderError`.

        The gateway rate-limits unknown tokens by the client's *address*.
        """
        url = self._url + INTROSPECTION
        answer = await self._ask("POST", url, self._seconds, body=question(token, address))
        return self._read(url, answer, decode_answer)

    async def fetch_revoked(self, after: int | None, wait: int) -> RevokedCredentials:
        """Return recent revocations. With *after*, wait up to *wait* seconds for a later revocation."""
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
            # The timeout includes the wait for a connection.
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
        """Return the connections to the gateway, new ones if a TLS file changed."""
        if self._monotonic() < self._look_at:
            return self._outbound
        self._look_at = self._monotonic() + LOOK_SECONDS
        fingerprints = _fingerprints(self._tls)
        if fingerprints != self._fingerprints:
            try:
                renewed = self._connect()
            except TransportError:
                # The files may be in the middle of a rotation. The current connections still work.
                return self._outbound
            # Let in-flight requests finish: the old connections are closed at the next rotation.
            before, self._retired = self._retired, self._outbound
            self._outbound, self._fingerprints = renewed, fingerprints
            if before is not None:
                await before.close()
        return self._outbound

    def _connect(self) -> Outbound:
        # Longer than any timeout of `_ask`.
        return Outbound(SYSTEM, context=client_context(self._tls), seconds=120.0, concurrency=CONCURRENCY)


def _fingerprints(tls: OutgoingTls) -> tuple[Fingerprint | None, ...]:
    return tuple(None if file is None else fingerprint(file) for file in (tls.ca, tls.certificate, key_file(tls.key)))
