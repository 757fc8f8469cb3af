"""The complete configuration, and those of its sections that have no module of their own.

`config.loading` builds it, and the rest of the gateway is built from it. Providers are constructed but not opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from ostiary.core.yaml import ConfigSection, Document
from ostiary_gateway.config.accounts import ApiTokenSettings, ServiceAccountSettings
from ostiary_gateway.config.api_plugins import ApiPluginSettings
from ostiary_gateway.config.audit import Audit
from ostiary_gateway.config.branding import Branding, PagesSettings
from ostiary_gateway.config.extauth import Callers, DoorSettings
from ostiary_gateway.config.issuer import JwtIssuerSettings
from ostiary_gateway.config.listen import Listen
from ostiary_gateway.config.provider import Authorization, Groups, Identity, Provider
from ostiary_gateway.config.step_up import StepUpSettings
from ostiary_gateway.config.tracing import Tracing
from ostiary_gateway.config.upstream import UpstreamConfig
from ostiary_gateway.config.values import Address
from ostiary_gateway.interfaces.admission import AdmissionProvider
from ostiary_gateway.interfaces.audit import AuditProvider
from ostiary_gateway.interfaces.token_store import TokenStore
from ostiary_gateway.limits.settings import LimitSettings
from ostiary_gateway.observability.logging import FORMATS, LEVELS
from ostiary_gateway.settings.kinds import Duration, FilePath, Flag, Holds, Integer, Names, Word
from ostiary_gateway.settings.sections import Section

# Store type of a configuration without ``store``.
DEFAULT_STORE_TYPE = "sqlite"
LEAST_MAX_STALE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The settings ``tokens``: lifetimes of tokens and sessions, and session limits."""

    lifetime: Annotated[
        timedelta,
        Duration(
            "of an access token. At each renewal the identity provider and the group providers are asked again, as far"
            " as they can be"
        ),
    ] = timedelta(minutes=15)
    session: Annotated[timedelta, Duration("how long nobody need sign in again; at least `lifetime`")] = timedelta(
        hours=24
    )
    unchecked_session: Annotated[
        timedelta,
        Duration(
            "the same for a session about whose user nobody can be asked again without the person: `saml`, `kerberos`,"
            " `sso_cookie`, `client_certificate`, `trusted_header`, `oidc` and the types of issuers where no refresh"
            " token was given, and providers of others that have neither `revalidate` nor `ask_again`. A longer"
            " `session` does not lengthen it; `renewal: session` of the provider does away with it, and so does a"
            " group provider that checks users (`requireUser` of `ldap`)"
        ),
    ] = timedelta(hours=1)
    sessions_per_user: Annotated[
        int, Integer("when one more begins, the user's oldest ends. `0`: no limit", least=0)
    ] = 100
    sweep: Annotated[
        timedelta, Duration("how often expired tokens are deleted; they are refused before that as well")
    ] = timedelta(minutes=1)
    max_stale: Annotated[
        timedelta,
        Duration(
            "when the store cannot confirm for this long that no revocation is missing, the worker answers 503; a"
            " second at least"
        ),
    ] = timedelta(seconds=5)
    revocation_file: Annotated[
        Path | None,
        FilePath("a file whose lines revoke; its directory must exist", holds=Holds.WRITTEN, unset="none"),
    ] = None

    def check(self, fields: ConfigSection) -> None:
        if self.max_stale < LEAST_MAX_STALE and fields.is_right("maxStale"):
            fields.problem("it must be at least one second", "maxStale", "the token store needs time to answer")
        if self.lifetime > self.session and fields.is_right("lifetime", "session"):
            fields.problem("a token cannot outlive its session", "lifetime", "make tokens.session longer")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """How the authorization chain is evaluated."""

    cache_ttl: Annotated[
        timedelta,
        Duration(
            "how long a decision is used again: the longest that a change of policy can go unnoticed. `0s`: not at all",
            name="cacheTTL",
            zero=True,
        ),
    ] = timedelta(seconds=10)
    cache_entries: Annotated[int, Integer("decisions kept, per provider and worker")] = 100_000
    timeout: Annotated[timedelta, Duration("for one provider's decision")] = timedelta(seconds=10)
    unconfirmed: Annotated[
        timedelta,
        Duration(
            "how long open requests (watches, terminals, WebSockets, uploads and all others) go on while no provider"
            " can say whether they are still allowed; then they are cut. `0s`: they are cut at once",
            zero=True,
        ),
    ] = timedelta(seconds=60)
    hide_denied: Annotated[
        bool,
        Flag(
            "404 in place of 403 where somebody may see nothing, if the provider says so; only for what reads (*get*,"
            " *list*), never for what changes, watches or connects"
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class AuthorizationSettings(DecisionSettings):
    chain: tuple[Authorization, ...]


@dataclass(frozen=True, slots=True)
class Webhooks:
    """The settings ``webhooks``: which webhooks are served, and who may call them."""

    token_review: Annotated[bool, Flag("whether TokenReview is answered, below `/webhooks`")] = False
    subject_access_review: Annotated[bool, Flag("whether SubjectAccessReview is answered, below `/webhooks`")] = False
    revocations: Annotated[
        bool,
        Flag(
            "whether clusters that verify JWTs of `issuer` are told of revocations, below `/webhooks`: a review that"
            " only denies, and the list of revoked credentials"
        ),
    ] = False
    introspection: Annotated[
        bool,
        Flag(
            "whether [backends that check tokens themselves](../how-to/protect-a-python-api.md) may ask about tokens,"
            " narrowed ones too, and follow revocations, below `/webhooks`"
        ),
    ] = False
    audiences: Annotated[tuple[str, ...], Names("what the gateway's tokens are for")] = ()
    callers: Annotated[Callers, Section("who may ask", Callers)] = field(default=Callers())

    @property
    def enabled(self) -> bool:
        return self.token_review or self.subject_access_review or self.revocations or self.introspection

    @property
    def lists_revocations(self) -> bool:
        return self.revocations or self.introspection

    def check(self, fields: ConfigSection) -> None:
        callers = self.callers
        if self.enabled and not callers.names and callers.token_file is None and fields.is_right("callers"):
            hint = "set callers.tokenFile, or callers.names with listen.tls.clientCA"
            fields.problem("without authentication, anybody could look up any user", "callers", hint)


@dataclass(frozen=True, slots=True)
class Log:
    level: Annotated[str, Word("from which severity on", LEVELS)] = "info"
    format: Annotated[str, Word("for people or for programs", FORMATS)] = "text"


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """The complete configuration of a gateway, with the constructed providers."""

    listen: Listen
    external_url: str
    health: Address
    store: Provider[TokenStore]
    tokens: TokenSettings
    identity: tuple[Identity, ...]
    groups: tuple[Groups, ...]
    authorization: AuthorizationSettings
    upstreams: tuple[UpstreamConfig, ...] = ()
    api_plugins: ApiPluginSettings = field(default=ApiPluginSettings())
    webhooks: Webhooks = Webhooks()
    doors: tuple[DoorSettings, ...] = ()
    audit: Audit = field(default=Audit())
    audit_sinks: tuple[Provider[AuditProvider], ...] = ()
    limits: LimitSettings = field(default=LimitSettings())
    admission: tuple[Provider[AdmissionProvider], ...] = ()
    log: Log = Log()
    service_accounts: ServiceAccountSettings = field(default=ServiceAccountSettings())
    api_tokens: ApiTokenSettings = field(default=ApiTokenSettings())
    step_up: StepUpSettings = field(default=StepUpSettings())
    # None: tracing is off.
    tracing: Tracing | None = None
    # None: no JWTs are signed.
    issuer: JwtIssuerSettings | None = None
    pages: PagesSettings = field(default=PagesSettings())
    # The value of `pages` with the images loaded.
    look: Branding = field(default=Branding())
    # The CA of `external_url` in PEM, for the kubeconfigs of users.
    authorities_pem: str | None = None
    directory: Path = field(default_factory=Path)
    # Owner of the token store: the external URL if it is configured; empty if it is only derived from the address.
    owner: str = ""
    document: Document | None = field(default=None, repr=False, compare=False)

    @property
    def issuer_url(self) -> str:
        """The claim ``iss`` of signed JWTs; empty if none are signed."""
        if self.issuer is None:
            return ""
        return self.external_url if self.issuer.url is None else self.issuer.url.geturl()
