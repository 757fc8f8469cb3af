"""Routing: find the upstream for a host and path."""

from __future__ import annotations

from collections.abc import Sequence

from ostiary_gateway.proxy.upstreams import Upstream


class Routes:
    """The routing table: upstreams with a matching host first, then the longest prefix."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self.upstreams = tuple(upstreams)
        by_length = sorted(upstreams, key=lambda upstream: -len(upstream.settings.prefix))
        # Upstreams with hosts precede those that accept any host.
        self._order = sorted(by_length, key=lambda upstream: not upstream.settings.hosts)
        self._has_hosts = any(upstream.settings.hosts for upstream in upstreams)

    def find(self, host: str, path: str) -> Upstream | None:
        # Host names are case-insensitive, paths are not.
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
    """The routes for a proxy that forwards to *only*: hosts and paths of its other upstreams have no route."""

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
