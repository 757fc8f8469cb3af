"""Where an image is really pulled from: the endpoints in the order in which a container runtime asks them.

    image -> Mirrors.plan -> PullPlan(endpoints) -> endpoint_lookup, endpoint_explain

`containerd` and `registries_conf` each make plans as their runtime does. Plain data; nothing is contacted.
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
    """Whose mirror configuration it is. The value is its name for people."""

    CONTAINERD = "containerd"
    CONTAINERS = "podman, skopeo, buildah and CRI-O"


@dataclass(frozen=True, slots=True)
class PullEndpoint:
    """A place that is asked for an image.

    Credentials are looked up for `repository`, the image's name at this host; it is empty if no image name can have
    this host. `skip` says why the endpoint is left out, and is empty if it is asked. `gets_kubelet_credential`: the
    runtime sends the credential that the kubelet handed over, which is for the image's own name, to this host, too.
    `resolves`: it is asked which content the image's name stands for, and not only for content.
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
    """The endpoints for one image, in order. `image` is as it was given, `names` are the full names that it stands for.

    `warnings` are about what the runtime would pass over in silence.
    """

    image: str
    names: tuple[str, ...]
    runtime: RuntimeFamily
    endpoints: tuple[PullEndpoint, ...]
    warnings: tuple[Problem, ...] = ()

    @property
    def asked(self) -> tuple[PullEndpoint, ...]:
        """Those that are not left out."""
        return tuple(endpoint for endpoint in self.endpoints if not endpoint.skip)


def checked_plan(plan: PullPlan, place: Place) -> PullPlan:
    """*plan*, unless it has more endpoints than anybody means: each is a look-up. Raises `ConfigurationError`."""
    if len(plan.endpoints) > MOST_ENDPOINTS:
        message = f"{len(plan.endpoints)} endpoints for one image are more than {MOST_ENDPOINTS}"
        problem = Problem(message, place, "leave out mirrors, or registries of unqualified-search-registries")
        raise ConfigurationError("the mirror configuration cannot be used", problems=[problem], code="mirrors-invalid")
    return plan


class Mirrors(Protocol):
    """A mirror configuration of a node. The files are read at every call, as the runtimes do."""

    def plan(self, image: str) -> PullPlan:
        """Where *image* is pulled from; raises `ImageNameError`, and `ConfigurationError` for unusable files."""
        ...


def is_this_machine(host: str) -> bool:
    """Whether *host*, maybe with a port, is this machine by its name or address."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name)


def credential_name(host: str, path: str) -> str:
    """The name under which credentials for *path* at *host* are looked up; empty if no image name has this host.

    ``http://mirror/v2`` is such a host: ``mirror/team/app`` names an image of Docker Hub, and Docker Hub's credential
    must not be sent to somebody else.
    """
    name = f"{host}/{path}"
    try:
        parsed = parse_image_name(name)
    except ImageNameError:
        return ""
    return name if parsed.repository == name else ""
