"""The gateway's configuration as values: what `gateway.config` reads, and everything else in the gateway is built from.

Providers stand here ready built, and nothing is open yet. Durations are `timedelta`, paths are absolute or meant
from the directory of the file, and what a field means is told in ``docs/reference/gateway-configuration.md``.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from ostiary.core.abilities import has_trait
from ostiary.core.net import is_loopback
from ostiary.gateway.admit.limits import LimitSettings
from ostiary.gateway.http1.headers import HeaderNames
from ostiary.interfaces.admission import AdmissionProvider
from ostiary.interfaces.attributes import AttributesMapper, ReadsKubernetesPaths
from ostiary.interfaces.authorization import AuthorizationProvider
from ostiary.interfaces.group import GroupProvider
from ostiary.interfaces.identity import IdentityProvider
from ostiary.interfaces.token_store import TokenStore
from ostiary.model import Place

T_co = TypeVar("T_co", covariant=True)
# The providers of a configuration that does not name any.
DEFAULT_STORE_TYPE = "sqlite"
DEFAULT_ATTRIBUTES = "kubernetes"
Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: an IP address or ``localhost``, and a port (0: any free one)."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class ServerTls:
    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class ListenLimits:
    """What a client may send, and how long it may take."""

    header_bytes: int = 64 * 1024
    headers: int = 100
    body_bytes: int | None = None
    connections: int = 10_000
    body_rate: int = 500
    header_timeout: timedelta = timedelta(seconds=10)
    body_timeout: timedelta = timedelta(seconds=60)
    upload_timeout: timedelta = timedelta(hours=1)
    idle_timeout: timedelta = timedelta(seconds=120)


@dataclass(frozen=True, slots=True)
class Listen:
    address: Address = Address("127.0.0.1", 8443)
    tls: ServerTls | None = None
    workers: int = 1
    trusted_proxies: tuple[Network, ...] = ()
    drop_headers: tuple[str, ...] = ()
    limits: ListenLimits = ListenLimits()
    drain: timedelta = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Provider(Generic[T_co]):
    """A provider under its name in the configuration."""

    name: str
    type: str
    instance: T_co
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class TokenSettings:
    lifetime: timedelta = timedelta(minutes=15)
    session: timedelta = timedelta(hours=24)
    unchecked_session: timedelta = timedelta(hours=1)
    sessions_per_user: int = 100
    sweep: timedelta = timedelta(minutes=1)
    max_stale: timedelta = timedelta(seconds=5)
    revocation_file: Path | None = None


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


# In place of a list of upstreams: a policy that is meant for all of them.
ALL_UPSTREAMS = "all"


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


@dataclass(frozen=True, slots=True)
class AuthorizationSettings:
    chain: tuple[Authorization, ...]
    cache_ttl: timedelta = timedelta(seconds=10)
    cache_entries: int = 100_000
    timeout: timedelta = timedelta(seconds=10)
    unconfirmed: timedelta = timedelta(seconds=60)
    hide_denied: bool = False


class IdentityMode(Enum):
    """How an upstream learns who asks."""

    IMPERSONATION = "impersonation"
    REQUEST_HEADER = "requestHeader"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How to trust a server, and what to present to it. `ca` None: the system's authorities. `pins`: SHA-256 in hex."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    pins: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where requests go. `hosts` empty: any. The longest `prefix` wins, and an upstream with the host over one without.

    `server` is scheme and authority without a path; `socket` is set in its place for a Unix socket.
    """

    name: str
    server: str
    attributes: Provider[AttributesMapper]
    socket: Path | None = None
    hosts: tuple[str, ...] = ()
    prefix: str = "/"
    strip_prefix: bool = False
    identity: IdentityMode = IdentityMode.NONE
    headers: HeaderNames = field(default=HeaderNames())
    tls: ClientTls = ClientTls()
    token_file: Path | None = None
    health: str | None = None
    connections: int = 1024
    queue: int = 4096
    connect_timeout: timedelta = timedelta(seconds=5)
    response_timeout: timedelta = timedelta(seconds=60)
    idle_timeout: timedelta = timedelta(seconds=60)
    place: Place = field(default=Place(), compare=False)

    @property
    def is_kubernetes(self) -> bool:
        """Whether it speaks the Kubernetes API, with its verbs, resources and reviews."""
        return has_trait(self.attributes.instance, ReadsKubernetesPaths)


@dataclass(frozen=True, slots=True)
class Callers:
    """Who may ask the webhooks: client certificates with these names, or whoever has the token in the file."""

    names: tuple[str, ...] = ()
    token_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Webhooks:
    token_review: bool = False
    subject_access_review: bool = False
    audiences: tuple[str, ...] = ()
    callers: Callers = Callers()

    @property
    def enabled(self) -> bool:
        return self.token_review or self.subject_access_review


@dataclass(frozen=True, slots=True)
class AuditLog:
    """A file to append to. With `fsync` every write waits for the disk."""

    path: Path
    fsync: bool = False


@dataclass(frozen=True, slots=True)
class AuditWebhook:
    """Where batches of events are posted. The defaults are kube-apiserver's."""

    url: str
    tls: ClientTls = ClientTls()
    token_file: Path | None = None
    buffer: int = 10_000
    batch: int = 400
    wait: timedelta = timedelta(seconds=30)
    requests_per_second: float = 10.0
    burst: int = 15


@dataclass(frozen=True, slots=True)
class Audit:
    """`policy` None: every request at level Metadata. `blocking`: no request passes whose record cannot be kept."""

    policy: Path | None = None
    stdout: bool = False
    log: AuditLog | None = None
    webhook: AuditWebhook | None = None
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class Log:
    level: str = "info"
    format: str = "text"


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
    audit: Audit = Audit()
    limits: LimitSettings = field(default=LimitSettings())
    admission: tuple[Provider[AdmissionProvider], ...] = ()
    log: Log = Log()
    # The authority of what people see at `external_url`, in PEM, for the kubeconfigs that they are given.
    authorities_pem: str | None = None
    directory: Path = field(default_factory=Path)
