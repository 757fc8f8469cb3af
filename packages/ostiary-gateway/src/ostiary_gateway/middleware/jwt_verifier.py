"""Verify JWTs of the gateway's issuer locally, with its published keys.

`RevocationFollower` tracks revoked JWTs. A JWT that is malformed or expired, or has another issuer or audience, is
invalid. If the keys cannot be fetched, `ProviderError` is raised.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from ostiary.core.clock import Clock
from ostiary.model import UserInfo
from ostiary_gateway.middleware.config import TrustedGateway, TrustedIssuer
from ostiary_gateway.providers.common.jwt import (
    Claims,
    ParsedToken,
    TokenRefused,
    TokenRules,
    parse_token,
    time_of,
    verify_with,
)
from ostiary_gateway.providers.common.jwt_issuer import SYSTEM, Issuer
from ostiary_gateway.providers.common.jwt_settings import CLOCK_SKEW
from ostiary_gateway.providers.common.outbound import Outbound
from ostiary_gateway.settings.outgoing import OutgoingTls, client_context
from ostiary_gateway.wire.token_introspection import TokenDescription

log = logging.getLogger("ostiary.backend")

# The algorithm of the gateway's issuer.
ALGORITHMS = frozenset(("ES256",))
JWT = frozenset(("jwt",))


class JwtVerifier:
    """Verify the JWTs of one issuer. Raises `TransportError` if a TLS file cannot be used."""

    def __init__(
        self,
        settings: TrustedIssuer,
        audiences: Sequence[str],
        gateway: TrustedGateway,
        clock: Clock,
        *,
        types: frozenset[str] = JWT,
        skew: timedelta = CLOCK_SKEW,
    ) -> None:
        self.url = settings.issuer or gateway.url
        is_the_gateway = self.url == gateway.url or self.url.startswith(gateway.url + "/")
        tls = gateway.tls if is_the_gateway and settings.ca is None else OutgoingTls(ca=settings.ca)
        self._outbound = Outbound(SYSTEM, context=client_context(tls), seconds=gateway.timeout.total_seconds())
        self._issuer = Issuer(self.url, self._outbound, clock=clock)
        self._rules = TokenRules(
            self.url, frozenset(audiences), algorithms=ALGORITHMS, types=types, skew=skew, alone=True
        )
        self._now = clock.now

    async def describe(self, token: str) -> TokenDescription | None:
        """Return what *token* attests, or None if it is invalid.

        Raises `ProviderError` if the keys cannot be fetched.
        """
        try:
            return description_of(await self.claims_of(token))
        except TokenRefused as refused:
            log.info("a JWT was refused: %s", refused)
            return None

    async def claims_of(self, token: str) -> Claims:
        """Return the verified claims of *token*.

        Raises `TokenRefused`, and `ProviderError` if the keys cannot be fetched.
        """
        parsed = parse_token(token)
        self.check_kind(parsed)
        return await verify_with(self._issuer, parsed, self._rules, now=self._now())

    def check_kind(self, token: ParsedToken) -> None:
        """Raise `TokenRefused` if a subclass requires more of the token's type than `TokenRules.types`."""

    async def close(self) -> None:
        await self._outbound.close()


def description_of(claims: Claims) -> TokenDescription:
    """Convert *claims*. Raises `TokenRefused` if a claim that revocations refer to is missing."""
    username, uid, groups = claims.get("username"), claims.get("uid", ""), claims.get("groups")
    ids = [claims.get(name) for name in ("jti", "sid")]
    sequence, began_at = claims.get("sequence"), time_of(claims, "auth_time")
    issued_at, expires_at = time_of(claims, "iat"), time_of(claims, "exp")
    if not isinstance(username, str) or not username or not isinstance(uid, str) or not _is_texts(groups):
        raise TokenRefused("it does not name its user")
    if not _is_texts(ids) or not isinstance(sequence, int) or began_at is None or issued_at is None:
        raise TokenRefused("it lacks what a revocation names")
    assert expires_at is not None, "verified"
    credential_id, session = map(str, ids)
    return TokenDescription(
        UserInfo(username, uid, tuple(map(str, groups if isinstance(groups, list) else ()))),
        datetime.fromtimestamp(expires_at, UTC),
        credential_id,
        session,
        sequence=sequence,
        began_at=int(began_at),
        issued_at=int(issued_at),
    )


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
