"""What the issuer says about a person: the ID token, verified, or the answer of its UserInfo endpoint.

Called by `oidc.identity` with what the token endpoint gave. What is not to be believed is a `LoginRefused`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ostiary.core.clock import Clock
from ostiary.errors import LoginRefused
from ostiary.plugins.common.jwt.issuer import Issuer
from ostiary.plugins.common.jwt.tokens import Claims, TokenRefused, TokenRules, verify_with
from ostiary.plugins.common.outbound import Outbound
from ostiary.plugins.oidc.metadata import IssuerMetadata
from ostiary.plugins.oidc.token_endpoint import ENDED, Tokens

NOT_BELIEVED = "the response of the identity system is invalid"


@dataclass(frozen=True, slots=True)
class VerifiedClaims:
    """`claims` are about the person, `id_token` about the sign-in: empty where none came. `subject` is their name."""

    subject: str
    claims: Claims = field(repr=False)
    id_token: Claims = field(repr=False)


class IdTokens(Protocol):
    """Whose ID tokens are believed, and by which rules."""

    async def verify(self, id_token: str, *, nonce: str | None, access_token: str | None) -> Claims:
        """Raises `TokenRefused`."""


class IdTokensOfIssuer:
    def __init__(self, issuer: Issuer, rules: TokenRules, *, clock: Clock) -> None:
        self._issuer = issuer
        self._rules = rules
        self._clock = clock

    async def verify(self, id_token: str, *, nonce: str | None, access_token: str | None) -> Claims:
        now = self._clock.now()
        return await verify_with(self._issuer, id_token, self._rules, now=now, nonce=nonce, access_token=access_token)


class ClaimsOfTokens:
    """Reads what *id_tokens* believes; with *user_info* the claims about the person come from that endpoint."""

    def __init__(self, id_tokens: IdTokens, outbound: Outbound, *, user_info: bool) -> None:
        self._id_tokens = id_tokens
        self._outbound = outbound
        self._user_info = user_info

    async def at_sign_in(self, tokens: Tokens, nonce: str, metadata: IssuerMetadata) -> VerifiedClaims:
        if not isinstance(tokens.get("id_token"), str):
            hint = "the scope openid must be allowed there"
            raise self._outbound.failure(metadata.token_endpoint, "it gave no ID token", hint)
        id_token = await self._verify(tokens, nonce)
        subject = str(id_token["sub"])
        claims = await self._ask_user_info(subject, tokens, metadata) if self._user_info else id_token
        return VerifiedClaims(subject, claims, id_token)

    async def at_refresh(self, tokens: Tokens, subject: str, metadata: IssuerMetadata) -> VerifiedClaims:
        """The same at a refresh, where an ID token need not come along (OpenID Connect Core, 12.2)."""
        id_token: Claims = {}
        if isinstance(tokens.get("id_token"), str):
            id_token = await self._verify(tokens, None)
            if id_token["sub"] != subject:
                raise LoginRefused(NOT_BELIEVED, cause="the ID token of the refresh is about another person")
            if not self._user_info:
                return VerifiedClaims(subject, id_token, id_token)
        if not metadata.user_info_endpoint:
            cause = "at a refresh the issuer gives no ID token, and it has no UserInfo endpoint"
            raise LoginRefused(ENDED, cause=cause)
        return VerifiedClaims(subject, await self._ask_user_info(subject, tokens, metadata), id_token)

    async def _verify(self, tokens: Tokens, nonce: str | None) -> Claims:
        try:
            return await self._id_tokens.verify(
                str(tokens["id_token"]), nonce=nonce, access_token=_access_token(tokens)
            )
        except TokenRefused as refused:
            raise LoginRefused(NOT_BELIEVED, cause=f"ID token: {refused}") from None

    async def _ask_user_info(self, subject: str, tokens: Tokens, metadata: IssuerMetadata) -> Claims:
        url, access_token = metadata.user_info_endpoint, _access_token(tokens)
        if not url or access_token is None:
            why = "it has no UserInfo endpoint, or gave no access token"
            raise self._outbound.failure(metadata.token_endpoint, why, "leave out userInfo")
        answer = await self._outbound.ask("GET", url, headers={"Authorization": f"Bearer {access_token}"})
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise self._outbound.failure(url, f"its UserInfo is not a JSON object (status {answer.status})")
        # OpenID Connect Core 5.3.2: else it may be about anybody.
        if answer.body.get("sub") != subject:
            raise LoginRefused(NOT_BELIEVED, cause="UserInfo is about another person")
        return answer.body


def _access_token(tokens: Mapping[str, object]) -> str | None:
    access = tokens.get("access_token")
    return access if isinstance(access, str) else None
