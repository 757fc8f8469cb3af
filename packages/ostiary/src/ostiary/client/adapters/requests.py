"""The adapter for requests: a `requests.Session` whose requests to the cluster go through our urllib3 pools.

Requests are signed below requests, in `ostiary.client.adapters.urllib3`. No object of requests ever contains the
credential, so a redirect cannot forward it.
"""

from __future__ import annotations

from copy import copy
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter, HTTPAdapter

from ostiary.client.access import ClusterAccess
from ostiary.client.adapters.urllib3 import absolute, pool_manager


def session(connection: ClusterAccess, **options: Any) -> ClusterSession:
    """Return a `requests.Session` that sends the credential to the cluster: ``session.get("/api/v1/pods")``.

    *options* are those of `requests.adapters.HTTPAdapter`, for the cluster only (`max_retries`, `pool_maxsize`, ...).
    `verify`, `cert` and `proxies` have no effect on the cluster: TLS and proxy come from the kubeconfig.
    """
    return ClusterSession(connection, **options)


class ClusterSession(requests.Session):
    """A session for one cluster. Paths are relative to the cluster's address."""

    def __init__(self, connection: ClusterAccess, **options: Any) -> None:
        super().__init__()
        self._connection = connection
        self._adapter = ClusterAdapter(connection, **options)
        address = urlsplit(connection.server)
        self.mount(f"{address.scheme}://{address.netloc}/", self._adapter)
        if not connection.compression:
            self.headers["Accept-Encoding"] = "identity"

    def __repr__(self) -> str:
        return f"<Session of {self._connection!r}>"

    def get_adapter(self, url: str) -> BaseAdapter:
        # Mounts match by text prefix, so https://host and https://host:443 would differ.
        return self._adapter if self._connection.is_server_url(url) else super().get_adapter(url)

    def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
        request = copy(request)
        request.url = absolute(self._connection, str(request.url))
        if request.auth is None and self.auth is None and self._connection.is_server_url(request.url):
            # Otherwise requests would read ~/.netrc and send the credentials it finds there.
            request.auth = _leave_unsigned
        return super().prepare_request(request)

    def rebuild_auth(self, prepared_request: requests.PreparedRequest, response: requests.Response) -> None:
        url = prepared_request.url or ""
        if not self._connection.is_server_url(url):
            super().rebuild_auth(prepared_request, response)  # type: ignore[no-untyped-call]
        elif self.should_strip_auth(response.request.url or "", url):  # type: ignore[no-untyped-call]
            # Like the parent class, but without reading ~/.netrc.
            prepared_request.headers.pop("Authorization", None)


class ClusterAdapter(HTTPAdapter):
    """Send to the cluster according to the kubeconfig, regardless of the session's options and environment."""

    def __init__(self, connection: ClusterAccess, **options: Any) -> None:
        self._connection = connection
        super().__init__(**options)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **options: object) -> None:
        self.poolmanager = pool_manager(
            self._connection, num_pools=connections, maxsize=maxsize, block=block, **options
        )

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: float | tuple[float, float] | tuple[float, None] | None = None,
        verify: bool | str = True,
        cert: object = None,
        proxies: object = None,
    ) -> requests.Response:
        return super().send(request, stream, timeout, verify=self._connection.verifies)

    def cert_verify(self, conn: object, url: str, verify: object, cert: object) -> None:
        """Do nothing: the pool's TLS context is complete, and requests would add public authorities."""

    def request_url(self, request: requests.PreparedRequest, proxies: object) -> str:
        # The proxy of a server without TLS needs the absolute URL, and only the connection has the proxy.
        proxy = self._connection.proxy
        return super().request_url(request, {} if proxy is None else {"http": proxy})


def _leave_unsigned(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request
