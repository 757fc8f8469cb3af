"""One real cluster for all tests of a version, and one gateway before it.

Which versions: the newest; with ``KUBERNETES=all`` in the environment also the two before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.support.cluster import RealCluster
from tests.interop.support.front import IMPERSONATION, REQUEST_HEADER, ClusterSite, Front, served
from tests.interop.support.people import NAMESPACES, manifests
from tests.interop.support.programs import OTHERS, Kubernetes, not_built, versions
from tests.support.gateway import Login
from tests.support.tiers import missing


@pytest.fixture(
    scope="session",
    params=[version for version in versions() if version.has_servers],
    ids=lambda version: f"kubernetes-{version}",
)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    lacking = not_built(lambda module: module not in OTHERS)
    if lacking:
        missing(*lacking, "`make interop` builds them")
    kubernetes: Kubernetes = request.param
    with RealCluster(tmp_path_factory.mktemp("cluster"), kubernetes) as cluster:
        for namespace in NAMESPACES:
            cluster.add_namespace(namespace)
        cluster.apply(*manifests())
        yield cluster


@pytest.fixture(scope="session")
def fronts(cluster: RealCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Front]]:
    site = ClusterSite(tmp_path_factory.mktemp("gateway"), cluster)
    site.write_config(**site.sections())
    site.give_role()
    with served(site) as gateway:
        logins: dict[str, Login] = {}  # one table for both ways: a token is good for each
        yield {host: Front(site, gateway, host, logins) for host in (IMPERSONATION, REQUEST_HEADER)}


@pytest.fixture(params=[IMPERSONATION, REQUEST_HEADER], ids=["impersonation", "requestHeader"])
def front(fronts: dict[str, Front], request: pytest.FixtureRequest) -> Front:
    return fronts[request.param]
