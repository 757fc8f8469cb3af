"""People sign in at an OpenID Connect issuer: the authorization code flow, with PKCE (S256), state and nonce always.

    handle_client    discovery -> Redirect to the issuer; the gateway remembers state, nonce and verifier
    handle_provider  state -> iss -> code and verifier to the token endpoint -> ID token, verified -> user
    handle_logout    what the issuer says has ended; sign_out: where a browser goes after a sign-out here (`logout`)
    ask_again        refresh token to the token endpoint -> ID token or UserInfo -> the user as of now

    identity: [{name: acme, type: oidc, issuer: https://sso.example.com, clientID: gateway, clientSecretFile: secret}]

One instance is one issuer; a gateway may have several. What an issuer or a person refuses is a `LoginRefused`; an
issuer that is down, slow, or wrongly set up is a `ProviderError`. Groups come from a claim, as in
`ostiary.plugins.claims.groups`. Called by the gateway at sign-ins and renewals.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.errors import LoginRefused
from ostiary.interfaces.identity import Identified, LoginRequest, Produces, Redirect, RenewalCheck
from ostiary.interfaces.logout import Logout, SignOut
from ostiary.model import Secret, UserInfo
from ostiary.plugins.claims.groups import ClaimedGroups
from ostiary.plugins.common.authorization_code import parse_return
from ostiary.plugins.common.jwt.algorithms import ALGORITHMS
from ostiary.plugins.common.jwt.issuer import SYSTEM, Issuer, check_issuer, outbound_to_issuer
from ostiary.plugins.common.jwt.settings import CLOCK_SKEW
from ostiary.plugins.common.jwt.tokens import TokenRules
from ostiary.plugins.common.outbound import Outbound, SecretFile
from ostiary.plugins.common.renewal import Renewal, sign_in_again
from ostiary.plugins.oidc.authorization_request import NONCE, authorization_request
from ostiary.plugins.oidc.claims import ClaimNames
from ostiary.plugins.oidc.kept import Kept, refresh_token_of
from ostiary.plugins.oidc.logout import OidcLogouts, session_id_of
from ostiary.plugins.oidc.metadata import IssuerMetadata, read_metadata
from ostiary.plugins.oidc.settings import OidcSettings
from ostiary.plugins.oidc.token_endpoint import AGAIN, Client, TokenEndpoint
from ostiary.plugins.oidc.verified_claims import ClaimsOfTokens


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
        front_channel_logout: bool = False,
        ends_session: bool = False,
        renewal: Renewal = Renewal.DEFAULT,
        outbound: Outbound | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._outbound = outbound or Outbound(SYSTEM)
        self._issuer = Issuer(issuer, self._outbound, clock=clock)
        secret = None if client_secret_file is None else SecretFile(client_secret_file, "the client secret")
        self._client = Client(client_id, secret=secret, authentication=client_authentication)
        self._token_endpoint = TokenEndpoint(self._client, self._outbound)
        self._scope = " ".join(dict.fromkeys(("openid", *scopes)))
        self._claims = claims
        self._prompt = prompt
        self._renews = renewal is not Renewal.SIGN_IN
        self.renewal_check = renewal.check(with_kept=True)
        rules = TokenRules(
            issuer=issuer,
            audiences=frozenset((client_id, *audiences)),
            client_id=client_id,
            algorithms=frozenset(algorithms),
            skew=clock_skew,
        )
        self._claims_of_tokens = ClaimsOfTokens(self._issuer, rules, self._outbound, user_info=user_info, clock=clock)
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
            front_channel_logout=settings.front_channel_logout,
            ends_session=settings.end_session,
            renewal=settings.renewal,
            outbound=outbound_to_issuer(settings.ca, fields),
            clock=context.clock,
        )
        if provider._client.secret is not None:
            provider._client.secret.check(fields, "clientSecretFile")
        return provider

    def produces(self) -> Produces:
        return self._claims.produces()

    async def handle_client(self, request: LoginRequest) -> Redirect:
        parameters = {"client_id": self._client.id, "scope": self._scope}
        if self._prompt:
            parameters["prompt"] = self._prompt
        return authorization_request(parameters, request, await self._metadata())

    async def handle_provider(self, request: LoginRequest) -> Identified:
        came = parse_return(request, "the identity system")
        nonce = dict(request.remembered).get(NONCE, "")
        if not nonce:
            raise LoginRefused(AGAIN, cause="the state of this sign-in is incomplete")
        metadata = await self._metadata()
        self._check_sender(request, metadata)
        tokens = await self._token_endpoint.exchange(came, request.callback_url, metadata)
        verified = await self._claims_of_tokens.at_sign_in(tokens, nonce, metadata)
        user = self._claims.user(verified.claims)
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
        # An issuer that rotates refresh tokens takes the old one for stolen from now on.
        refresh_token = refresh_token_of(tokens) or before.refresh_token
        return Identified(self._claims.user(verified.claims), Kept(refresh_token, before.subject).seal())

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
            raise LoginRefused(AGAIN, cause="the answer in the browser is from another issuer (iss)")
