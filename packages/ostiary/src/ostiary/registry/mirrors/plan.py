"""Pull plans: the endpoints of an image in the order in which a container runtime contacts them.

    image -> Mirrors.plan -> PullPlan(endpoints) -> `endpoints` looks up or explains their credentials

`containerd` and `registries_conf` create plans like their runtime does. Plain data; nothing is contacted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from ostiary.core.loopback import is_loopback
from ostiary.errors import ConfigurationError, ImageNameError
from ostiary.model import Place, Problem
from ostiary.registry.image_name import parse_image_name

MOST_ENDPOINTS = 100
NO_NAME = "no image name can have this host, so no credential can be kept for it: give it a port, or a name with a dot"


class RuntimeFamily(Enum):
    """The runtime whose mirror configuration it is. The value is its display name."""

    CONTAINERD = "containerd"
    CONTAINERS = "podman, skopeo, buildah and CRI-O"


@dataclass(frozen=True, slots=True)
class PullEndpoint:
    """A location that an image may be pulled from.

    Credentials are looked up for `repository`, the image's name at this host; it is empty if no image name can have
    this host. `skip` is why the endpoint is skipped, and empty if it is contacted. `gets_kubelet_credential`: the
    runtime also sends this host the credential from the kubelet, which is for the image's own name. `resolves`: it may
    resolve the image's tag, and not only serve content.
    """

    address: str
    host: str
    repository: str
    is_mirror: bool
    transport: str
    place: Place
    skip: str = ""
    note: str = ""
    gets_kubelet_credential: bool = False
    resolves: bool = True


@dataclass(frozen=True, slots=True)
class PullPlan:
    """The endpoints for one image, in order. `image` is as given, `names` are the full names that it stands for.

    `warnings` are about what the runtime silently ignores.
    """

    image: str
    names: tuple[str, ...]
    runtime: RuntimeFamily
    endpoints: tuple[PullEndpoint, ...]
    warnings: tuple[Problem, ...] = ()

    @property
    def asked(self) -> tuple[PullEndpoint, ...]:
        """Return the endpoints that are not skipped."""
        return tuple(endpoint for endpoint in self.endpoints if not endpoint.skip)


def checked_plan(plan: PullPlan, place: Place) -> PullPlan:
    """Return *plan*, unless it has too many endpoints, each of which is a lookup. Raises `ConfigurationError`."""
    if len(plan.endpoints) > MOST_ENDPOINTS:
        message = f"{len(plan.endpoints)} endpoints for one image are more than {MOST_ENDPOINTS}"
        problem = Problem(message, place, "leave out mirrors, or registries of unqualified-search-registries")
        raise ConfigurationError("the mirror configuration cannot be used", problems=[problem], code="mirrors-invalid")
    return plan


class Mirrors(Protocol):
    """A mirror configuration of a node. The files are read on every call, as by the runtimes."""

    def plan(self, image: str) -> PullPlan:
        """Return where *image* is pulled from; raises `ImageNameError`, and `ConfigurationError` for invalid files."""
        ...


def is_this_machine(host: str) -> bool:
    """Return whether *host*, maybe with a port, is this machine by its name or address."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name)


def credential_name(host: str, path: str) -> str:
    """Return the name under which credentials for *path* at *host* are looked up; empty if no image name has this host.

    ``http://mirror/v2`` is such a host: ``mirror/team/app`` names an image of Docker Hub, and Docker Hub's credential
    must not be sent to another host.
    """
    name = f"{host}/{path}"
    try:
        parsed = parse_image_name(name)
    except ImageNameError:
        return ""
    return name if parsed.repository == name else ""
