"""The issuer's token endpoint: a code or a refresh token for tokens, and how the client proves itself there.

Called by `oidc.identity`. What the issuer refuses is a `LoginRefused`; an answer that is none is a `ProviderError`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import quote_plus

from ostiary.core.config import Fields
from ostiary.errors import LoginRefused
from ostiary.plugins.common.authorization_code import Returned
from ostiary.plugins.common.outbound import HttpAnswer, Outbound, SecretFile
from ostiary.plugins.common.reported_error import reported_error
from ostiary.plugins.oidc.metadata import IssuerMetadata
from ostiary.plugins.oidc.settings import BASIC

AGAIN = "this sign-in cannot be completed: start again"
ENDED = "this session has expired or was revoked: sign in again"
Tokens = Mapping[str, object]

_SECRET_FIELDS = ("code", "code_verifier", "refresh_token")
# The texts for the person and for the operator when the issuer rejects our code or refresh token (RFC 6749, 5.2).
_REFUSED = {
    "authorization_code": (AGAIN, "the issuer rejected the code: used, expired, or issued to another client"),
    "refresh_token": (
        ENDED,
        "the issuer rejected the refresh token: the account is disabled or its session has ended",
    ),
}


class Client:
    """What the gateway is at the issuer, and how it proves that (OpenID Connect Core, 9).

    Without *secret* it is a public client. Issuers take ``client_secret_basic``, unless they say otherwise;
    *authentication* is for a client that is registered for the one way only.
    """

    def __init__(self, client_id: str, *, secret: SecretFile | None, authentication: str) -> None:
        self.id = client_id
        self._secret = secret
        self._authentication = authentication

    def check(self, fields: Fields) -> None:
        """Note what is wrong with the file of the secret."""
        if self._secret is not None:
            self._secret.check(fields, "clientSecretFile")

    def authenticate(self, form: dict[str, str], metadata: IssuerMetadata) -> dict[str, str]:
        """The headers that prove who asks; what goes into the body is added to *form*."""
        secret = None if self._secret is None else self._secret.current()
        if secret is not None and self._sends_basic(metadata):
            # Each part is a form value first (RFC 6749, 2.3.1): a colon in the name would otherwise end it.
            pair = f"{quote_plus(self.id)}:{quote_plus(secret.reveal())}"
            return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
        form["client_id"] = self.id
        if secret is not None:
            form["client_secret"] = secret.reveal()
        return {}

    def reported(self, answer: HttpAnswer, form: Mapping[str, str]) -> str:
        """What the issuer says is wrong with *form*, without the secrets that it was sent."""
        secret = None if self._secret is None else self._secret.current()
        sent = [form[name] for name in _SECRET_FIELDS if name in form]
        sent += [] if secret is None else [secret.reveal()]
        return reported_error(answer.text("error"), answer.text("error_description"), sent=sent)

    def _sends_basic(self, metadata: IssuerMetadata) -> bool:
        if self._authentication:
            return self._authentication == BASIC
        return BASIC in metadata.authentication_methods


class TokenEndpoint:
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
    """Whether the issuer does not accept the code or the refresh token, rather than the request or the client."""
    if answer.text("error") == "invalid_grant":
        return True
    # Dex calls the request invalid if it has revoked or forgotten the refresh token.
    description = answer.text("error_description").lower()
    is_about_it = grant_type == "refresh_token" and description.startswith("refresh token ")
    return is_about_it and answer.text("error") == "invalid_request"


def with_reported(cause: str, reported: str) -> str:
    return f"{cause} and {reported}" if reported else cause


def client_hint(answer: HttpAnswer) -> str | None:
    """The hint for an issuer that does not know or accept the client."""
    is_about_client = answer.text("error") in ("invalid_client", "unauthorized_client")
    return "check clientID and clientSecretFile" if is_about_client else None
