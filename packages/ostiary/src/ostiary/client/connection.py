"""Connect to a cluster as a user of a kubeconfig, with an HTTP library of the caller's choice.

A `Connection` imports the adapter for a library when its method is called.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ostiary import kubeconfig as kubeconfigs
from ostiary.client.access import ClusterAccess, Untyped
from ostiary.client.exec.environment import ENVIRONMENT, PluginInput, check_plugin_input
from ostiary.client.exec.kuberc import from_kuberc
from ostiary.client.exec.plugin import SECONDS_WITHOUT_A_PERSON, ExecSettings, Terminal
from ostiary.client.exec.policy import PluginPolicy
from ostiary.client.metrics import ExecMetrics
from ostiary.client.retry_on_401 import REJECTING
from ostiary.client.signing import RequestSigner
from ostiary.core.clock import Clock
from ostiary.core.extras import needing
from ostiary.keys.address import read_address
from ostiary.kubeconfig import Kubeconfig, Overrides
from ostiary.model import DeviceKey

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from httpx import AsyncClient, Client
    from lightkube import AsyncClient as LightkubeAsyncClient
    from lightkube import Client as LightkubeClient
    from requests import Session
    from urllib3 import PoolManager

    from ostiary.client.adapters.kr8s import AsyncApi, SyncApi
    from ostiary.client.adapters.kubernetes import ApiClient
    from ostiary.client.custom_credentials import AsyncOwnSource, OwnSource


def connect(
    kubeconfig: str | os.PathLike[str] | Kubeconfig | None = None,
    *,
    context: str | None = None,
    cluster: str | None = None,
    user: str | None = None,
    overrides: Overrides | None = None,
    key: str | DeviceKey | None = None,
    policy: PluginPolicy | None = None,
    source: OwnSource | AsyncOwnSource | None = None,
    signer: RequestSigner | None = None,
    retry_on_401: bool = True,
    retry_on: Sequence[int] = REJECTING,
    plugin_seconds: float = SECONDS_WITHOUT_A_PERSON,
    stdin_unavailable: bool | str = False,
    as_proposed: bool = False,
    clean_environment: bool = False,
    plugin_input: PluginInput = ENVIRONMENT,
    value_from: bool = False,
    metrics: ExecMetrics | None = None,
    clock: Clock | None = None,
) -> Connection:
    """Choose a cluster and a user the way kubectl does.

    Without arguments: ``$KUBECONFIG``, else ``~/.kube/config``, else the pod's service account.

    *key* signs instead of the user's ``client-key``: the address of a key, such as ``pkcs11:...``, or a `DeviceKey`
    object of the application. The user's certificate must belong to it.

    *policy* decides which plugin commands may run; by default the one in the user's kuberc.

    *retry_on_401* False gives client-go's behavior: refresh the credential, and return the 401 to the caller.

    *plugin_seconds* limits a plugin that cannot prompt the user. *stdin_unavailable* (True, or the reason) keeps
    plugins away from a stdin that the application reads itself. *as_proposed* sends v1alpha1 plugins the input format
    of the 2018 proposal.

    *source* fetches the credential instead of the kubeconfig's user. *signer* receives each request to the cluster and
    adds headers. *retry_on* lists the statuses after which the credential is replaced: 401 and optionally 403.

    *clean_environment* runs plugins without the environment of this process. *plugin_input* "stdin" or "both" writes
    their input to stdin. *value_from* allows the kubeconfig to name files, keyring entries and commands for their
    variables.
    """
    overrides = overrides or Overrides()
    if key is not None:
        overrides = replace(overrides, device_key=read_address(key) if isinstance(key, str) else key)
    selection = kubeconfigs.choose(kubeconfig, context=context, cluster=cluster, user=user, overrides=overrides)
    message = stdin_unavailable if isinstance(stdin_unavailable, str) else ""
    settings = ExecSettings(
        policy=policy if policy is not None else from_kuberc(),
        terminal=Terminal(stdin_unavailable=bool(stdin_unavailable), message=message),
        seconds=plugin_seconds,
        as_proposed=as_proposed,
        clean_environment=clean_environment,
        plugin_input=check_plugin_input(plugin_input),
        value_from=value_from,
    )
    return Connection(
        selection,
        settings=settings,
        retry_on_401=retry_on_401,
        retry_on=retry_on,
        source=source,
        signer=signer,
        metrics=metrics,
        clock=clock,
    )


class Connection(ClusterAccess):
    """One cluster and one user. Can be shared by threads, event loops and HTTP clients."""

    def httpx(self, **options: Any) -> Client:
        """Return an `httpx.Client` with the cluster's base URL and credential."""
        with needing("httpx", purpose="this client"):
            from ostiary.client.adapters.httpx import client

            return client(self, **options)

    def httpx_async(self, **options: Any) -> AsyncClient:
        with needing("httpx", purpose="this client"):
            from ostiary.client.adapters.httpx import async_client

            return async_client(self, **options)

    def requests(self, **options: object) -> Session:
        """Return a `requests.Session`. Paths are relative to the cluster's address."""
        with needing("requests", purpose="this client"):
            from ostiary.client.adapters.requests import session

            return session(self, **options)

    def urllib3(self, **options: object) -> PoolManager:
        with needing("urllib3", purpose="this client"):
            from ostiary.client.adapters.urllib3 import pool_manager

            return pool_manager(self, **options)

    def aiohttp(self, **options: object) -> ClientSession:
        with needing("aiohttp", purpose="this client"):
            from ostiary.client.adapters.aiohttp import session

            return session(self, **options)

    def kubernetes(self, **options: object) -> ApiClient:
        """Return an `ApiClient` of the official client, for ``kubernetes.client.CoreV1Api(...)``."""
        with needing("kubernetes", purpose="this client"):
            from ostiary.client.adapters.kubernetes import api_client

            return api_client(self, **options)

    def kubernetes_aio(self) -> Untyped:
        """Return an `ApiClient` for ``kubernetes.aio``. Call it within a running event loop."""
        with needing("kubernetes", purpose="this client"):
            from ostiary.client.adapters.kubernetes_asyncio import api_client

            return api_client(self, library="kubernetes.aio")

    def kubernetes_asyncio(self) -> Untyped:
        """Return an `ApiClient` for ``kubernetes_asyncio``. Call it within a running event loop."""
        with needing("kubernetes-asyncio", purpose="this client"):
            from ostiary.client.adapters.kubernetes_asyncio import api_client

            return api_client(self, library="kubernetes_asyncio")

    def lightkube(self, **options: object) -> LightkubeClient:
        with needing("lightkube", purpose="this client"):
            from ostiary.client.adapters.lightkube import client

            return client(self, **options)

    def lightkube_async(self, **options: object) -> LightkubeAsyncClient:
        with needing("lightkube", purpose="this client"):
            from ostiary.client.adapters.lightkube import async_client

            return async_client(self, **options)

    def kr8s(self, **options: object) -> SyncApi:
        """Return a `kr8s.Api`. Close it, or use it in a ``with`` statement."""
        with needing("kr8s", purpose="this client"):
            from ostiary.client.adapters.kr8s import sync_api

            return sync_api(self, **options)

    async def kr8s_async(self, **options: object) -> AsyncApi:
        with needing("kr8s", purpose="this client"):
            from ostiary.client.adapters.kr8s import api

            return await api(self, **options)
