"""The identity provider ``sso_cookie``: a single sign-on cookie with a token (JWT) signed by its issuer.

    identity: [{name: sso, type: sso_cookie, cookie: sso, issuer: https://sso.example.com, audiences: [gateway]}]

The issuer's keys are found by discovery, or with ``keysURL`` or ``keysFile``. The token is verified like an ID token
(`ostiary_gateway.providers.common.jwt`), and must be for our audiences only: a token for another application is
rejected, because that application could replay it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import Secret, UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest, Produces, RenewalCheck, SignIn
from ostiary_gateway.providers.claims import ClaimedGroups
from ostiary_gateway.providers.common.jwt import KeySource, TokenRefused, TokenRules, verify_with
from ostiary_gateway.providers.common.jwt_issuer import (
    SYSTEM,
    FileKeys,
    Issuer,
    check_issuer,
    outbound_to_issuer,
    usable_url,
)
from ostiary_gateway.providers.common.jwt_settings import ALGORITHMS, CLOCK_SKEW
from ostiary_gateway.providers.common.outbound import Outbound
from ostiary_gateway.providers.common.refresh import Renewal, sign_in_again
from ostiary_gateway.providers.oidc.claims import ClaimNames
from ostiary_gateway.providers.sso_cookie_settings import SsoCookieSettings
from ostiary_gateway.settings.declare import read_settings

# Token types that single sign-on systems put into cookies: none, or an access token (RFC 9068).
TYPES = frozenset(("jwt", "at+jwt"))


class SsoCookieIdentity(ClaimedGroups):
    """Accept the token in the cookie *cookie*, if *issuer* signed it with one of *keys* for *audiences* only."""

    sign_in = SignIn.AMBIENT
    renewal_check: RenewalCheck

    def __init__(
        self,
        *,
        cookie: str,
        issuer: str,
        audiences: Iterable[str],
        keys: KeySource | None = None,
        claims: ClaimNames = ClaimNames(),  # noqa: B008  # frozen
        algorithms: Iterable[str] = ALGORITHMS,
        clock_skew: timedelta = CLOCK_SKEW,
        renewal: Renewal = Renewal.DEFAULT,
        outbound: Outbound | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._cookie = cookie
        self._outbound = outbound or Outbound(SYSTEM)
        self._keys = keys or Issuer(issuer, self._outbound, clock=clock)
        self._claims = claims
        self._clock = clock
        self._rules = TokenRules(
            issuer=issuer,
            audiences=frozenset(audiences),
            algorithms=frozenset(algorithms),
            types=TYPES,
            skew=clock_skew,
        )
        self.renewal_check = renewal.check()
        if renewal is Renewal.SIGN_IN:
            self.revalidate = sign_in_again

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> SsoCookieIdentity:
        settings = read_settings(SsoCookieSettings, fields, context.directory)
        check_issuer(settings.issuer, fields)
        outbound = outbound_to_issuer(settings.ca, fields)
        return cls(
            cookie=settings.cookie,
            issuer=settings.issuer,
            audiences=settings.audiences,
            keys=_keys(settings, outbound, fields, context.clock),
            claims=settings.claims,
            algorithms=settings.algorithms,
            clock_skew=settings.clock_skew,
            renewal=settings.renewal,
            outbound=outbound,
            clock=context.clock,
        )

    def produces(self) -> Produces:
        return self._claims.produces()

    async def handle_client(self, request: LoginRequest) -> UserInfo:
        token = _cookie(request, self._cookie)
        try:
            claims = await verify_with(self._keys, token.reveal(), self._rules, now=self._clock.now())
        except TokenRefused as refused:
            cause = f"the token in the cookie: {refused}"
            raise LoginRefused("sign in at your single sign-on first", cause=cause) from None
        return self._claims.user(claims)

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused("there is no sign-in to continue: start again", cause="a cookie sends nobody elsewhere")

    async def close(self) -> None:
        await self._outbound.close()

    async def probe(self) -> str:
        await self._keys.keys()
        return f"the keys of {self._rules.issuer}"


def _keys(settings: SsoCookieSettings, outbound: Outbound, fields: ConfigSection, clock: Clock) -> KeySource:
    url = settings.keys_url
    if url and usable_url(url, plain=True) is None:
        fields.problem("it is not a https URL", "keysURL", "plain http is for this machine only")
    if settings.keys_file is None:
        return Issuer(settings.issuer, outbound, keys_url=url, clock=clock)
    if url:
        fields.problem("either keysURL or keysFile is set, not both", "keysFile")
    keys = FileKeys(settings.keys_file, clock=clock)
    keys.file.check(fields, "keysFile")
    return keys


def _cookie(request: LoginRequest, name: str) -> Secret:
    """Return the cookie's value. A duplicate cookie is rejected: another site of the domain may have set it."""
    pairs = [
        pair.strip().partition("=")
        for key, line in request.headers
        if key == "cookie"
        for pair in line.split(";")
    ]  # fmt: skip
    values = [value for key, _, value in pairs if key == name]
    if len(values) != 1 or not values[0]:
        raise LoginRefused("sign in at your single sign-on first", cause="its cookie is missing or duplicated")
    return Secret(values[0].strip('"'))
