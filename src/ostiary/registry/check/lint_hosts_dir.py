"""The rules of `lint` about containerd's ``certs.d``: names of directories, and each ``hosts.toml``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.model import Place
from ostiary.registry.check.lint_reading import Severity
from ostiary.registry.check.mirror_findings import Mirrored, MirrorFindings
from ostiary.registry.matching.image_name import DOCKER_HUB, OLD_DOCKER_HUB
from ostiary.registry.mirrors.containerd import (
    DEFAULT_DIRECTORY,
    HOSTS_FILE,
    HUB_PULL_HOST,
    directory_names,
    is_of_registry,
    mirrored_path,
    read_hosts_file,
)
from ostiary.registry.mirrors.hosts_file import API_ROOT, HostsFile, RegistryHost
from ostiary.registry.mirrors.plan import is_this_machine
from ostiary.registry.mirrors.toml_file import names_in

_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])"
_PORT_DIRECTORY = re.compile(rf"({_HOST})_(\d{{1,5}})_")
_REGISTRY = re.compile(rf"{_HOST}(?::\d{{1,5}})?")
# host_5000, host-5000-, host_5000__ and others that are near to what is read.
_NEARLY_PORT = re.compile(rf"({_HOST}?)[_:]+(\d{{1,5}})[_:]*")
_IGNORED = "containerd passes over the whole file and asks the registry itself"
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})


def lint_hosts_dir(directory: str) -> Iterator[MirrorFindings]:
    """What is found in *directory*, a part for each directory in it, after one for the whole."""
    whole = MirrorFindings()
    yield whole
    root = os.path.abspath(directory)
    try:
        names = names_in(root)
    except ConfigurationError as error:
        names = []
        for problem in error.problems:
            whole.add_problem("mirrors-unreadable", problem, "no mirror is known")
    if not os.path.isdir(root):
        place, fix = Place(root), "name the config_path of containerd's registry"
        whole.add(Severity.ERROR, "mirrors-unreadable", place, "the directory does not exist: no mirror is known", fix)
        return
    for name in names:
        folder = os.path.join(root, name)
        if os.path.isdir(folder):
            part = MirrorFindings()
            _check_directory(part, name, folder, frozenset(names))
            yield part


def registry_of(directory_name: str) -> str | None:
    """The registry that a directory of this name is for; empty for all that have none; None if it is for nobody."""
    if directory_name == DEFAULT_DIRECTORY:
        return ""
    with_port = _PORT_DIRECTORY.fullmatch(directory_name)
    if with_port:
        return f"{with_port[1]}:{with_port[2]}"
    return directory_name if _REGISTRY.fullmatch(directory_name) else None


def _check_directory(part: MirrorFindings, name: str, folder: str, names: frozenset[str]) -> None:
    registry = registry_of(name)
    if registry is None:
        part.add(
            Severity.ERROR,
            "hosts-dir-name",
            Place(folder),
            f'no registry is called "{printable(name)}", so this directory is never used',
            _name_fix(name),
        )
        return
    if registry in (OLD_DOCKER_HUB, HUB_PULL_HOST):
        message = f"images of Docker Hub are looked up as {DOCKER_HUB}, so this directory is hardly ever used"
        part.add(Severity.WARNING, "hosts-dir-name", Place(folder), message, f"rename it to {DOCKER_HUB}")
    preferred = directory_names(registry)[0] if registry else name
    if preferred != name and preferred in names:
        message = f"it is never used: {printable(preferred)} stands for the same registry and comes first"
        part.add(Severity.WARNING, "hosts-dir-shadowed", Place(folder), message, "keep one of them")
        return
    hosts_file = read_hosts_file(folder)
    if hosts_file is None:
        _check_missing_file(part, folder)
        return
    part.files.append(os.path.join(folder, HOSTS_FILE))
    _check_file(part, hosts_file, registry, Place(os.path.join(folder, HOSTS_FILE)))


def _name_fix(name: str) -> str:
    near = _NEARLY_PORT.fullmatch(name)
    if near and near[1]:
        return f"rename it to {printable(near[1])}_{near[2]}_, or {printable(near[1])}:{near[2]}"
    return "name it after the registry: host, host:port, or host_port_; _default is for all others"


def _check_missing_file(part: MirrorFindings, folder: str) -> None:
    near = [name for name in names_in(folder) if name.endswith(".toml")]
    if near:
        message = f"there is no {HOSTS_FILE} in it, and {printable(near[0])} is not read"
        part.add(Severity.ERROR, "hosts-file-missing", Place(folder), message, f"rename it to {HOSTS_FILE}")


def _check_file(part: MirrorFindings, hosts_file: HostsFile, registry: str, place: Place) -> None:
    for problem in hosts_file.problems:
        part.add_problem("hosts-file-invalid", problem, _IGNORED)
    if hosts_file.problems:
        return
    for warning in hosts_file.warnings:
        part.add_warning(warning)
    server = hosts_file.server
    if server is not None and not hosts_file.has_host_tables:
        message = "without a [host] table, older versions of containerd (1.6, for one) pass over the whole file"
        fix = f'add [host."{printable(server.written)}"]'
        part.add(Severity.WARNING, "hosts-file-without-host", place, message, fix)
    for host in (*hosts_file.hosts, *([server] if server else [])):
        _check_host(part, host)
        if registry != host.host and not is_of_registry(host.host, registry):
            part.mirrored.append(Mirrored(registry, _credential_prefix(host), host.place))
    if server is not None and registry and not is_of_registry(server.host, registry):
        message = f"{printable(registry)} itself is never asked: server names {printable(server.host)} in its place"
        part.add(Severity.INFO, "registry-not-asked", place, message)


def _credential_prefix(host: RegistryHost) -> str:
    return f"{host.host}/{mirrored_path(host, '')}".rstrip("/")


def _check_host(part: MirrorFindings, host: RegistryHost) -> None:
    name, place = printable(host.host), host.place
    if host.scheme == "http" and not is_this_machine(host.host):
        message = f"{name} is asked over plain HTTP: everybody on the way reads the password"
        part.add(Severity.WARNING, "mirror-plain-http", place, message, "use https")
    if host.host.endswith({"https": ":80", "http": ":443"}[host.scheme]):
        message = f"{name} is asked over {host.scheme} at the port of the other scheme"
        part.add(Severity.WARNING, "mirror-port", place, message, "correct the scheme or the port")
    if host.skip_verify:
        message = f"the certificate of {name} is not verified: whoever is on the way may get the password"
        part.add(Severity.WARNING, "mirror-not-verified", place, message, 'give its authority: ca = "ca.pem"')
    if host.has_userinfo:
        message = f"a login stands in the address of {name}, where containerd does not use it"
        part.add(Severity.ERROR, "credential-in-mirrors", place, message, "take it out, and change the password")
    for header in host.headers:
        if header.lower() in _SECRET_HEADERS:
            message = f"the header {printable(header)} is sent to {name} with every request, and stands in a plain file"
            fix = "let a credential provider answer for the mirror instead"
            part.add(Severity.WARNING, "credential-in-mirrors", place, message, fix)
    if "pull" not in host.capabilities:
        message = f"nothing is pulled from {name}: it does not have the capability pull"
        part.add(Severity.INFO, "mirror-not-used", place, message, 'capabilities = ["pull", "resolve"]')
    elif "resolve" not in host.capabilities:
        message = f"{name} is not asked for tags: it does not have the capability resolve"
        part.add(Severity.INFO, "mirror-not-used", place, message, 'capabilities = ["pull", "resolve"]')
    if not host.override_path and host.path not in (API_ROOT, ""):
        message = f"{name} is asked at {printable(host.path)}/..., below the path of its address"
        fix = "for a project of a registry, write the address with /v2/ before the path, and override_path = true"
        part.add(Severity.WARNING, "mirror-path", place, message, fix)
