"""Three replicas as the manifests describe them: the real image, the rendered objects, a real database over TLS."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import yaml

from tests.interop.support.process import wait_until
from tests.support import image, postgresql, redis
from tests.support.cluster import Cluster
from tests.support.deploy.mounted_pod import MountedPod, secrets_of_an_operator
from tests.support.deploy.render import KUSTOMIZE, render_kustomize
from tests.support.gateway import Site
from tests.support.image import LOCKED_DOWN, ContainerGateway, limits, podman

pytestmark = [
    pytest.mark.slow,
    pytest.mark.needs("buildah", "podman", "mmdebstrap", "unshare"),
    pytest.mark.timeout(image.BUILD_SECONDS),
]
PODS = "/api/v1/namespaces/team/pods"
REPLICAS = 3


class ContainerPod(ContainerGateway):
    """*pod* has the mounts. A replica with the mounts of another one has a *site*, with its output, of its own."""

    def __init__(self, pod: MountedPod, site: Site, image: str) -> None:
        super().__init__(site, site.folder)
        self._pod, self._image = pod, image

    def command(self) -> list[str]:
        mounts = [mount["mountPath"] for mount in self._pod.container["volumeMounts"]]
        volumes = [f"--volume={self._pod.root}{path}:{path}:ro" for path in mounts]
        security = self._pod.pod_security
        user = f"--user={security['runAsUser']}:{security['runAsGroup']}"
        arguments = [str(argument) for argument in self._pod.container["args"]]
        # The host's network: the gateway listens on the loopback, and the tests' servers are there.
        options = [f"--name={self.name}", *limits(), *LOCKED_DOWN, *volumes, user, "--network=host"]
        return podman("run", "--rm", *options, self._image, *arguments)


@pytest.fixture
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def cluster(ca: trustme.CA) -> Iterator[Cluster]:
    with Cluster(ca) as cluster:
        cluster.add_namespace("team")
        cluster.add_pod("team", "web")
        yield cluster


@contextmanager
def database(store: Mapping[str, Any], ca: trustme.CA, folder: Path) -> Iterator[dict[str, Any]]:
    """The *store* of an overlay with the address of a server that runs here, and with its password."""
    if store["type"] == "postgresql":
        with postgresql.running() as server:
            server.use_tls(ca, "localhost", "127.0.0.1")
            yield {**store, "hosts": [f"127.0.0.1:{server.port}"], "user": postgresql.USER}
    else:
        tls = redis.write_certificates(folder / "redis-tls", ca)
        with redis.redis_server(folder / "redis", "maxmemory-policy noeviction", password=SESAME, tls=tls) as server:
            direct = {
                name: value for name, value in store.items() if name not in ("sentinel", "username", "waitReplicas")
            }
            yield {**direct, "address": server.address}


SESAME = "sesame"
PASSWORDS = {"postgresql": postgresql.PASSWORD, "redis": SESAME}


def _refuses(pod: ContainerPod, token: str) -> bool:
    try:
        return pod.get(PODS, token).status_code == 401
    except httpx.RemoteProtocolError:
        # A request that is open when its session is revoked is cut: the next one is answered.
        return False


@pytest.mark.parametrize("overlay", sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir()))
def test_three_pods_share_sessions_and_revocations_and_one_can_be_replaced(
    overlay: str, ca: trustme.CA, cluster: Cluster, tmp_path: Path
) -> None:
    image.build()
    built = image.identifier()
    secrets = secrets_of_an_operator(ca, database_password=PASSWORDS[overlay])
    rendered = render_kustomize(KUSTOMIZE / "overlays" / overlay, tmp_path / "rendering")
    token = cluster.add_token("gateway", may_impersonate=True)
    pod = MountedPod(tmp_path, ca, rendered, secrets=secrets, token=token)
    with ExitStack() as stack:
        store = yaml.safe_load(pod.config.read_text())["store"]
        pod.run_here(cluster, stack.enter_context(database(store, ca, tmp_path)))
        first, second, third = (
            stack.enter_context(ContainerPod(pod, Site(tmp_path / f"replica-{number}", ca), built))
            for number in range(REPLICAS)
        )
        alice = first.login("alice").token
        assert [each.get(PODS, alice).status_code for each in (first, second, third)] == [200, 200, 200]
        assert all(each.probe("/readyz").status_code == 200 for each in (first, second, third))
        wait_until(lambda: third.metric("ostiary_gateway_replicas") == REPLICAS, what="three replicas")
        first.stop()
        assert second.get(PODS, alice).status_code == 200
        with ContainerPod(pod, Site(tmp_path / "replica-new", ca), built) as new:
            assert new.get(PODS, alice).status_code == 200
            with new.http(alice) as http:
                assert http.post("/auth/logout").status_code == 204
            wait_until(lambda: _refuses(third, alice), what="the logout at another replica")
