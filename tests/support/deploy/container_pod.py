"""A pod of the Deployment for real: the image in podman, with the container's arguments and mounts, locked down."""

from __future__ import annotations

from tests.support.deploy.mounted_pod import MountedPod
from tests.support.gateway import Site
from tests.support.image import LOCKED_DOWN, ContainerGateway, limits, podman


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
