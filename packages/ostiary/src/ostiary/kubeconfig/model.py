"""The content of a kubeconfig as immutable values.

Absent text is "". Absent paths, bytes and secrets are None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ostiary.core.yaml import Json
from ostiary.keys.address import KeyAddress
from ostiary.model import DeviceKey, Place, Secret

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class ValueFrom:
    """A variable of an exec plugin with an external source: `kind` is the type of source and `words` identifies it."""

    name: str
    kind: str
    words: tuple[str, ...]
    place: Place = field(default=Place(), compare=False)

    def __str__(self) -> str:
        # Of a command show only the name, because an argument may be a secret.
        shown = self.words[:1] if self.kind == "command" else self.words
        return f"{self.kind} {' '.join(map(repr, shown))}"


@dataclass(frozen=True, slots=True)
class SigningConfig:
    """A command that signs requests, as configured. `streamed`: it can sign a request without its body."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    streamed: bool = False
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class ExecConfig:
    """An exec plugin as configured. Two are equal if they run the same command, regardless of their positions."""

    api_version: str
    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""
    place: Place = field(default=Place(), compare=False)
    command_place: Place = field(default=Place(), compare=False)
    env_from: tuple[ValueFrom, ...] = ()


@dataclass(frozen=True, slots=True)
class AuthProvider:
    """kubectl's mechanism before exec plugins: a name, and settings that may contain tokens."""

    name: str
    config: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    place: Place = field(default=Place(), compare=False)

    def get(self, key: str) -> str:
        return dict(self.config).get(key, "")


@dataclass(frozen=True, slots=True)
class Impersonation:
    """The impersonated user: ``as``, ``as-uid``, ``as-groups`` and ``as-user-extra``."""

    user: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Cluster:
    name: str
    server: str = ""
    tls_server_name: str = ""
    insecure_skip_tls_verify: bool = False
    certificate_authority: str | None = None
    certificate_authority_data: bytes | None = field(default=None, repr=False)
    # A proxy's address may contain a password.
    proxy_url: str = field(default="", repr=False)
    disable_compression: bool = False
    exec_extension: Json = field(default=None, repr=False, hash=False)
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class User:
    """A user of a kubeconfig: the credentials that it configures."""

    name: str
    client_certificate: str | None = None
    client_certificate_data: bytes | None = field(default=None, repr=False)
    client_key: str | None = None
    client_key_data: Secret | None = None
    device_key: KeyAddress | DeviceKey | None = None
    """A signing key instead of `client_key`: its address, or an object that the caller supplies."""
    token: Secret | None = None
    token_file: str | None = None
    username: str = ""
    password: Secret | None = None
    impersonate: Impersonation = Impersonation()
    exec: ExecConfig | None = None
    auth_provider: AuthProvider | None = None
    signing: SigningConfig | None = None
    place: Place = field(default=Place(), compare=False)

    @property
    def has_certificate(self) -> bool:
        return bool(self.client_certificate or self.client_certificate_data)

    @property
    def has_key(self) -> bool:
        return bool(self.client_key or self.client_key_data or self.device_key)

    @property
    def uses_exec(self) -> bool:
        """Whether the exec plugin is used: any static credential takes precedence, as with kubectl."""
        return self.exec is not None and not (self.has_header or (self.has_certificate and self.has_key))

    @property
    def has_header(self) -> bool:
        """Whether a token or a username is sent. As with kubectl, the password may be empty."""
        return bool(self.token or self.token_file or self.username)


@dataclass(frozen=True, slots=True)
class Context:
    name: str
    cluster: str = ""
    user: str = ""
    namespace: str = ""
    place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One file, or several merged. `unknown_fields` take no effect and may be typing errors."""

    current_context: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict)
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    users: Mapping[str, User] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    missing_files: tuple[str, ...] = ()
    unknown_fields: tuple[Place, ...] = ()
    current_context_place: Place = field(default=Place(), compare=False)


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values that the caller sets instead of the kubeconfig's. None keeps a value."""

    server: str | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    certificate_authority: str | None = None
    certificate_authority_data: bytes | None = field(default=None, repr=False)
    proxy_url: str | None = field(default=None, repr=False)
    disable_compression: bool | None = None
    client_certificate: str | None = None
    client_certificate_data: bytes | None = field(default=None, repr=False)
    client_key: str | None = None
    client_key_data: Secret | None = None
    device_key: KeyAddress | DeviceKey | None = None
    token: Secret | None = None
    token_file: str | None = None
    username: str | None = None
    password: Secret | None = None
    impersonate: Impersonation | None = None
    namespace: str | None = None


NO_OVERRIDES = Overrides()


@dataclass(frozen=True, slots=True)
class Selection:
    """A validated choice of cluster and user."""

    context_name: str
    cluster: Cluster
    user: User
    namespace: str = DEFAULT_NAMESPACE
