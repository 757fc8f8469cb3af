"""What a plugin is told by the client that started it, and an HTTP client for the cluster it is told of.

Read once per run by the decorator and handed to the plugin's function.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ostiary.core.extras import missing
from ostiary.errors import ConfigurationError, TransportError
from ostiary.wire import client_authentication as wire
from ostiary.wire.client_authentication import INFO_VARIABLE, ClusterInfo

if TYPE_CHECKING:
    import httpx

    from ostiary.core.tls import SealedContext

PROXY_SCHEMES = ("http", "https", "socks5")


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

    def _defaults(self) -> dict[str, Any]:
        cluster = self.cluster
        if cluster is None or not cluster.server:
            raise ConfigurationError(
                "this plugin needs cluster info, and got none",
                cause=f"spec.cluster is not in {INFO_VARIABLE}",
                hint="set provideClusterInfo: true beside the plugin's command in the kubeconfig",
                code="exec-info-without-cluster",
            )
        return {
            "base_url": cluster.server,
            "verify": _context(cluster),
            # Without one, httpx asks the environment, as kubectl does.
            "proxy": _proxy(cluster),
            "headers": {"Accept-Encoding": "identity"} if cluster.disable_compression else None,
        }


def read_info(environ: Mapping[str, str]) -> ExecInfo:
    """What the client told this run; raises `ConfigurationError` if that is nothing, or not understood."""
    text = environ.get(INFO_VARIABLE)
    if not text:
        raise ConfigurationError(
            "this program is an exec credential plugin, and no Kubernetes client started it",
            cause=f"{INFO_VARIABLE} is not set",
            hint="name it in a kubeconfig (users[].user.exec.command), or try it: ostiary exec check COMMAND",
            code="exec-info-missing",
        )
    info = wire.decode_info(text)
    return ExecInfo(**{field.name: getattr(info, field.name) for field in fields(info)})


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
