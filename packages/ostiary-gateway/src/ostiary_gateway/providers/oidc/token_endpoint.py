"""The issuer's token endpoint, client authentication there, and the verified claims that result.

A code, refresh token or ID token that is invalid raises `LoginRefused`; an unusable response raises `ProviderError`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import quote_plus

from ostiary.core.clock import Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary_gateway.providers.common.authorization_code import Returned, reported_error
from ostiary_gateway.providers.common.jwt import Claims, TokenRefused, TokenRules, verify_with
from ostiary_gateway.providers.common.jwt_issuer import Issuer
from ostiary_gateway.providers.common.outbound import HttpAnswer, Outbound, SecretFile
from ostiary_gateway.providers.oidc.metadata import IssuerMetadata
from ostiary_gateway.providers.oidc.settings import BASIC

AGAIN = "this sign-in cannot be completed: start again"
ENDED = "this session has expired or was revoked: sign in again"
Tokens = Mapping[str, object]

_SECRET_FIELDS = ("code", "code_verifier", "refresh_token")
# The texts for the user and the operator when the issuer rejects our code or refresh token (RFC 6749, 5.2).
_REFUSED = {
    "authorization_code": (AGAIN, "the issuer rejected the code: used, expired, or issued to another client"),
    "refresh_token": (
        ENDED,
        "the issuer rejected the refresh token: the account is disabled or its session has ended",
    ),
}


class Client:
    """The gateway as a client of the issuer, and its authentication there (OpenID Connect Core, 9).

    Without *secret* it is a public client. ``client_secret_basic`` is used unless the issuer's metadata excludes it;
    *authentication* is for a client that is registered for one method only.
    """

    def __init__(self, client_id: str, *, secret: SecretFile | None, authentication: str) -> None:
        self.id = client_id
        self._secret = secret
        self._authentication = authentication

    def check(self, fields: ConfigSection) -> None:
        """Report an unreadable secret file."""
        if self._secret is not None:
            self._secret.check(fields, "clientSecretFile")

    def authenticate(self, form: dict[str, str], metadata: IssuerMetadata) -> dict[str, str]:
        """Return the headers that authenticate the client. Parameters that belong in the body are added to *form*."""
        secret = None if self._secret is None else self._secret.current()
        if secret is not None and self._sends_basic(metadata):
            # Each part is form-encoded first (RFC 6749, 2.3.1): a colon in the client ID would otherwise end it.
            pair = f"{quote_plus(self.id)}:{quote_plus(secret.reveal())}"
            return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
        form["client_id"] = self.id
        if secret is not None:
            form["client_secret"] = secret.reveal()
        return {}

    def reported(self, answer: HttpAnswer, form: Mapping[str, str]) -> str:
        """Return the error that the issuer reports about *form*, without the secrets that it was sent."""
        secret = None if self._secret is None else self._secret.current()
        sent = [form[name] for name in _SECRET_FIELDS if name in form]
        sent += [] if secret is None else [secret.reveal()]
        return reported_error(answer.text("error"), answer.text("error_description"), sent=sent)

    def _sends_basic(self, metadata: IssuerMetadata) -> bool:
        if self._authentication:
            return self._authentication == BASIC
        return BASIC in metadata.authentication_methods


class TokenEndpoint:
    """Client of the issuer's token endpoint."""

    def __init__(self, client: Client, outbound: Outbound) -> None:
        self._client = client
        self._outbound = outbound

    async def exchange(self, came: Returned, redirect_uri: str, metadata: IssuerMetadata) -> Tokens:
        form = {
            "grant_type": "authorization_code",
            "code": came.code.reveal(),
            "redirect_uri": redirect_uri,
            "code_verifier": came.verifier.reveal(),
        }
        return await self._ask(form, metadata)

    async def refresh(self, refresh_token: str, metadata: IssuerMetadata) -> Tokens:
        return await self._ask({"grant_type": "refresh_token", "refresh_token": refresh_token}, metadata)

    async def _ask(self, form: dict[str, str], metadata: IssuerMetadata) -> Tokens:
        headers = self._client.authenticate(form, metadata)
        url = metadata.token_endpoint
        answer = await self._outbound.ask("POST", url, headers=headers, form=form)
        return self._tokens(answer, url, self._client.reported(answer, form), grant_type=form["grant_type"])

    def _tokens(self, answer: HttpAnswer, url: str, reported: str, *, grant_type: str) -> Tokens:
        if answer.status == 200 and isinstance(answer.body, dict):
            return answer.body
        if answer.status == 400 and _is_refusal(answer, grant_type):
            summary, cause = _REFUSED[grant_type]
            raise LoginRefused(summary, cause=f"{cause}: {reported}")
        hint = client_hint(answer)
        cause = with_reported(f"it answered a code with status {answer.status}", reported)
        raise self._outbound.failure(url, cause, hint, reported=reported)


def _is_refusal(answer: HttpAnswer, grant_type: str) -> bool:
    """Return whether the issuer rejects the code or the refresh token, not the request or the client."""
    if answer.text("error") == "invalid_grant":
        return True
    # Dex returns invalid_request for a refresh token that it has revoked or deleted.
    description = answer.text("error_description").lower()
    is_about_it = grant_type == "refresh_token" and description.startswith("refresh token ")
    return is_about_it and answer.text("error") == "invalid_request"


def with_reported(cause: str, reported: str) -> str:
    return f"{cause} and {reported}" if reported else cause


def client_hint(answer: HttpAnswer) -> str | None:
    """Return a hint if the issuer does not know or accept the client."""
    is_about_client = answer.text("error") in ("invalid_client", "unauthorized_client")
    return "check clientID and clientSecretFile" if is_about_client else None


# The verified claims: from the ID token, or from the UserInfo endpoint.

NOT_BELIEVED = "the response of the identity system is invalid"


@dataclass(frozen=True, slots=True)
class VerifiedClaims:
    """`claims` describe the user, `id_token` the sign-in (empty if there was none). `subject` is the ``sub``."""

    subject: str
    claims: Claims = field(repr=False)
    id_token: Claims = field(repr=False)


class IdTokens(Protocol):
    """Verifier of ID tokens: the accepted issuers and the rules for their tokens."""

    async def verify(self, id_token: str, *, nonce: str | None, access_token: str | None) -> Claims:
        """Return the claims of *id_token*. Raise `TokenRefused` if it is not valid."""


class IdTokensOfIssuer:
    def __init__(self, issuer: Issuer, rules: TokenRules, *, clock: Clock) -> None:
        self._issuer = issuer
        self._rules = rules
        self._clock = clock

    async def verify(self, id_token: str, *, nonce: str | None, access_token: str | None) -> Claims:
        now = self._clock.now()
        return await verify_with(self._issuer, id_token, self._rules, now=now, nonce=nonce, access_token=access_token)


class ClaimsOfTokens:
    """Verify tokens with *id_tokens*. With *user_info*, the claims about the user come from the UserInfo endpoint."""

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
        """Like `at_sign_in`, but for a refresh, whose response may have no ID token (OpenID Connect Core, 12.2)."""
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
        # OpenID Connect Core, 5.3.2: otherwise the response may describe another user.
        if answer.body.get("sub") != subject:
            raise LoginRefused(NOT_BELIEVED, cause="UserInfo is about another person")
        return answer.body


def _access_token(tokens: Mapping[str, object]) -> str | None:
    access = tokens.get("access_token")
    return access if isinstance(access, str) else None
