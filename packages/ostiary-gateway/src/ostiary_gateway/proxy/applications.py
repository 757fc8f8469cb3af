"""Web applications: the upstreams with ``auth: browser``, and their origins.

An origin consists of configured values only: the scheme of `externalURL`, its port or that of the forwarding proxy, and
a host of the upstream or of `externalURL`. A ``Host`` that is not configured has no origin, because any site can point
a DNS name at the gateway.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Self
from urllib.parse import urlsplit

from ostiary_gateway.proxy.routes import Routes
from ostiary_gateway.proxy.upstreams import Upstream

_DEFAULT_PORTS = {"http": 80, "https": 443}


class Applications:
    """The web applications at one port; by default at the port of *external_url*."""

    def __init__(self, routes: Routes, external_url: str, *, port: int | None = None) -> None:
        url = urlsplit(external_url)
        self.external_url = external_url.rstrip("/")
        self._scheme = url.scheme
        self._port = browser_port(external_url)
        self._gateway_host = (url.hostname or "").lower()
        self.secure = url.scheme == "https"
        port_text = browser_port(external_url, port)
        # By the Host header that browsers send. Each entry has the routes that lead there.
        self._by_host: dict[str, tuple[tuple[Routes, Upstream], ...]] = {}
        for upstream in routes.upstreams:
            if upstream.settings.is_application:
                for host in upstream.settings.hosts or (self._gateway_host,):
                    self._add(bracketed(host) + port_text, ((routes, upstream),))

    def _add(self, host: str, routed: Iterable[tuple[Routes, Upstream]]) -> None:
        self._by_host[host] = (*self._by_host.get(host, ()), *routed)

    def with_others(self, others: Iterable[Applications]) -> Self:
        """Return these and *others*, for the sign-in routes, which serve the users of all of them."""
        every = copy(self)
        every._by_host = dict(self._by_host)
        for other in others:
            for host, routed in other._by_host.items():
                every._add(host, routed)
        return every

    def __bool__(self) -> bool:
        return bool(self._by_host)

    def at(self, host: str) -> tuple[Upstream, ...]:
        """Return the web applications at this ``Host``."""
        return tuple(dict.fromkeys(upstream for _, upstream in self._by_host.get(host.lower(), ())))

    def serving(self, host: str, path: str) -> set[str]:
        """Return the names of the applications that serve *path* at this ``Host``: one per proxy."""
        routed = self._by_host.get(host.lower(), ())
        return {upstream.name for routes, upstream in routed if routes.find(host, path) is upstream}

    def origin(self, host: str) -> str:
        """Return the origin of the applications at this ``Host``, as a browser sends it; empty if there are none."""
        return f"{self._scheme}://{host.lower()}" if host.lower() in self._by_host else ""

    def is_gateways_own(self, host: str) -> bool:
        """Whether this ``Host`` also serves the sign-in pages."""
        return host.lower() == bracketed(self._gateway_host) + self._port


def browser_port(external_url: str, port: int | None = None) -> str:
    """Return the port suffix of web applications' hosts, such as ``:8443``; often empty."""
    url = urlsplit(external_url)
    if port is None:
        return f":{url.port}" if url.port is not None else ""
    # Browsers omit the default port of a scheme.
    return "" if port == _DEFAULT_PORTS.get(url.scheme) else f":{port}"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
