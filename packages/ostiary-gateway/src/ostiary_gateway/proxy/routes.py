"""Which upstream serves a host and a path: one that names the host first, then the longest prefix.

Built by the app from the configuration; asked by `request.questions` once per new head.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostiary_gateway.proxy.upstreams import Upstream


class Routes:
    """Which upstream serves a host and a path."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self.upstreams = tuple(upstreams)
        by_length = sorted(upstreams, key=lambda upstream: -len(upstream.settings.prefix))
        # One that names the host goes before one that takes any.
        self._order = sorted(by_length, key=lambda upstream: not upstream.settings.hosts)
        self._has_hosts = any(upstream.settings.hosts for upstream in upstreams)

    def find(self, host: str, path: str) -> Upstream | None:
        # Hosts are the same in upper and lower case; paths are not.
        name = (host.rpartition(":")[0] if _has_port(host) else host).lower() if self._has_hosts else ""
        for upstream in self._order:
            hosts = upstream.settings.hosts
            if (not hosts or name in hosts) and _is_below(path, upstream.settings.prefix):
                return upstream
        return None

    def tick(self, now: float) -> None:
        for upstream in self.upstreams:
            upstream.tick(now)

    def close(self) -> None:
        for upstream in self.upstreams:
            upstream.pool.close()


class RoutesTo(Routes):
    """For a proxy that carries requests to *only*: a host or path that another upstream of its serves has no route."""

    def __init__(self, upstreams: Sequence[Upstream], only: Upstream) -> None:
        super().__init__(upstreams)
        self._only = only

    def find(self, host: str, path: str) -> Upstream | None:
        upstream = super().find(host, path)
        return upstream if upstream is self._only else None


def _is_below(path: str, prefix: str) -> bool:
    return prefix == "/" or path == prefix or path.startswith(prefix + "/")


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]
