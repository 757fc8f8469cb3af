"""People sign in at an OpenID Connect issuer: the authorization code flow, with PKCE (S256), state and nonce always.

    handle_client    discovery -> Redirect to the issuer; the gateway remembers state, nonce and verifier
    handle_provider  state -> iss -> code and verifier to the token endpoint -> ID token, verified -> user
    ask_again        refresh token to the token endpoint -> ID token or UserInfo -> the user as of now

    identity: [{name: acme, type: oidc, issuer: https://sso.example.com, clientID: gateway, clientSecretFile: secret}]

One instance is one issuer; a gateway may have several. What an issuer or a person refuses is a `LoginRefused`; an
issuer that is down, slow, or wrongly set up is a `ProviderError`. Groups come from a claim, as in
`ostiary.plugins.claims.groups`. Called by the gateway at sign-ins and renewals.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from urllib.parse import parse_qsl, quote_plus, urlsplit, urlunsplit

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.errors import LoginRefused
from ostiary.interfaces.identity import Identified, LoginRequest, Produces, Redirect, RenewalCheck
from ostiary.model import Secret, UserInfo
from ostiary.plugins.claims.groups import ClaimedGroups
from ostiary.plugins.common.authorization_code import Returned, begin, parse_return
from ostiary.plugins.common.jwt.algorithms import ALGORITHMS
from ostiary.plugins.common.jwt.issuer import SYSTEM, Issuer, check_issuer, outbound_to_issuer
from ostiary.plugins.common.jwt.settings import CLOCK_SKEW
from ostiary.plugins.common.jwt.tokens import Claims, TokenRefused, TokenRules, verify_with
from ostiary.plugins.common.outbound import HttpAnswer, Outbound, SecretFile
from ostiary.plugins.common.renewal import Renewal, sign_in_again
from ostiary.plugins.oidc.claims import ClaimNames
from ostiary.plugins.oidc.metadata import IssuerMetadata, read_metadata
from ostiary.plugins.oidc.settings import BASIC, OidcSettings

NONCE = "nonce"
# How a client proves itself (OpenID Connect Core, 9). Issuers take the first one, unless they say otherwise.
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")
_AGAIN = "this sign-in cannot be completed: start again"
_NOT_BELIEVED = "the response of the identity system is invalid"
_ENDED = "this session has expired or was revoked: sign in again"
# The texts for the person and for the operator when the issuer rejects our code or refresh token (RFC 6749, 5.2).
_REFUSED = {
    "authorization_code": (_AGAIN, "the issuer rejected the code: used, expired, or issued to another client"),
    "refresh_token": (
        _ENDED,
        "the issuer rejected the refresh token: the account is disabled or its session has ended",
    ),
}


class OidcIdentity(ClaimedGroups):
    """A relying party of *issuer*. Without *client_secret_file* it is a public client, which PKCE alone protects.

    *client_authentication* is for a client that is registered for the one way only; left out, the issuer tells.
    Further *audiences* may stand in an ID token beside the client. With *user_info* the claims about the person come
    from the issuer's UserInfo endpoint, and none of them from the ID token. A refresh token is kept if one is given;
    *prompt* is for issuers that give one only after consent.
    """

    renewal_check: RenewalCheck

    def __init__(
        self,
        *,
        issuer: str,
        client_id: str,
        client_secret_file: str | os.PathLike[str] | None = None,
        client_authentication: str = "",
        scopes: Iterable[str] = (),
        claims: ClaimNames = ClaimNames(),  # noqa: B008  # frozen
        audiences: Iterable[str] = (),
        algorithms: Iterable[str] = ALGORITHMS,
        user_info: bool = False,
        clock_skew: timedelta = CLOCK_SKEW,
        prompt: str = "",
        renewal: Renewal = Renewal.DEFAULT,
        outbound: Outbound | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._outbound = outbound or Outbound(SYSTEM)
        self._issuer = Issuer(issuer, self._outbound, clock=clock)
        self._client_id = client_id
        self._secret = None if client_secret_file is None else SecretFile(client_secret_file, "the client secret")
        self._authentication = client_authentication
        self._scope = " ".join(dict.fromkeys(("openid", *scopes)))
        self._claims = claims
        self._user_info = user_info
        self._prompt = prompt
        self._renews = renewal is not Renewal.SIGN_IN
        self.renewal_check = renewal.check(with_kept=True)
        self._clock = clock
        self._rules = TokenRules(
            issuer=issuer,
            audiences=frozenset((client_id, *audiences)),
            client_id=client_id,
            algorithms=frozenset(algorithms),
            skew=clock_skew,
        )
        if renewal is Renewal.SIGN_IN:
            self.revalidate = sign_in_again

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> OidcIdentity:
        settings = read_settings(OidcSettings, fields, context.directory)
        check_issuer(settings.issuer, fields)
        provider = cls(
            issuer=settings.issuer,
            client_id=settings.client_id,
            client_secret_file=settings.client_secret_file,
            client_authentication=settings.client_authentication,
            scopes=settings.scopes,
            claims=settings.claims,
            audiences=settings.audiences,
            algorithms=settings.algorithms,
            user_info=settings.user_info,
            clock_skew=settings.clock_skew,
            prompt=settings.prompt,
            renewal=settings.renewal,
            outbound=outbound_to_issuer(settings.ca, fields),
            clock=context.clock,
        )
        if provider._secret is not None:
            provider._secret.check(fields, "clientSecretFile")
        return provider

    def produces(self) -> Produces:
        return self._claims.produces()

    async def handle_client(self, request: LoginRequest) -> Redirect:
        metadata = await self._metadata()
        nonce = secrets.token_urlsafe(32)
        endpoint = urlsplit(metadata.authorization_endpoint)
        parameters = {
            # Some issuers have parameters of their own in the address of the page.
            **dict(parse_qsl(endpoint.query, keep_blank_values=True)),
            "response_type": "code",
            "client_id": self._client_id,
            "scope": self._scope,
            "nonce": nonce,
            **({"prompt": self._prompt} if self._prompt else {}),
        }
        redirect = begin(urlunsplit(endpoint._replace(query="")), parameters, request)
        return replace(redirect, remember=(*redirect.remember, (NONCE, nonce)))

    async def handle_provider(self, request: LoginRequest) -> UserInfo | Identified:
        came = parse_return(request, "the identity system")
        nonce = dict(request.remembered).get(NONCE, "")
        if not nonce:
            raise LoginRefused(_AGAIN, cause="the state of this sign-in is incomplete")
        metadata = await self._metadata()
        self._check_sender(request, metadata)
        tokens = await self._exchange(came, request.callback_url, metadata)
        claims, subject = await self._claims_of(tokens, nonce, metadata)
        user = self._claims.user(claims)
        refresh_token = tokens.get("refresh_token")
        if not self._renews or not isinstance(refresh_token, str) or not refresh_token:
            return user
        return Identified(user, _secret_to_keep(refresh_token, subject))

    async def ask_again(self, user: UserInfo, kept: Secret) -> Identified:
        refresh_token, subject = _read_kept(kept)
        metadata = await self._metadata()
        tokens = await self._ask_tokens({"grant_type": "refresh_token", "refresh_token": refresh_token}, metadata)
        claims = await self._claims_again(tokens, subject, metadata)
        # An issuer that rotates refresh tokens takes the old one for stolen from now on.
        newer = tokens.get("refresh_token")
        return Identified(
            self._claims.user(claims),
            _secret_to_keep(newer if isinstance(newer, str) and newer else refresh_token, subject),
        )

    async def close(self) -> None:
        await self._outbound.close()

    async def probe(self) -> str:
        await self._metadata()
        await self._issuer.keys()
        return f"the issuer {self._issuer.url} and its keys"

    async def _metadata(self) -> IssuerMetadata:
        document = await self._issuer.document()
        try:
            return read_metadata(self._issuer.url, document)
        except ValueError as mistake:
            raise self._outbound.failure(self._issuer.url, str(mistake)) from None

    def _check_sender(self, request: LoginRequest, metadata: IssuerMetadata) -> None:
        """RFC 9207: the code of another issuer must not be taken to this one, which might then use it there."""
        issuers = [value for name, value in request.query if name == "iss"]
        if (issuers or metadata.announces_iss) and issuers != [self._issuer.url]:
            raise LoginRefused(_AGAIN, cause="the answer in the browser is from another issuer (iss)")

    # --- the code for tokens ---

    async def _exchange(self, came: Returned, redirect_uri: str, metadata: IssuerMetadata) -> Mapping[str, object]:
        form = {
            "grant_type": "authorization_code",
            "code": came.code.reveal(),
            "redirect_uri": redirect_uri,
            "code_verifier": came.verifier.reveal(),
        }
        return await self._ask_tokens(form, metadata)

    async def _ask_tokens(self, form: dict[str, str], metadata: IssuerMetadata) -> Mapping[str, object]:
        headers: dict[str, str] = {}
        secret = None if self._secret is None else self._secret.current()
        if secret is not None and self._sends_basic(metadata):
            # Each part is a form value first (RFC 6749, 2.3.1): a colon in the name would otherwise end it.
            pair = f"{quote_plus(self._client_id)}:{quote_plus(secret.reveal())}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form["client_id"] = self._client_id
            if secret is not None:
                form["client_secret"] = secret.reveal()
        url = metadata.token_endpoint
        answer = await self._outbound.ask("POST", url, headers=headers, form=form)
        return self._tokens(answer, url, refused=_REFUSED[form["grant_type"]])

    def _sends_basic(self, metadata: IssuerMetadata) -> bool:
        if self._authentication:
            return self._authentication == BASIC
        return BASIC in metadata.authentication_methods

    def _tokens(self, answer: HttpAnswer, url: str, *, refused: tuple[str, str]) -> Mapping[str, object]:
        if answer.status == 200 and isinstance(answer.body, dict):
            return answer.body
        error = answer.text("error")
        if answer.status == 400 and error == "invalid_grant":
            summary, cause = refused
            raise LoginRefused(summary, cause=cause)
        reported = f" and {error}" if _ERROR_CODE.fullmatch(error) else ""
        hint = "check clientID and clientSecretFile" if error in ("invalid_client", "unauthorized_client") else None
        raise self._outbound.failure(url, f"it answered a code with status {answer.status}{reported}", hint)

    # --- what the tokens say ---

    async def _claims_of(
        self, tokens: Mapping[str, object], nonce: str, metadata: IssuerMetadata
    ) -> tuple[Claims, str]:
        """What the issuer says of the person, and its name for them."""
        if not isinstance(tokens.get("id_token"), str):
            hint = "the scope openid must be allowed there"
            raise self._outbound.failure(metadata.token_endpoint, "it gave no ID token", hint)
        claims = await self._verify_claims(tokens, nonce)
        subject = str(claims["sub"])
        if self._user_info:
            return await self._user_info_of(subject, tokens, metadata), subject
        return claims, subject

    async def _claims_again(self, tokens: Mapping[str, object], subject: str, metadata: IssuerMetadata) -> Claims:
        """The same at a refresh, where an ID token need not come along (OpenID Connect Core, 12.2)."""
        if isinstance(tokens.get("id_token"), str):
            claims = await self._verify_claims(tokens, None)
            if claims["sub"] != subject:
                raise LoginRefused(_NOT_BELIEVED, cause="the ID token of the refresh is about another person")
            if not self._user_info:
                return claims
        if not metadata.user_info_endpoint:
            cause = "at a refresh the issuer gives no ID token, and it has no UserInfo endpoint"
            raise LoginRefused(_ENDED, cause=cause)
        return await self._user_info_of(subject, tokens, metadata)

    async def _verify_claims(self, tokens: Mapping[str, object], nonce: str | None) -> Claims:
        try:
            return await verify_with(
                self._issuer,
                str(tokens["id_token"]),
                self._rules,
                now=self._clock.now(),
                nonce=nonce,
                access_token=_access_token(tokens),
            )
        except TokenRefused as refused:
            raise LoginRefused(_NOT_BELIEVED, cause=f"ID token: {refused}") from None

    async def _user_info_of(self, subject: str, tokens: Mapping[str, object], metadata: IssuerMetadata) -> Claims:
        url, access_token = metadata.user_info_endpoint, _access_token(tokens)
        if not url or access_token is None:
            why = "it has no UserInfo endpoint, or gave no access token"
            raise self._outbound.failure(metadata.token_endpoint, why, "leave out userInfo")
        answer = await self._outbound.ask("GET", url, headers={"Authorization": f"Bearer {access_token}"})
        if answer.status != 200 or not isinstance(answer.body, dict):
            raise self._outbound.failure(url, f"its UserInfo is not a JSON object (status {answer.status})")
        # OpenID Connect Core 5.3.2: else it may be about anybody.
        if answer.body.get("sub") != subject:
            raise LoginRefused(_NOT_BELIEVED, cause="UserInfo is about another person")
        return answer.body


def _access_token(tokens: Mapping[str, object]) -> str | None:
    access = tokens.get("access_token")
    return access if isinstance(access, str) else None


def _secret_to_keep(refresh_token: str, subject: str) -> Secret:
    return Secret(json.dumps([refresh_token, subject]))


def _read_kept(kept: Secret) -> tuple[str, str]:
    try:
        refresh_token, subject = json.loads(kept.reveal())
        return str(refresh_token), str(subject)
    except (ValueError, TypeError):
        pass
    raise LoginRefused(_ENDED, cause="what was kept of the sign-in cannot be read")
