"""An issuer and a cluster over TLS, and providers that are closed after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import trustme

from ostiary_gateway.providers.workload.identity import WorkloadIdentity
from ostiary_gateway.testing import FakeClock
from tests.support.cluster import Cluster
from tests.support.issuer import Issuer
from tests.support.workloads import workload

Make = Callable[[str], WorkloadIdentity]


@pytest.fixture
def issuer(ca: trustme.CA, clock: FakeClock) -> Iterator[Issuer]:
    with Issuer(ca, clock).running() as server:
        yield server


@pytest.fixture
def cluster(ca: trustme.CA, clock: FakeClock) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.accounts.now = lambda: clock.now().timestamp()
        yield cluster


@pytest.fixture
async def make(ca: trustme.CA, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Make]:
    """A provider with these settings (YAML); ``ca.pem`` is the authority of the issuer and of the cluster."""
    made: list[WorkloadIdentity] = []
    ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def make(text: str) -> WorkloadIdentity:
        made.append(workload(text, clock, tmp_path))
        return made[-1]

    yield make
    for provider in made:
        await provider.close()
