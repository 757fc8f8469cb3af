"""The clusters that a user is offered: on the page after sign-in, in a kubeconfig, and by ``kubeconfig --all``.

    the Kubernetes upstreams, each with its URL for kubectl    `ClusterOffer`
    those that this user can use                               `Clusters.of`

Nothing about a cluster that the user cannot use is disclosed, not even its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from ostiary.core.scopes import Delegation
from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.cluster_access import ClusterUse, use_of
from ostiary_gateway.config.upstream import Offered
from ostiary_gateway.proxy.applications import bracketed, browser_port
from ostiary_gateway.proxy.routes import Routes
from ostiary_gateway.proxy.upstreams import Upstream

log = logging.getLogger("ostiary.gateway")


@dataclass(frozen=True, slots=True)
class ClusterOffer:
    """A cluster and its URL for kubectl: `server` is a URL of the gateway, or of a proxy that it authorizes for."""

    name: str
    label: str
    server: str
    offered: Offered = Offered.BY_POLICY
    use: ClusterUse = ClusterUse.UNKNOWN


@dataclass(frozen=True, slots=True)
class UsersClusters:
    """The clusters of one user. `incomplete`: an upstream that could not be checked is left out."""

    clusters: tuple[ClusterOffer, ...] = ()
    incomplete: bool = False


NO_CLUSTERS = UsersClusters()


def offers(routes: Routes, external_url: str, *, port: int | None = None) -> Iterator[ClusterOffer]:
    """Yield the Kubernetes upstreams of *routes*, at the port of *external_url* or at *port*."""
    for upstream in routes.upstreams:
        settings = upstream.settings
        if not upstream.is_kubernetes or settings.offered is Offered.NEVER:
            continue
        server = _server(routes, upstream, external_url, port)
        if server:
            yield ClusterOffer(upstream.name, settings.label, server, settings.offered)


def _server(routes: Routes, upstream: Upstream, external_url: str, port: int | None) -> str:
    """Return a URL that is routed to *upstream* and no other; empty if there is none."""
    url, prefix = urlsplit(external_url), upstream.settings.prefix
    own_host = bracketed(url.hostname or "")
    hosts = upstream.settings.hosts
    # Prefer the gateway's own host, which its certificate always covers.
    for host in (own_host, *hosts) if not hosts or own_host in hosts else hosts:
        if routes.find(host, prefix) is upstream:
            return f"{url.scheme}://{host}{browser_port(external_url, port)}{prefix.rstrip('/')}"
    return ""


class Clusters:
    """Select the clusters of *every* that a user is offered. One instance serves one event loop."""

    def __init__(self, every: Sequence[ClusterOffer], authorizer: Authorizer) -> None:
        # An upstream may be reachable through the gateway and through another proxy: offer it once, through the
        # gateway.
        self._every = tuple({cluster.name: cluster for cluster in reversed(every)}.values())[::-1]
        self._authorizer = authorizer

    async def of(self, user: UserInfo, delegation: Delegation | None = None) -> UsersClusters:
        """Return the clusters that *user* can use; with *delegation* only those in its scope."""
        here = [cluster for cluster in self._every if delegation is None or _is_in_scope(delegation, cluster.name)]
        uses = await asyncio.gather(*(self._use(user, cluster) for cluster in here))
        return UsersClusters(
            tuple(
                replace(cluster, use=use)
                for cluster, use in zip(here, uses, strict=True)
                if use is not None and use is not ClusterUse.NONE
            ),
            incomplete=None in uses,
        )

    async def _use(self, user: UserInfo, cluster: ClusterOffer) -> ClusterUse | None:
        """Return the user's access to *cluster*, or None if it cannot be determined."""
        try:
            use = await use_of(self._authorizer, user, cluster.name)
        except ProviderError as error:
            fields = {"upstream": cluster.name, "cause": error.cause or error.summary}
            log.warning("cannot tell whether a user can use a cluster", extra=fields)
            use = None
        is_open = cluster.offered is Offered.EVERYBODY and use in (None, ClusterUse.NONE)
        return ClusterUse.UNKNOWN if is_open else use


def _is_in_scope(delegation: Delegation, upstream: str) -> bool:
    return bool(delegation.scopes) and all(
        any(not rule.upstreams or upstream in rule.upstreams for rule in scope.rules) for scope in delegation.scopes
    )
