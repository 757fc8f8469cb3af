"""Where containerd pulls from: its ``certs.d``, a directory for each registry with a ``hosts.toml`` in it.

    registry.example.com:5000  ->  registry.example.com_5000_/ , else registry.example.com:5000/ , else _default/

The first directory that exists counts, also one without a ``hosts.toml``. The hosts of the file are asked in its
order, and last its ``server``, or the registry itself if the file names none.
"""

from __future__ import annotations

import os

from ostiary.model import Place, Problem
from ostiary.registry.matching.image_name import DOCKER_HUB, ImageName, parse_image_name
from ostiary.registry.mirrors.hosts_file import API_ROOT, CAPABILITIES, HostsFile, RegistryHost, parse_hosts_file
from ostiary.registry.mirrors.plan import (
    PullEndpoint,
    PullPlan,
    RuntimeFamily,
    checked_plan,
    credential_name,
    is_this_machine,
)
from ostiary.registry.mirrors.toml_file import read_toml, unusable

HOSTS_FILE = "hosts.toml"
DEFAULT_DIRECTORY = "_default"
HUB_PULL_HOST = "registry-1.docker.io"
_IGNORED_HINT = "containerd logs an error, passes over the whole file, and asks the registry itself"


class ContainerdHosts:
    """The mirrors of a directory such as ``/etc/containerd/certs.d``."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(os.fspath(directory))

    def plan(self, image: str) -> PullPlan:
        name = parse_image_name(image)
        folder = self._directory(name.domain)
        hosts_file = None if folder is None else read_hosts_file(folder)
        if hosts_file is not None and hosts_file.problems:
            raise unusable(
                [Problem(each.message, each.place, each.hint or _IGNORED_HINT) for each in hosts_file.problems]
            )
        place = Place(self._root if folder is None else os.path.join(folder, HOSTS_FILE))
        hosts = (
            [*hosts_file.hosts, hosts_file.server or _upstream(name, place)] if hosts_file else [_upstream(name, place)]
        )
        endpoints = tuple(_endpoint(host, name) for host in hosts)
        warnings = hosts_file.warnings if hosts_file else ()
        plan = PullPlan(image, (str(name),), RuntimeFamily.CONTAINERD, endpoints, warnings)
        return checked_plan(plan, place)

    def _directory(self, registry: str) -> str | None:
        if not os.path.isdir(self._root):
            problem = Problem("the directory does not exist", Place(self._root), "name the config_path of containerd")
            raise unusable([problem])
        candidates = (os.path.join(self._root, name) for name in directory_names(registry))
        try:
            return next((folder for folder in candidates if _exists(folder)), None)
        except OSError as error:
            raise unusable([Problem(f"it cannot be read: {error.strerror}", Place(self._root))]) from error


def directory_names(registry: str) -> tuple[str, ...]:
    """The names that the directory of *registry* may have, the first one that exists counts."""
    host, colon, port = registry.rpartition(":")
    with_underscores = (f"{host}_{port}_",) if colon and host else ()
    return (*with_underscores, registry, DEFAULT_DIRECTORY)


def read_hosts_file(folder: str) -> HostsFile | None:
    """The ``hosts.toml`` of *folder*; None if there is none, or an empty one. Its mistakes are in it."""
    file = read_toml(os.path.join(folder, HOSTS_FILE))
    if file is None:
        return None
    return parse_hosts_file(file)


def _exists(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


# --- endpoints ---


def _upstream(name: ImageName, place: Place) -> RegistryHost:
    host = HUB_PULL_HOST if name.domain == DOCKER_HUB else name.domain
    scheme = "http" if is_this_machine(host) else "https"
    return RegistryHost(host, scheme, host, API_ROOT, CAPABILITIES, place)


def is_of_registry(host: str, registry: str) -> bool:
    """Whether *host* is the registry itself, and no mirror of it."""
    return host == registry or (registry == DOCKER_HUB and host == HUB_PULL_HOST)


def _endpoint(host: RegistryHost, name: ImageName) -> PullEndpoint:
    is_mirror = not is_of_registry(host.host, name.domain)
    repository = credential_name(host.host, mirrored_path(host, name.path)) if is_mirror else name.repository
    skip = "" if "pull" in host.capabilities else "it does not have the capability pull"
    note = ""
    resolves = bool(name.digest) or "resolve" in host.capabilities
    if not skip and not resolves:
        note = (
            "it is not asked for the tag, for want of the capability resolve, but for the content once another host has"
        )
    return PullEndpoint(
        f"{host.scheme}://{host.host}{host.path}/{name.path}",
        host.host,
        repository,
        is_mirror,
        _transport(host),
        host.place,
        skip,
        note,
        # Its credentials are tried at every host that asks for one.
        gets_kubelet_credential=True,
        resolves=resolves,
    )


def mirrored_path(host: RegistryHost, path: str) -> str:
    """The repository at *host*: what stands behind the API's version in its path comes before the image's own path."""
    _, marker, below = f"{host.path}/".partition(f"{API_ROOT}/")
    return f"{below}{path}" if marker else path


def _transport(host: RegistryHost) -> str:
    if host.scheme == "http":
        return "http"
    return "https, certificate not verified" if host.skip_verify else "https"
