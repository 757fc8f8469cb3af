"""Web applications: the upstreams where browsers sign in (``auth: browser``), and the origins that they have.

Built from the configuration; asked by the engine about requests, and by the sign-in routes about return targets. An
origin is one that the configuration names: scheme and port of `externalURL`, and a host of the upstream or of
`externalURL` itself. A ``Host`` that nobody configured, which any site can make a name of ours by its DNS, has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from ostiary.gateway.upstream.routes import Routes
from ostiary.gateway.upstream.upstreams import Upstream


class Applications:
    """Those of one configuration."""

    def __init__(self, routes: Routes, external_url: str) -> None:
        self._routes = routes
        url = urlsplit(external_url)
        self.external_url = external_url.rstrip("/")
        self._scheme = url.scheme
        self._port = f":{url.port}" if url.port is not None else ""
        self._gateway_host = (url.hostname or "").lower()
        self.secure = url.scheme == "https"
        # By the Host of a request, as browsers send it.
        self._by_host: dict[str, tuple[Upstream, ...]] = {}
        for upstream in routes.upstreams:
            if upstream.settings.is_application:
                for host in upstream.settings.hosts or (self._gateway_host,):
                    key = _bracketed(host) + self._port
                    self._by_host[key] = (*self._by_host.get(key, ()), upstream)

    def __bool__(self) -> bool:
        return bool(self._by_host)

    def at(self, host: str) -> tuple[Upstream, ...]:
        """The web applications that browsers find at this ``Host``."""
        return self._by_host.get(host.lower(), ())

    def find(self, host: str, path: str) -> Upstream | None:
        """The web application that serves *path* at this ``Host``; None if another upstream does, or nobody."""
        applications = self.at(host)
        upstream = self._routes.find(host, path) if applications else None
        return upstream if upstream in applications else None

    def origin(self, host: str) -> str:
        """The origin of the applications at this ``Host``, as a browser writes it; empty if there are none."""
        return f"{self._scheme}://{host.lower()}" if self.at(host) else ""

    def is_gateways_own(self, host: str) -> bool:
        """Whether the sign-in pages are at this ``Host``, too."""
        return host.lower() == _bracketed(self._gateway_host) + self._port


def is_public(path: str, public: Sequence[str]) -> bool:
    """Whether *path* needs no sign-in."""
    return any(path == entry or (entry.endswith("/") and path.startswith(entry)) for entry in public)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
