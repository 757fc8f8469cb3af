"""The identity provider ``oidc``: the authorization code flow, always with PKCE (S256), state and nonce.

    handle_client    discovery -> Redirect to the issuer; the gateway stores state, nonce and verifier
    handle_provider  state -> iss -> code and verifier to the token endpoint -> verified ID token -> user
    handle_logout    sessions that the issuer ended; sign_out: where a browser goes after a sign-out here (`logout`)
    ask_again        refresh token to the token endpoint -> ID token or UserInfo -> the current user

One instance serves one issuer; a gateway may have several:

    identity: [{name: acme, type: oidc, issuer: https://sso.example.com, clientID: gateway, clientSecretFile: secret}]
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import Secret, UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import (
    Identified,
    LoginRequest,
    Logout,
    Produces,
    Redirect,
    RenewalCheck,
    SignOut,
)
from ostiary_gateway.providers.claims import ClaimedGroups
from ostiary_gateway.providers.common.authorization_code import parse_return, returned_parameters
from ostiary_gateway.providers.common.jwt import TokenRules
from ostiary_gateway.providers.common.jwt_issuer import SYSTEM, Issuer, check_issuer, outbound_to_issuer
from ostiary_gateway.providers.common.jwt_settings import ALGORITHMS, CLOCK_SKEW
from ostiary_gateway.providers.common.outbound import Outbound, SecretFile
from ostiary_gateway.providers.common.refresh import Renewal, sign_in_again
from ostiary_gateway.providers.oidc.authorization_request import (
    NONCE,
    NOTHING_KNOWN,
    AuthorizationRequests,
    required_parameters,
    sign_in_context,
)
from ostiary_gateway.providers.oidc.claims import ClaimNames, ReadsClaims
from ostiary_gateway.providers.oidc.logout import OidcLogouts, session_id_of
from ostiary_gateway.providers.oidc.metadata import IssuerMetadata, read_metadata
from ostiary_gateway.providers.oidc.settings import AUTO, FORM_POST, QUERY, OidcSettings
from ostiary_gateway.providers.oidc.token_endpoint import (
    AGAIN,
    ENDED,
    ClaimsOfTokens,
    Client,
    IdTokens,
    IdTokensOfIssuer,
    TokenEndpoint,
    Tokens,
    VerifiedClaims,
)
from ostiary_gateway.sessions.authentication_context import KEYS, AuthenticationContext, context_of, with_context
from ostiary_gateway.settings.declare import read_settings


@dataclass(frozen=True, slots=True)
class Kept:
    """The provider's state in a session, for refreshes: the refresh token, and the subject that it was issued for."""

    refresh_token: str = field(repr=False)
    subject: str

    def seal(self) -> Secret:
        return Secret(json.dumps([self.refresh_token, self.subject]))

    @classmethod
    def read(cls, kept: Secret) -> Kept:
        try:
            refresh_token, subject = json.loads(kept.reveal())
            return cls(str(refresh_token), str(subject))
        except (ValueError, TypeError):
            pass
        raise LoginRefused(ENDED, cause="what was kept of the sign-in cannot be read")


def refresh_token_of(tokens: Tokens) -> str:
    """Return the refresh token in *tokens*, or an empty string."""
    refresh_token = tokens.get("refresh_token")
    return refresh_token if isinstance(refresh_token, str) else ""


class OidcIdentity(ClaimedGroups):
    """A relying party of *issuer*. Without *client_secret_file* it is a public client, protected by PKCE alone.

    *client_authentication* is for a client that is registered for one method only; by default the issuer's metadata
    decides. *audiences* are allowed in an ID token in addition to the client. With *user_info*, all claims about the
    user come from the issuer's UserInfo endpoint and none from the ID token. A refresh token is stored if the issuer
    returns one; *prompt* is for issuers that return one only after consent. *parameters* are extra authorization
    parameters of this issuer. *announced_issuer* is the issuer in the discovery document where that differs from
    *issuer*; *id_tokens* then verifies the tokens. Groups come from a claim, see `ostiary_gateway.providers.claims`.

    A sign-in that the issuer or the user denies raises `LoginRefused`. An issuer that is down, slow or misconfigured
    raises `ProviderError`.
    """

    renewal_check: RenewalCheck
    returns_by_post: bool

    steps_up = True

    def __init__(
        self,
        *,
        issuer: str,
        client_id: str,
        client_secret_file: str | os.PathLike[str] | None = None,
        client_authentication: str = "",
        scopes: Iterable[str] = (),
        claims: ReadsClaims = ClaimNames(),  # noqa: B008  # frozen
        audiences: Iterable[str] = (),
        algorithms: Iterable[str] = ALGORITHMS,
        user_info: bool = False,
        clock_skew: timedelta = CLOCK_SKEW,
        prompt: str = "",
        response_mode: str = QUERY,
        pushed_authorization: str = AUTO,
        parameters: Mapping[str, str] = MappingProxyType({}),
        announced_issuer: str = "",
        id_tokens: IdTokens | None = None,
        front_channel_logout: bool = False,
        ends_session: bool = False,
        renewal: Renewal = Renewal.DEFAULT,
        outbound: Outbound | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._outbound = outbound or Outbound(SYSTEM)
        self._issuer = Issuer(issuer, self._outbound, announced=announced_issuer, clock=clock)
        secret = None if client_secret_file is None else SecretFile(client_secret_file, "the client secret")
        self._client = Client(client_id, secret=secret, authentication=client_authentication)
        self._requests = AuthorizationRequests(
            self._client, self._outbound, response_mode=response_mode, pushed=pushed_authorization
        )
        self._token_endpoint = TokenEndpoint(self._client, self._outbound)
        self._parameters = {**parameters, "scope": " ".join(dict.fromkeys(("openid", *scopes)))}
        if prompt:
            self._parameters["prompt"] = prompt
        self._claims = claims
        self._renews = renewal is not Renewal.SIGN_IN
        self.renewal_check = renewal.check(with_kept=True)
        self.returns_by_post = response_mode == FORM_POST
        rules = TokenRules(
            issuer=issuer,
            audiences=frozenset((client_id, *audiences)),
            client_id=client_id,
            algorithms=frozenset(algorithms),
            skew=clock_skew,
        )
        self._claims_of_tokens = ClaimsOfTokens(
            id_tokens or IdTokensOfIssuer(self._issuer, rules, clock=clock), self._outbound, user_info=user_info
        )
        self._ends_session = ends_session
        self._logouts = OidcLogouts(
            self._issuer,
            rules,
            self._outbound,
            client_id=client_id,
            front_channel=front_channel_logout,
            ends_session=ends_session,
            clock=clock,
        )
        if renewal is Renewal.SIGN_IN:
            self.revalidate = sign_in_again

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> OidcIdentity:
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
            response_mode=settings.response_mode,
            pushed_authorization=settings.pushed_authorization,
            front_channel_logout=settings.front_channel_logout,
            ends_session=settings.end_session,
            renewal=settings.renewal,
            outbound=outbound_to_issuer(settings.ca, fields),
            clock=context.clock,
        )
        provider._client.check(fields)
        return provider

    def produces(self) -> Produces:
        produced = self._claims.produces()
        return replace(produced, extra=tuple(sorted({*produced.extra, *KEYS})))

    async def handle_client(self, request: LoginRequest) -> Redirect:
        parameters = {**self._parameters, **required_parameters(request.required)}
        return await self._requests.redirect(parameters, request, await self._metadata())

    async def handle_provider(self, request: LoginRequest) -> Identified:
        came = parse_return(request, "the identity system", by_post=self.returns_by_post)
        nonce = dict(request.remembered).get(NONCE, "")
        if not nonce:
            raise LoginRefused(AGAIN, cause="the state of this sign-in is incomplete")
        metadata = await self._metadata()
        self._check_sender(request, metadata)
        tokens = await self._token_endpoint.exchange(came, request.callback_url, metadata)
        verified = await self._claims_of_tokens.at_sign_in(tokens, nonce, metadata)
        user = self._user(verified)
        refresh_token = refresh_token_of(tokens) if self._renews else ""
        return Identified(
            user,
            Kept(refresh_token, verified.subject).seal() if refresh_token else None,
            session_id=session_id_of(verified.id_token),
            subject=verified.subject,
            sign_out_hint=Secret(str(tokens["id_token"])) if self._ends_session else None,
        )

    async def ask_again(self, user: UserInfo, kept: Secret) -> Identified:
        before = Kept.read(kept)
        metadata = await self._metadata()
        tokens = await self._token_endpoint.refresh(before.refresh_token, metadata)
        verified = await self._claims_of_tokens.at_refresh(tokens, before.subject, metadata)
        # An issuer that rotates refresh tokens now treats the old one as stolen.
        refresh_token = refresh_token_of(tokens) or before.refresh_token
        return Identified(self._user(verified, context_of(user)), Kept(refresh_token, before.subject).seal())

    async def handle_logout(self, request: LoginRequest) -> Logout:
        return await self._logouts.handle(request)

    async def sign_out(self, signed_out: SignOut) -> Redirect | None:
        return await self._logouts.sign_out(signed_out)

    async def close(self) -> None:
        await self._outbound.close()

    async def probe(self) -> str:
        await self._metadata()
        await self._issuer.keys()
        return f"the issuer {self._issuer.url} and its keys"

    async def probe_redirect_uri(self, redirect_uri: str) -> bool:
        return await self._requests.accepts(redirect_uri, self._parameters, await self._metadata())

    async def _metadata(self) -> IssuerMetadata:
        document = await self._issuer.document()
        try:
            return read_metadata(self._issuer.url, document)
        except ValueError as mistake:
            raise self._outbound.failure(self._issuer.url, str(mistake)) from None

    def _check_sender(self, request: LoginRequest, metadata: IssuerMetadata) -> None:
        """Check ``iss`` (RFC 9207): the code of another issuer must not be sent to this one, which might redeem it."""
        parameters = returned_parameters(request, by_post=self.returns_by_post)
        issuers = [value for name, value in parameters if name == "iss"]
        if (issuers or metadata.announces_iss) and issuers != [self._issuer.url]:
            raise LoginRefused(AGAIN, cause="the answer in the browser is from another issuer (iss)")

    def _user(self, verified: VerifiedClaims, before: AuthenticationContext = NOTHING_KNOWN) -> UserInfo:
        """Return the user and how they signed in. *before* is the authentication context known so far."""
        user = self._claims.user(verified.claims, verified.id_token)
        return with_context(user, sign_in_context(verified.id_token, before))
