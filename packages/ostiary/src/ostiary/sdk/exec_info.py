"""What a plugin is told by the client that started it, and the way to the cluster that it is told of.

Read once per run by the decorator and handed to the plugin's function. Plugins that do without the decorator call
`load_from_env`; its public name is `ostiary.exec_info`.
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
    """How to reach the cluster with any HTTP client; anonymously, since the credential is what the plugin is to fetch.

    `ssl_context` trusts the cluster's authority (the system's, if it names none) and expects its TLS server name,
    whatever the client is told to expect. `proxy` is the kubeconfig's; None leaves it to the environment. `headers`
    belong to every request.
    """

    base_url: str
    ssl_context: ssl.SSLContext
    # A proxy's address may hold a password.
    proxy: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)


class ExecInfo(wire.ExecCredentialSpec):
    """`api_version`, `interactive`, `cluster` and `config`; `http` and `http_async` reach the cluster.

    `interactive` tells whether a person may be asked: on stderr and stdin, never on stdout. `cluster` is
    None unless the kubeconfig says ``provideClusterInfo: true``. `rejection` is what the server said when
    it rejected the last credential; only v1alpha1 tells it.
    """

    __slots__ = ()

    @property
    def config(self) -> Any:
        """The cluster's extension ``client.authentication.k8s.io/exec``, as it stands in the kubeconfig."""
        return None if self.cluster is None else self.cluster.config

    def http(self, **options: Any) -> httpx.Client:
        """An anonymous `httpx.Client` whose base URL is the cluster: its authority, its proxy, its name."""
        _require_httpx()
        import httpx

        return httpx.Client(**{**self._defaults(), **options})

    def http_async(self, **options: Any) -> httpx.AsyncClient:
        """`http` for an event loop."""
        _require_httpx()
        import httpx

        return httpx.AsyncClient(**{**self._defaults(), **options})

    def endpoint(self) -> ClusterEndpoint:
        """The way to the cluster for any HTTP client; raises `ConfigurationError` if the plugin is not told of it."""
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
            # Without one, httpx asks the environment, as kubectl does.
            "proxy": endpoint.proxy,
            "headers": endpoint.headers,
        }


def load_from_env(environ: Mapping[str, str] | None = None) -> ExecInfo:
    """What the client told this run; raises `ConfigurationError` if that is nothing, or not understood."""
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
    """The same from *data*, such as what a client that gives the input on stdin wrote there.

    Any version is read. Without cluster info `cluster` is None, and `endpoint` says so when it is asked.
    """
    info = wire.decode_info(data if isinstance(data, str) else data.decode("utf-8", "replace"))
    return ExecInfo(**{entry.name: getattr(info, entry.name) for entry in fields(info)})


def _context(cluster: ClusterInfo) -> SealedContext:
    # Imported here, as httpx is: TLS takes longer to load than all the rest of a plugin that does without.
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
            # The address is not quoted: a password may stand in it.
            cause=f"proxy-url in {INFO_VARIABLE} is not the address of a proxy",
            hint=f"use one of {', '.join(scheme + '://' for scheme in PROXY_SCHEMES)} and a host",
            code="proxy-invalid",
        )
    return cluster.proxy_url


def _require_httpx() -> None:
    # A plugin that does not talk to the cluster need not have it.
    if find_spec("httpx") is None:
        raise missing("httpx", "httpx", purpose="this plugin")
