"""Choose the credential source of a user: values in the kubeconfig, files it names, its exec plugin or auth-provider.

The precedence is client-go's: a token, a username, or a certificate with its key takes precedence over the plugin,
which then never runs. A token or a username takes precedence over the auth-provider; a certificate is used together
with it. The whole configuration is validated, including parts that take no effect.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Protocol, cast

from ostiary.client.authenticator import Authenticator, OidcAuthenticator, shared_authenticator
from ostiary.client.exec.device_keys import open_device_key
from ostiary.client.exec.plugin import ExecPlugin, ExecSettings, check_api_version
from ostiary.client.metrics import ExecMetrics
from ostiary.client.oidc_auth_provider import OidcProvider, oidc_issuer
from ostiary.client.retry_on_401 import CredentialSource
from ostiary.client.static_credentials import Files, FileSource, FixedSource, OpenKey
from ostiary.core.clock import Clock
from ostiary.core.text import fits_token_header
from ostiary.core.tls import parse_certificate
from ostiary.errors import ConfigurationError
from ostiary.keys.address import KeyAddress
from ostiary.kubeconfig import AuthProvider, Cluster, ExecConfig, Selection, User
from ostiary.kubeconfig.server_address import server_for_plugins
from ostiary.model import ClientCertificate, Credential, DeviceKey, Secret
from ostiary.wire.client_authentication import V1, ClusterInfo, ExecCredentialSpec, encode_info

if TYPE_CHECKING:
    from ostiary.client.custom_credentials import AsyncOwnSource, OwnSource

log = logging.getLogger("ostiary.client")


class LatestSource(CredentialSource, Protocol):
    """A `CredentialSource` that also returns its last credential, for building TLS contexts."""

    @property
    def latest(self) -> Credential | None: ...


def source_for(
    selection: Selection, *, settings: ExecSettings, metrics: ExecMetrics, clock: Clock
) -> LatestSource | None:
    """Return the source for the selected user, or None if the user has no credential."""
    user = selection.user
    if user.exec is not None:
        check_api_version(user.exec, user=user.name)
    if user.auth_provider is not None:
        oidc_issuer(user, user.auth_provider)
    if user.exec is not None and user.uses_exec:
        return _authenticator(user.exec, selection, settings, metrics, clock)
    if user.auth_provider is not None and not user.has_header:
        return _oidc_authenticator(user, user.auth_provider, settings, clock)
    return _static_source(user, settings, clock) if has_credentials(user) else None


def own_source_for(
    user: User, source: OwnSource | AsyncOwnSource, *, settings: ExecSettings, clock: Clock
) -> LatestSource:
    """Return a source for the application's own *source*, used instead of the kubeconfig's credential of *user*."""
    # Lazy import: it needs asyncio, and few applications use it.
    from ostiary.client.custom_credentials import check_source, own_authenticator

    check_source(source)
    if has_credentials(user):
        log.warning("the credential of user %r is not used: the program brings a source of its own", user.name)
    return own_authenticator(source, user=user.name, seconds=settings.seconds, clock=clock)


def has_credentials(user: User) -> bool:
    """Whether requests of *user* are authenticated at all."""
    static = user.has_header or (user.has_certificate and user.has_key)
    return static or user.exec is not None or user.auth_provider is not None


def _oidc_authenticator(user: User, provider: AuthProvider, settings: ExecSettings, clock: Clock) -> OidcAuthenticator:
    def make() -> OidcAuthenticator:
        latest = _static_source(user, settings, clock).latest if user.has_certificate else None
        certificate = latest.certificate if latest is not None else None
        return OidcAuthenticator(OidcProvider(user, provider, clock=clock, certificate=certificate), clock=clock)

    return cast("OidcAuthenticator", shared_authenticator(("oidc", user, user.place.file, clock), make))


def _static_source(user: User, settings: ExecSettings, clock: Clock) -> LatestSource:
    if user.token and not fits_token_header(user.token.reveal()):
        # Checked here because an HTTP library would quote the token in its error message.
        raise ConfigurationError(
            f"the token of user {user.name!r} cannot be used",
            cause="it holds a line break, a space or another character that no header can carry",
            where=user.place,
            hint="write the token on one line, without white space around it",
        )
    key = user.device_key if user.has_certificate else None
    rotating = user.client_certificate is not None and (user.client_key is not None or key is not None)
    base = Credential(
        token=user.token or None,
        certificate=None if rotating else _fixed_certificate(user),
        # Like kubectl, accept an empty password.
        basic=(user.username, user.password or Secret("")) if user.username else None,
    )
    if not rotating and not user.token_file and key is None:
        return FixedSource(base)
    files = Files(
        token=user.token_file or None,
        certificate=user.client_certificate if rotating else None,
        key=user.client_key if rotating else None,
        chain=user.client_certificate_data if key is not None else None,
    )
    open_key = None if key is None else _key_opener(user, key, settings)
    return FileSource(files, base=base, where=user.place, clock=clock, open_key=open_key)


def _key_opener(user: User, key: KeyAddress | DeviceKey, settings: ExecSettings) -> OpenKey:
    terminal = settings.terminal

    def open_key() -> DeviceKey:
        may_ask = not terminal.stdin_unavailable and terminal.has_person()
        return open_device_key(key, policy=settings.policy, may_ask=may_ask, place=user.place)

    return open_key


def _fixed_certificate(user: User) -> ClientCertificate | None:
    """Return a certificate of which at least one half is inline in the kubeconfig."""
    if not (user.has_certificate and (user.client_key or user.client_key_data)):
        return None
    try:
        chain = user.client_certificate_data or _read(user.client_certificate)
        key = user.client_key_data.reveal() if user.client_key_data else _read(user.client_key).decode()
        return parse_certificate(chain.decode("utf-8", "replace"), key)
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(
            f"the client certificate of user {user.name!r} cannot be used", cause=cause, where=user.place
        ) from None


def _read(path: str | None) -> bytes:
    with open(path or "", "rb") as file:
        return file.read()


def _authenticator(
    config: ExecConfig,
    selection: Selection,
    settings: ExecSettings,
    metrics: ExecMetrics,
    clock: Clock,
) -> Authenticator:
    cluster = cluster_info(selection.cluster) if config.provide_cluster_info else None
    plugin = ExecPlugin(
        config, user=selection.user.name, cluster=cluster, settings=settings, metrics=metrics, clock=clock
    )
    # The extension is part of the key even if the plugin does not receive it, as in client-go.
    encoded_info = cluster and encode_info(ExecCredentialSpec(V1, interactive=False, cluster=cluster))
    key = (config, encoded_info, json.dumps(selection.cluster.exec_extension), settings, metrics, clock)
    return shared_authenticator(key, lambda: Authenticator(plugin, clock=clock, metrics=metrics))


def cluster_info(cluster: Cluster) -> ClusterInfo:
    """Return the cluster info for a plugin with ``provideClusterInfo``. Reads the authority file."""
    try:
        authority = cluster.certificate_authority_data or (
            _read(cluster.certificate_authority) if cluster.certificate_authority else b""
        )
    except OSError as error:
        raise ConfigurationError(
            "the cluster info for the exec plugin cannot be read",
            cause=f"failed to load CA bundle for execProvider: {cluster.certificate_authority}: {error.strerror}",
            where=cluster.place,
            hint="correct certificate-authority, or set provideClusterInfo: false",
        ) from None
    return ClusterInfo(
        server=server_for_plugins(cluster.server),
        tls_server_name=cluster.tls_server_name or "",
        insecure_skip_tls_verify=cluster.insecure_skip_tls_verify,
        certificate_authority_data=authority,
        proxy_url=cluster.proxy_url or "",
        disable_compression=cluster.disable_compression,
        config=cluster.exec_extension,
    )
