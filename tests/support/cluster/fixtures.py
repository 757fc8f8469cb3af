"""Fixtures around a cluster; a test module asks for them by ``pytest_plugins = ["tests.support.cluster.fixtures"]``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.cluster import Cluster
from tests.support.cluster.client import Kubectl


@pytest.fixture
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        yield cluster


@pytest.fixture
def kubectl(cluster: Cluster, tmp_path: Path) -> Kubectl:
    """kubectl as jane, directly at the cluster."""
    return Kubectl(cluster.kubeconfig(tmp_path / "jane", {"token": cluster.add_token("jane")}))
