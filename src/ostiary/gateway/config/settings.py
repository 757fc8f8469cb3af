"""The gateway's configuration as values: what `gateway.config` reads, and everything else in the gateway is built from.

Each setting is declared here, in `config.listen`, in `config.audit`, or next to what it configures, and
`config.gateway_file` puts the sections together. Providers stand here ready built, and nothing is open yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from ostiary.core.abilities import has_trait
from ostiary.core.config import Fields
from ostiary.core.config.kinds import Choice, Duration, FilePath, Flag, Holds, Integer, Names, Text, Word
from ostiary.core.config.sections import Section
from ostiary.gateway.config.audit import Audit, AuditLog, AuditWebhook
from ostiary.gateway.config.kinds import PLAIN_PATH, Hosts, Prefix
from ostiary.gateway.config.limit_settings import LimitSettings
from ostiary.gateway.config.listen import ClientTls, Listen, ServerTls
from ostiary.gateway.config.values import Address
from ostiary.gateway.http1.headers import HeaderNames
from ostiary.gateway.http1.listen_limits import ListenLimits, ListenTimeouts
from ostiary.gateway.observe.logging import FORMATS, LEVELS
from ostiary.interfaces.admission import AdmissionProvider
from ostiary.interfaces.attributes import AttributesMapper, ReadsKubernetesPaths
from ostiary.interfaces.authorization import AuthorizationProvider
from ostiary.interfaces.group import GroupProvider
from ostiary.interfaces.identity import IdentityProvider
from ostiary.interfaces.token_store import TokenStore
from ostiary.model import Place

__all__ = [
    "Address",
    "Audit",
    "AuditLog",
    "AuditWebhook",
    "Authorization",
    "AuthorizationSettings",
    "Callers",
    "ClientTls",
    "DecisionSettings",
    "GatewayConfig",
    "Groups",
    "Identity",
    "IdentityMode",
    "Listen",
    "ListenLimits",
    "ListenTimeouts",
    "Log",
    "OnError",
    "Provider",
    "ServerTls",
    "TokenSettings",
    "Upstream",
    "UpstreamSettings",
    "UpstreamTimeouts",
    "Webhooks",
]

T_co = TypeVar("T_co", covariant=True)
# The providers of a configuration that does not name any.
DEFAULT_STORE_TYPE = "sqlite"
DEFAULT_ATTRIBUTES = "kubernetes"
LEAST_MAX_STALE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Provider(Generic[T_co]):
    """A provider under its name in the configuration."""

    name: str
    type: str
    instance: T_co
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class TokenSettings:
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
            "the same for a session about whose user nobody can be asked again without the person: `sso_cookie`,"
            " `client_certificate`, `trusted_header`, `oidc` where the issuer gave no refresh token, and providers of"
            " others that have neither `revalidate` nor `ask_again`. A longer `session` does not lengthen it;"
            " `renewal: session` of the provider does away with it"
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

    def check(self, fields: Fields) -> None:
        if self.max_stale < LEAST_MAX_STALE and fields.is_right("maxStale"):
            fields.problem("it must be at least one second", "maxStale", "the token store needs time to answer")
        if self.lifetime > self.session and fields.is_right("lifetime", "session"):
            fields.problem("a token cannot outlive its session", "lifetime", "make tokens.session longer")


@dataclass(frozen=True, slots=True)
class Identity(Provider[IdentityProvider]):
    """`prefix` goes before each of its usernames, so that those of two providers are never the same.

    `display_name` is what people read on buttons and pages in place of the name.
    """

    prefix: str = ""
    display_name: str = ""

    @property
    def label(self) -> str:
        return self.display_name or self.name


@dataclass(frozen=True, slots=True)
class Groups(Provider[GroupProvider]):
    """`prefix` goes before each of its groups. `identities` are those whose users it is asked about; none: all.

    `own` tells that it is the object of its one identity provider: it sees usernames as that one gave them.
    """

    prefix: str = ""
    identities: tuple[str, ...] = ()
    own: bool = False


class OnError(Enum):
    """What a provider's failure means to the chain."""

    DENY = "Deny"
    NO_OPINION = "NoOpinion"


@dataclass(frozen=True, slots=True)
class Authorization(Provider[AuthorizationProvider]):
    """`upstreams` are those that its policy is for; None for all. `shared` tells that "all" is what somebody wrote."""

    on_error: OnError = OnError.DENY
    upstreams: frozenset[str] | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """How the authorization chain is asked."""

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


class IdentityMode(Enum):
    """How an upstream learns who asks."""

    IMPERSONATION = "impersonation"
    REQUEST_HEADER = "requestHeader"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class UpstreamTimeouts:
    connect: Annotated[timedelta, Duration("for a connection")] = timedelta(seconds=5)
    response: Annotated[timedelta, Duration("for the head of an answer, except of watches and streams")] = timedelta(
        seconds=60
    )
    idle: Annotated[timedelta, Duration("for an unused connection")] = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """The settings of an upstream that need no working out. `hosts` empty: any."""

    hosts: Annotated[tuple[str, ...], Hosts("names without port, in any case", unset="any")] = ()
    prefix: Annotated[
        str,
        Prefix(
            "this path and everything below it; not below `/auth`, `/webhooks`, `/apis/ostiary.dev`, where the gateway"
            " answers itself"
        ),
    ] = "/"
    strip_prefix: Annotated[bool, Flag("the upstream gets the path without the prefix")] = False
    identity: Annotated[
        IdentityMode,
        Choice(
            "how it learns who asks. `impersonation`: `Impersonate-*` headers, with a `tokenFile` or a client"
            " certificate of the gateway; `requestHeader`: the headers below, over https with a client certificate and"
            " with `tls.ca` or `tls.pins`; `none`: not at all",
            IdentityMode,
        ),
    ] = IdentityMode.NONE
    headers: Annotated[HeaderNames, Section("header names for `identity: requestHeader`", HeaderNames)] = field(
        default=HeaderNames()
    )
    tls: Annotated[ClientTls, Section("how it is trusted, and what is presented to it", ClientTls)] = field(
        default=ClientTls()
    )
    token_file: Annotated[
        Path | None,
        FilePath(
            "the gateway's own token there; read again every minute, and at once when the upstream answers 401. A 401"
            " about the gateway's own credential (of any Kubernetes upstream, and of any that is given a token or a"
            " client certificate) reaches users as 503",
            holds=Holds.SECRET,
            unset="none",
        ),
    ] = None
    health: Annotated[
        str | None,
        Text(
            "a path that is asked whether the upstream is well",
            pattern=PLAIN_PATH,
            mistake="it is not a plain path",
            hint="write it as in /readyz",
            unset="none",
        ),
    ] = None
    connections: Annotated[int, Integer("connections at a time, per worker")] = 1024
    queue: Annotated[int, Integer("requests that wait for a connection, per worker", least=0)] = 4096
    timeouts: Annotated[UpstreamTimeouts, Section("limits of time", UpstreamTimeouts)] = UpstreamTimeouts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream(UpstreamSettings):
    """Where requests go. The longest `prefix` wins, and an upstream with the host over one without.

    `server` is scheme and authority without a path; `socket` is set in its place for a Unix socket.
    """

    name: str
    server: str
    attributes: Provider[AttributesMapper]
    socket: Path | None = None
    place: Place = field(default=Place(), compare=False)

    @property
    def is_kubernetes(self) -> bool:
        """Whether it speaks the Kubernetes API, with its verbs, resources and reviews."""
        return has_trait(self.attributes.instance, ReadsKubernetesPaths)


@dataclass(frozen=True, slots=True)
class Callers:
    """Who may ask the webhooks: client certificates with these names, or whoever has the token in the file."""

    names: Annotated[
        tuple[str, ...],
        Names("common names of client certificates that may ask; needs `listen.tls.clientCA`"),
    ] = ()
    token_file: Annotated[
        Path | None, FilePath("a file with the token that callers present", holds=Holds.SECRET, unset="none")
    ] = None


@dataclass(frozen=True, slots=True)
class Webhooks:
    token_review: Annotated[bool, Flag("whether TokenReview is answered, below `/webhooks`")] = False
    subject_access_review: Annotated[bool, Flag("whether SubjectAccessReview is answered, below `/webhooks`")] = False
    audiences: Annotated[tuple[str, ...], Names("what the gateway's tokens are for")] = ()
    callers: Annotated[Callers, Section("who may ask", Callers)] = Callers()

    @property
    def enabled(self) -> bool:
        return self.token_review or self.subject_access_review

    def check(self, fields: Fields) -> None:
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
    listen: Listen
    external_url: str
    health: Address
    store: Provider[TokenStore]
    tokens: TokenSettings
    identity: tuple[Identity, ...]
    groups: tuple[Groups, ...]
    authorization: AuthorizationSettings
    upstreams: tuple[Upstream, ...] = ()
    webhooks: Webhooks = Webhooks()
    audit: Audit = field(default=Audit())
    limits: LimitSettings = field(default=LimitSettings())
    admission: tuple[Provider[AdmissionProvider], ...] = ()
    log: Log = Log()
    # The authority of what people see at `external_url`, in PEM, for the kubeconfigs that they are given.
    authorities_pem: str | None = None
    directory: Path = field(default_factory=Path)
