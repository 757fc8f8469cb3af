"""The input of an exec plugin, and its access to the cluster named there.

The decorator passes it to the plugin's function. Plugins without the decorator call `load_from_env`, public as
`ostiary.exec_info`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ostiary.core.extras import missing
from ostiary.errors import ConfigurationError, TransportError
from ostiary.wire import client_authentication as wire
from ostiary.wire.client_authentication import INFO_VARIABLE, ClusterInfo

if TYPE_CHECKING:
    import ssl

    import httpx

    from ostiary.core.tls import SealedContext

PROXY_SCHEMES = ("http", "https", "socks5")


@dataclass(frozen=True, slots=True)
class ClusterEndpoint:
    """Settings to reach the cluster with any HTTP client, without a credential, which the plugin is about to fetch.

    `ssl_context` trusts the cluster's authority (the system's, if it names none) and verifies its TLS server name,
    regardless of the client's setting. `proxy` is the kubeconfig's; None means that the environment applies. `headers`
    must be sent with every request.
    """

    base_url: str
    ssl_context: ssl.SSLContext
    # A proxy's address may contain a password.
    proxy: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)


class ExecInfo(wire.ExecCredentialSpec):
    """`api_version`, `interactive`, `cluster` and `config`. `http` and `http_async` return clients for the cluster.

    `interactive` says whether the plugin may prompt the user, on stderr and stdin but never on stdout. `cluster` is
    None unless the kubeconfig sets ``provideClusterInfo: true``. `rejection` is the server's response to the last
    credential if it rejected that; only v1alpha1 has it.
    """

    __slots__ = ()

    @property
    def config(self) -> Any:
        """The cluster's extension ``client.authentication.k8s.io/exec``, as in the kubeconfig."""
        return None if self.cluster is None else self.cluster.config

    def http(self, **options: Any) -> httpx.Client:
        """Return an unauthenticated `httpx.Client` with the cluster's URL, authority, proxy and TLS server name."""
        _require_httpx()
        import httpx

        return httpx.Client(**{**self._defaults(), **options})

    def http_async(self, **options: Any) -> httpx.AsyncClient:
        """Like `http`, for an event loop."""
        _require_httpx()
        import httpx

        return httpx.AsyncClient(**{**self._defaults(), **options})

    def endpoint(self) -> ClusterEndpoint:
        """Return the settings to reach the cluster. Raises `ConfigurationError` if there is no cluster info."""
        cluster = self.cluster
        if cluster is None or not cluster.server:
            raise ConfigurationError(
                "this plugin needs cluster info, and got none",
                cause=f"spec.cluster is not in {INFO_VARIABLE}",
                hint="set provideClusterInfo: true beside the plugin's command in the kubeconfig",
                code="exec-info-without-cluster",
            )
        return ClusterEndpoint(
            base_url=cluster.server,
            ssl_context=_context(cluster),
            proxy=_proxy(cluster),
            headers={"Accept-Encoding": "identity"} if cluster.disable_compression else {},
        )

    def _defaults(self) -> dict[str, Any]:
        endpoint = self.endpoint()
        return {
            "base_url": endpoint.base_url,
            "verify": endpoint.ssl_context,
            # With None, httpx uses the environment's proxy, like kubectl.
            "proxy": endpoint.proxy,
            "headers": endpoint.headers,
        }


def load_from_env(environ: Mapping[str, str] | None = None) -> ExecInfo:
    """Read the input of this run from the environment. Raises `ConfigurationError` if it is missing or invalid."""
    text = (os.environ if environ is None else environ).get(INFO_VARIABLE)
    if not text:
        raise ConfigurationError(
            "this program is an exec credential plugin, and no Kubernetes client started it",
            cause=f"{INFO_VARIABLE} is not set",
            hint="name it in a kubeconfig (users[].user.exec.command), or try it: ostiary exec check COMMAND",
            code="exec-info-missing",
        )
    return load(text)


def load(data: str | bytes) -> ExecInfo:
    """Like `load_from_env`, but from *data*, such as the stdin of a client that writes the input there.

    Reads any version. Without cluster info `cluster` is None, and `endpoint` raises.
    """
    info = wire.decode_info(data if isinstance(data, str) else data.decode("utf-8", "replace"))
    return ExecInfo(**{entry.name: getattr(info, entry.name) for entry in fields(info)})


def _context(cluster: ClusterInfo) -> SealedContext:
    # Lazy import, like httpx: TLS takes longer to import than the rest of a plugin that does not need it.
    from ostiary.core.tls import TlsSettings, build_context

    authority = cluster.certificate_authority_data.decode("utf-8", "replace")
    settings = TlsSettings(authority or None, cluster.insecure_skip_tls_verify, cluster.tls_server_name or None)
    return build_context(settings)


def _proxy(cluster: ClusterInfo) -> str | None:
    if not cluster.proxy_url:
        return None
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(cluster.proxy_url)
        usable = parts.scheme in PROXY_SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise TransportError(
            "the cluster's proxy cannot be used",
            # Not quoted, because the address may contain a password.
            cause=f"proxy-url in {INFO_VARIABLE} is not the address of a proxy",
            hint=f"use one of {', '.join(scheme + '://' for scheme in PROXY_SCHEMES)} and a host",
            code="proxy-invalid",
        )
    return cluster.proxy_url


def _require_httpx() -> None:
    # Plugins that do not call the cluster do not need it.
    if find_spec("httpx") is None:
        raise missing("httpx", "httpx", purpose="this plugin")
