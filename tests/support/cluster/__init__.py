"""A small Kubernetes API server for the tests: the real kubectl works with it, and it records what it is sent.

    with Cluster(ca) as cluster:
        cluster.add_pod("default", "web", ports={80: port})
        kubeconfig = cluster.kubeconfig(path, {"token": cluster.add_token("jane")})

It stands in for what cannot run on every machine, and is held to the documented protocol by
``tests/e2e/test_cluster_support.py``. A request goes through `server`, `http`, `identity`, `api`, and from there to
`store` or `kubelet`, which speaks over `websocket` or `spdy`.
"""

from tests.support.cluster.http import Record
from tests.support.cluster.resources import Asked
from tests.support.cluster.server import Cluster

__all__ = ["Asked", "Cluster", "Record"]
