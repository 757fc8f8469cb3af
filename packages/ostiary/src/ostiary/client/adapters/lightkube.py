"""The adapter for lightkube: its client with our transport for httpx2.

lightkube receives a user without credentials, so its own exec plugin code, which rejects
``client.authentication.k8s.io/v1``, is not used. The transport handles credentials, TLS and the proxy, also for
websockets (``client.exec``).
"""

from __future__ import annotations

import httpx2
import lightkube
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import Cluster, User

from ostiary.client.access import ClusterAccess
from ostiary.client.adapters.httpx import async_transport, transport
from ostiary.errors import ConfigurationError

# Each of these options would bypass the connection's own settings.
DECIDED_BY_THE_CONNECTION = ("config", "proxy", "transport")


def client(connection: ClusterAccess, **options: object) -> lightkube.Client:
    """Return a `lightkube.Client` that sends the credential to the cluster.

    *options* are those of `lightkube.Client`, except for the configuration, the transport and the proxy, which the
    connection decides. The default namespace is that of the kubeconfig's context.
    """
    _check(options)
    signed = transport(connection, library=httpx2, http2=options.get("http2", False))
    # To the type checker, our transport is not a subclass of httpx2's, because it also serves httpx.
    return lightkube.Client(_config(connection), transport=signed, **options)  # type: ignore[arg-type]


def async_client(connection: ClusterAccess, **options: object) -> lightkube.AsyncClient:
    """Like `client`, for asyncio."""
    _check(options)
    signed = async_transport(connection, library=httpx2, http2=options.get("http2", False))
    return lightkube.AsyncClient(_config(connection), transport=signed, **options)  # type: ignore[arg-type]


def _check(options: dict[str, object]) -> None:
    refused = [name for name in DECIDED_BY_THE_CONNECTION if name in options]
    if refused:
        raise ConfigurationError(
            "the options of the lightkube client cannot be used",
            cause=f"{', '.join(refused)}: decided by the kubeconfig and the environment",
            hint="choose another context, or set proxy-url in the kubeconfig",
        )


def _config(connection: ClusterAccess) -> SingleConfig:
    name = connection.selection.context_name or "default"
    config = KubeConfig.from_one(
        cluster=Cluster(server=connection.server), user=User(), context_name=name, namespace=connection.namespace
    ).get()
    assert config is not None, "lightkube finds the one context that it was just given"
    return config
