"""The identity provider ``workload``: workloads with a token of an OIDC issuer (pods, CI jobs) or a SPIFFE JWT-SVID.

    identity:
    - name: ci
      type: workload
      platform: github
      rules:
      - match: {repository: acme/shop, ref: refs/heads/main}
        username: "ci:{repository}"
        groups: [deployers]

    token -> issuer's keys (or TokenReview) -> audience, times -> claims -> the first matching rule -> user

An instance serves one issuer; a gateway may have several. The audience must be the gateway's: a token for another
service is not accepted, because that service could replay it. Served at ``/auth/<name>`` and ``POST /auth/token``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import partial
from typing import Self

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import Secret, UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import Challenge, LoginRequest, Produces, RenewalCheck, SignIn, VerifiedToken
from ostiary_gateway.providers.claims import ClaimedGroups
from ostiary_gateway.providers.common.jwt import (
    Claims,
    Keys,
    KeySource,
    ParsedToken,
    TokenRefused,
    TokenRules,
    check_claims,
    parse_keys,
    parse_token,
    time_of,
    unverified_claims,
    verify_signature_with,
)
from ostiary_gateway.providers.common.jwt_issuer import FileKeys, Issuer, check_issuer, outbound_to_issuer, usable_url
from ostiary_gateway.providers.common.jwt_settings import CLOCK_SKEW
from ostiary_gateway.providers.common.outbound import Outbound, SecretFile
from ostiary_gateway.providers.common.spiffe_id import SCHEME, TRUST_DOMAIN, parse_spiffe_id
from ostiary_gateway.providers.workload.kubernetes import TokenReviewClient, kubernetes
from ostiary_gateway.providers.workload.platforms import GITHUB, GITLAB, OIDC, Extra, Platform, TokenClaims, Workload
from ostiary_gateway.providers.workload.rules import SYSTEM, WorkloadNames, WorkloadRule, names_by
from ostiary_gateway.providers.workload.settings import WorkloadSettings
from ostiary_gateway.settings.declare import read_settings

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OF_KUBERNETES = ("server", "tokenFile", "tokenReview", "cluster")
_OF_SPIFFE = ("trustDomain",)
NOBODY = "it can match nobody"


def check_settings(settings: WorkloadSettings, platform: Platform, fields: ConfigSection) -> None:
    """Report every error in *fields*: settings that do not go together, or are missing for the platform."""
    name = settings.platform
    for key in (*(_OF_KUBERNETES if name != "kubernetes" else ()), *(_OF_SPIFFE if name != "spiffe" else ())):
        if key in fields:
            fields.problem(f"it is of no use for the platform {name}", key)
    if name == "oidc" and not settings.issuer:
        fields.problem("it is missing: the URL of the issuer", "issuer")
    if name == "spiffe":
        _check_spiffe(settings, fields)
    else:
        check_issuer(settings.issuer, fields)
    for key, url in (("server", settings.server), ("keysURL", settings.keys_url)):
        if url and usable_url(url, plain=True) is None:
            fields.problem("it is not a https URL", key, "plain http is for this machine only")
    _check_keys(settings, fields)
    if not settings.rules and platform.needs_rules and fields.is_right("rules"):
        fields.problem("it is missing: without a rule nobody can sign in", "rules")


def _check_spiffe(settings: WorkloadSettings, fields: ConfigSection) -> None:
    domain = settings.trust_domain
    if not domain:
        fields.problem("it is missing: the trust domain", "trustDomain")
    elif not re.fullmatch(TRUST_DOMAIN, domain):
        fields.problem(
            "it is not the name of a trust domain",
            "trustDomain",
            f"write example.org, without {SCHEME} and in lower case",
        )
    if not settings.keys_url and settings.keys_file is None:
        fields.problem("the trust bundle is missing: set keysFile, or keysURL for a bundle endpoint", "keysFile")


def _check_keys(settings: WorkloadSettings, fields: ConfigSection) -> None:
    if settings.keys_url and settings.keys_file is not None:
        fields.problem("either keysURL or keysFile is set, not both", "keysFile")
    has_keys = settings.keys_url != "" or settings.keys_file is not None
    if settings.token_review and has_keys:
        fields.problem("the API server is asked about each token: no keys are used", "tokenReview")
    if settings.server and has_keys and not settings.token_review:
        fields.problem("the keys are elsewhere: the API server is not asked", "server")
    if settings.token_review and settings.token_file is None:
        hint = "the token of a service account that may create tokenreviews (system:auth-delegator)"
        fields.problem("tokenReview needs it: the API server answers only whom it knows", "tokenFile", hint)


def check_rules(rules: tuple[WorkloadRule, ...], platform: Platform, sections: Iterable[ConfigSection]) -> None:
    """Report rules that can never match and reserved names. *sections* are the positions of the rules."""
    for index, (rule, section) in enumerate(zip(rules, sections, strict=True)):
        _check_claims(rule, platform, section)
        if rule.username is None and platform.needs_rules and section.is_right("username"):
            section.problem("it is missing: the name of who matches", "username")
        for key, templates in (("username", (rule.username,)), ("groups", rule.groups), ("uid", (rule.uid,))):
            for template in templates:
                if template is not None and template.literals[0].startswith(SYSTEM):
                    hint = "service accounts have such names with platform: kubernetes and cluster: <upstream>"
                    section.problem(f"no rule gives names that begin with {SYSTEM}", key, hint)
                for claim in () if template is None else template.names:
                    _check_claim(claim, platform, section, key)
        if not rule.match and not platform.needs_rules and rule.username is None and not rule.groups:
            section.problem("it does nothing: it matches everybody, and gives neither a name nor groups")
        earlier = next((number for number, each in enumerate(rules[:index]) if each.covers(rule)), None)
        if earlier is not None:
            section.problem(f"{NOBODY}: rules[{earlier}] matches the same claims, and comes first", "match")


def _check_claims(rule: WorkloadRule, platform: Platform, section: ConfigSection) -> None:
    if not rule.match and platform.needs_rules and section.is_right("match"):
        hint = f"name the claims that count, such as {min(platform.claims - {'aud', 'exp'}, default='sub')}"
        section.problem("it is empty: everybody who has a token of this issuer would match", "match", hint)
    match = section.section("match")
    # Already read by the settings declaration.
    match.ignore(*match)
    for claim, patterns in rule.match.items():
        _check_claim(claim, platform, match, claim)
        for mistake in _mistakes(platform, claim, [pattern.text for pattern in patterns]):
            match.problem(f"{NOBODY}: {mistake}", claim)


def _check_claim(claim: str, platform: Platform, section: ConfigSection, key: str) -> None:
    if platform.claims and claim not in platform.claims:
        near = get_close_matches(claim, platform.claims, n=1)
        hint = f"did you mean {near[0]}?" if near else "platform: oidc takes rules for any claim"
        section.problem(f'{NOBODY}: tokens of the platform {platform.name} have no claim "{claim}"', key, hint)


def _mistakes(platform: Platform, claim: str, texts: list[str]) -> Iterator[str]:
    """Yield likely errors in the patterns of a claim, based on the values it can have on this platform."""
    for text in texts:
        if platform.name == "github" and claim in ("repository", "job_workflow_ref", "workflow_ref"):
            if "/" not in text and text != "**":
                yield "it has the form OWNER/NAME"
        elif platform.name == "github" and claim == "ref" and not text.startswith(("refs/", "*")):
            yield "it has the form refs/heads/BRANCH or refs/tags/TAG"
        elif platform.name == "gitlab" and claim == "ref" and text.startswith("refs/"):
            yield "GitLab writes a branch or tag without refs/heads/ (that form is in ref_path)"
        elif platform.name == "gitlab" and claim == "project_path" and "/" not in text and text != "**":
            yield "it has the form GROUP/PROJECT"
        elif platform.name == "kubernetes" and claim == "namespace" and "*" not in text and not _LABEL.fullmatch(text):
            yield "it is not the name of a namespace"
        elif platform.name == "spiffe" and claim == "path" and not text.startswith(("/", "*")):
            yield "a path begins with /"
        elif platform.name == "spiffe" and claim == "sub" and not text.startswith((SCHEME, "*")):
            yield f"a SPIFFE ID begins with {SCHEME}"


# The algorithms that JWT-SVID allows (section 2.1), and the values of the typ header (2.3).
ALGORITHMS = frozenset(f"{family}{bits}" for family in ("RS", "ES", "PS") for bits in (256, 384, 512))
TYPES = frozenset(("jwt", "jose"))
# The trust bundle also has keys for certificates, which must not verify tokens (SPIFFE Trust Domain and Bundle, 4.2.2).
FOR_TOKENS = frozenset(("jwt-svid",))


def parse_bundle(document: object) -> Keys:
    return parse_keys(document, uses=FOR_TOKENS)


def spiffe(trust_domain: str) -> Platform:
    return Platform(
        "spiffe",
        claims=frozenset(("sub", "aud", "iss", "jti", "path")),
        types=TYPES,
        algorithms=ALGORITHMS,
        needs_rules=False,
        read=partial(_read, trust_domain),
    )


def _read(trust_domain: str, claims: Mapping[str, object]) -> Workload:
    """Read a JWT-SVID. It need not name its issuer: the trust domain determines whose keys verify it.

    Raises `LoginRefused` if the subject is not in the trust domain.
    """
    identity = parse_spiffe_id(claims.get("sub"))
    if identity is None or identity.trust_domain != trust_domain:
        raise LoginRefused(
            "this token is not of the trust domain", cause="its subject is no SPIFFE ID of the trust domain"
        )
    return Workload(TokenClaims(claims, {"path": identity.path}), WorkloadNames(str(identity)))


# kube-apiserver's extra field for the credential of a request, in audit records and for its webhooks.
CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
LAST_MOMENT = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
_NOT_ACCEPTED = "the token of this workload is not accepted"
_CHALLENGE = Challenge('Bearer realm="workload"')


class WorkloadIdentity(ClaimedGroups):
    """Accept tokens of *platform* for *audiences* and no others, verified with *keys* or by TokenReview (*reviews*).

    *trust_domain* is for SPIFFE, whose tokens need no issuer. *max_age* limits the age of a token, and with *once* each
    token is accepted a single time. *lifetime* lets the gateway's tokens outlast that of the platform.
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
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
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
        """All possible names, or None if one depends on claims. Excludes service accounts of the bound cluster."""
        templates = [rule.username for rule in self._named_rules] or [None]
        if any(
            (template is None and not self.bound_cluster) or (template and template.names) for template in templates
        ):
            return None
        return frozenset(template.text for template in templates if template is not None)

    # --- sign-in ---

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
        # The issued token ends with the presented one: the skew is for clock differences and must not extend it.
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
        # First, so that a token with another audience or an expired one causes no request to the issuer.
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
    # Tokens without expiry were rejected before. A date that `datetime` cannot represent is limited to LAST_MOMENT.
    return datetime.fromtimestamp(min(seconds or 0, LAST_MOMENT), UTC)


def token_id(token: ParsedToken) -> str:
    """Return the ``jti``, or the digest of the signed part. Not of the signature: it has several valid encodings."""
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
    fields: ConfigSection,
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
