"""A token that its platform has signed is the proof of a program: pods, CI jobs, anything with an OIDC issuer, SPIFFE.

    identity:
    - name: ci
      type: workload
      platform: github
      rules:
      - match: {repository: acme/shop, ref: refs/heads/main}
        username: "ci:{repository}"
        groups: [deployers]

    token -> issuer's keys (or TokenReview) -> audience, times -> claims -> the first rule that matches -> user

One instance is one issuer; a gateway may have several. The audience must be the gateway's: a token for another service,
which that service could replay to us, is refused. Called by the gateway at ``/auth/<name>`` and ``POST /auth/token``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Self

from ostiary.core.catalog import Context
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.core.settings.declare import read_settings
from ostiary.errors import LoginRefused
from ostiary.interfaces.identity import (
    Challenge,
    LoginRequest,
    Produces,
    RenewalCheck,
    SignIn,
    VerifiedToken,
)
from ostiary.model import Secret, UserInfo
from ostiary.plugins.claims.groups import ClaimedGroups
from ostiary.plugins.common.jwt.issuer import FileKeys, Issuer, outbound_to_issuer
from ostiary.plugins.common.jwt.keys import parse_keys
from ostiary.plugins.common.jwt.settings import CLOCK_SKEW
from ostiary.plugins.common.jwt.tokens import (
    Claims,
    KeySource,
    ParsedToken,
    TokenRefused,
    TokenRules,
    check_claims,
    parse_token,
    time_of,
    unverified_claims,
    verify_signature_with,
)
from ostiary.plugins.common.outbound import Outbound, SecretFile
from ostiary.plugins.common.spiffe_id import parse_spiffe_id
from ostiary.plugins.workload.checks import check_rules, check_settings
from ostiary.plugins.workload.kubernetes import kubernetes
from ostiary.plugins.workload.platforms import GITHUB, GITLAB, OIDC, Extra, Platform, Workload
from ostiary.plugins.workload.rules import WorkloadNames, WorkloadRule, names_by
from ostiary.plugins.workload.settings import WorkloadSettings
from ostiary.plugins.workload.spiffe import parse_bundle, spiffe
from ostiary.plugins.workload.token_review import TokenReviewClient

# As kube-apiserver names the token that somebody came with, in audit records and to its webhooks.
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
LAST_MOMENT = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
_NOT_ACCEPTED = "the token of this workload is not accepted"
_CHALLENGE = Challenge('Bearer realm="workload"')


class WorkloadIdentity(ClaimedGroups):
    """Believes the tokens of *platform* that *keys* have signed, or that *reviews* know, for *audiences* alone.

    *trust_domain* is SPIFFE's, whose tokens need no issuer. With *max_age* a token is accepted for so long after its
    issue, with *once* a single time. *lifetime* is for operators who want ours to outlast the platform's.
    """

    sign_in = SignIn.PROGRAM
    renewal_check = RenewalCheck.SIGN_IN
    bound_cluster: str

    def __init__(
        self,
        *,
        platform: Platform,
        issuer: str = "",
        audiences: Iterable[str],
        rules: Iterable[WorkloadRule] = (),
        keys: KeySource,
        reviews: TokenReviewClient | None = None,
        trust_domain: str = "",
        cluster: str = "",
        algorithms: Iterable[str] | None = None,
        clock_skew: timedelta = CLOCK_SKEW,
        max_age: timedelta | None = None,
        once: bool = False,
        lifetime: timedelta | None = None,
        extra: Iterable[tuple[str, str]] = (),
        credential_id: bool = True,
        outbound: Outbound | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.bound_cluster = cluster
        self._platform = platform
        self._issuer = issuer
        self._trust_domain = trust_domain
        self._named_rules = tuple(rules)
        self._keys = keys
        self._reviews = reviews
        self._max_age = max_age
        self._once = once
        self._lifetime = lifetime
        self._extra = tuple(sorted(extra))
        self._credential_id = credential_id
        self._outbound = outbound
        self._clock = clock
        allowed = platform.algorithms if algorithms is None else platform.algorithms & frozenset(algorithms)
        self._rules = TokenRules(
            issuer=issuer or None,
            audiences=frozenset(audiences),
            algorithms=allowed,
            types=platform.types,
            skew=clock_skew,
            alone=True,
        )

    @classmethod
    def from_config(cls, fields: Fields, context: Context) -> Self:
        settings = read_settings(WorkloadSettings, fields, context.directory)
        platform = _platform(settings)
        check_settings(settings, platform, fields)
        rules = tuple(WorkloadRule(each.match, each.username, each.groups, each.uid) for each in settings.rules)
        check_rules(rules, platform, (each.fields for each in settings.rules))
        audiences = settings.audiences or tuple(filter(None, (context.external_url,)))
        if not audiences and fields.is_right("audiences"):
            fields.problem("it is missing: whom a token must be for", "audiences")
        outbound = outbound_to_issuer(settings.ca, fields)
        secret = None if settings.token_file is None else SecretFile(settings.token_file, "the API server's token")
        if secret is not None:
            secret.check(fields, "tokenFile")
        return cls(
            platform=platform,
            issuer=settings.issuer or platform.issuer,
            audiences=audiences,
            rules=rules,
            keys=_keys(settings, platform, outbound, secret, fields, context.clock),
            reviews=_reviews(settings, platform, outbound, secret, audiences),
            trust_domain=settings.trust_domain,
            cluster=settings.cluster,
            algorithms=settings.algorithms,
            clock_skew=settings.clock_skew,
            max_age=settings.max_age,
            once=settings.once,
            lifetime=settings.lifetime,
            extra=settings.extra,
            credential_id=settings.credential_id,
            outbound=outbound,
            clock=context.clock,
        )

    def produces(self) -> Produces:
        keys = {*self._platform.extra, *(key for key, _ in self._extra)}
        return Produces(
            usernames=self._usernames(),
            uid=any(rule.uid is not None for rule in self._named_rules) or not self._platform.needs_rules,
            extra=tuple(sorted(keys | ({CREDENTIAL_ID} if self._credential_id else set()))),
        )

    def _usernames(self) -> frozenset[str] | None:
        """All names, if no claim is part of any; service accounts of the bound cluster are not among them."""
        templates = [rule.username for rule in self._named_rules] or [None]
        if any(
            (template is None and not self.bound_cluster) or (template and template.names) for template in templates
        ):
            return None
        return frozenset(template.text for template in templates if template is not None)

    # --- a program signs in ---

    async def handle_client(self, request: LoginRequest) -> UserInfo | Challenge:
        scheme, _, token = (request.header("authorization") or "").strip().partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return _CHALLENGE
        return (await self.verify_token(Secret(token.strip()))).user

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused("there is no sign-in to continue: start again", cause="a token sends nobody elsewhere")

    def recognizes_token(self, token: str) -> bool:
        claims = unverified_claims(token)
        if claims is None:
            return False
        if self._issuer:
            return claims.get("iss") == self._issuer
        subject = parse_spiffe_id(claims.get("sub"))
        return subject is not None and subject.trust_domain == self._trust_domain

    async def verify_token(self, token: Secret) -> VerifiedToken:
        now = self._clock.now()
        try:
            parsed = parse_token(token.reveal())
            await self._verify(token, parsed, now)
            self._check_age(parsed.claims, now)
            expires = _moment(time_of(parsed.claims, "exp"))
        except TokenRefused as refused:
            raise LoginRefused(_NOT_ACCEPTED, cause=f"the token: {refused}") from None
        workload = self._platform.read(parsed.claims)
        user = self._user(workload, names_by(self._named_rules, workload.claims, workload.names))
        # What is issued ends with the token itself: the skew belongs to the clocks, and not to the lifetime.
        end = expires if self._lifetime is None else now + self._lifetime
        once_until = expires + self._rules.skew if self._once else None
        return VerifiedToken(user, end, token_id(parsed), once_until)

    async def close(self) -> None:
        if self._outbound is not None:
            await self._outbound.close()

    async def probe(self) -> str:
        if self._reviews is not None:
            return await self._reviews.probe()
        await self._keys.keys()
        return f"the keys of {self._issuer or self._trust_domain}"

    async def _verify(self, token: Secret, parsed: ParsedToken, now: datetime) -> None:
        # First: a token that is for somebody else, or has expired, is refused without a question to anybody.
        check_claims(parsed.claims, self._rules, now=now)
        if self._reviews is None:
            await verify_signature_with(self._keys, parsed, self._rules)
        else:
            await self._reviews.check(token.reveal(), parsed)

    def _check_age(self, claims: Claims, now: datetime) -> None:
        if self._max_age is None:
            return
        issued = time_of(claims, "iat")
        if issued is None or now.timestamp() > issued + (self._max_age + self._rules.skew).total_seconds():
            raise TokenRefused("it was issued too long ago (maxAge), or does not say when")

    def _user(self, workload: Workload, names: WorkloadNames) -> UserInfo:
        extra = {*workload.extra, *_credential(workload, self._credential_id)}
        extra |= {(key, tuple(values)) for key, claim in self._extra if (values := workload.claims.get(claim))}
        return UserInfo(names.username, names.uid, names.groups, tuple(sorted(extra)))


def _moment(seconds: float | None) -> datetime:
    # A token without an expiry has been refused before. One for the year 30000 does not hold for longer than others.
    return datetime.fromtimestamp(min(seconds or 0, LAST_MOMENT), UTC)


def token_id(token: ParsedToken) -> str:
    """Its ``jti``, or the digest of what is signed. Not of the signature: the same one can be written in many ways."""
    name = token.claims.get("jti")
    return name if isinstance(name, str) and name else hashlib.sha256(token.signed).hexdigest()


def _credential(workload: Workload, wanted: bool) -> Extra:
    return ((CREDENTIAL_ID, (f"JTI={workload.claims['jti'][0]}",)),) if wanted and "jti" in workload.claims else ()


def _platform(settings: WorkloadSettings) -> Platform:
    match settings.platform:
        case "kubernetes":
            return kubernetes(bound=bool(settings.cluster))
        case "spiffe":
            return spiffe(settings.trust_domain)
        case "github":
            return GITHUB
        case "gitlab":
            return GITLAB
    return OIDC


def _keys(
    settings: WorkloadSettings,
    platform: Platform,
    outbound: Outbound,
    secret: SecretFile | None,
    fields: Fields,
    clock: Clock,
) -> KeySource:
    parse = parse_bundle if platform.name == "spiffe" else parse_keys
    if settings.keys_file is not None:
        keys = FileKeys(settings.keys_file, parse=parse, clock=clock)
        keys.file.check(fields, "keysFile")
        return keys
    return Issuer(
        settings.issuer or platform.issuer,
        outbound,
        keys_url=settings.keys_url,
        server=settings.server,
        headers=None if secret is None else lambda: _bearer(secret),
        parse=parse,
        clock=clock,
    )


def _reviews(
    settings: WorkloadSettings,
    platform: Platform,
    outbound: Outbound,
    secret: SecretFile | None,
    audiences: Iterable[str],
) -> TokenReviewClient | None:
    if not settings.token_review or secret is None:
        return None
    server = settings.server or settings.issuer or platform.issuer
    return TokenReviewClient(server, outbound, audiences=frozenset(audiences), headers=lambda: _bearer(secret))


def _bearer(secret: SecretFile) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {secret.current().reveal()}"}
