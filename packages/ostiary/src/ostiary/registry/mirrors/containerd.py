"""Mirrors of containerd: its ``certs.d``, with a directory per registry that contains a ``hosts.toml``.

    registry.example.com:5000  ->  registry.example.com_5000_/ , else registry.example.com:5000/ , else _default/

The first directory that exists counts, even without a ``hosts.toml``. The hosts of the file are tried in its order, and
last its ``server``, or the registry itself if the file names none.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from ostiary.core.text import printable
from ostiary.model import Place, Problem
from ostiary.registry.image_name import DOCKER_HUB, ImageName, parse_image_name
from ostiary.registry.mirrors.plan import (
    PullEndpoint,
    PullPlan,
    RuntimeFamily,
    checked_plan,
    credential_name,
    is_this_machine,
)
from ostiary.registry.mirrors.toml_file import TomlFile, TomlTable, read_toml, unusable

CAPABILITIES = frozenset({"pull", "resolve", "push"})
API_ROOT = "/v2"
# Only relevant to the connection.
_CONNECTION_KEYS = ("ca", "client", "dial_timeout")


@dataclass(frozen=True, slots=True)
class RegistryHost:
    """A host to contact. `path` is the root of its API; `written` is its address as written in the file."""

    written: str
    scheme: str
    host: str
    path: str
    capabilities: frozenset[str]
    place: Place
    skip_verify: bool = False
    override_path: bool = False
    headers: tuple[str, ...] = ()
    has_userinfo: bool = False


@dataclass(frozen=True, slots=True)
class HostsFile:
    """`server` is None if the file does not name one: then it is the registry itself. It is tried last."""

    hosts: tuple[RegistryHost, ...]
    server: RegistryHost | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    has_host_tables: bool = True


def parse_hosts_file(file: TomlFile) -> HostsFile:
    """Parse a ``hosts.toml``. The result has the hosts in the order of the file.

    For an invalid file containerd logs an error, ignores all of it and contacts the registry itself, so the mirror is
    silently not used. Here the errors are reported in `problems`. Header values and certificates are not read.
    """
    root = file.root
    in_order = tuple(dict.fromkeys(_hosts_in_order(file)))
    hosts = tuple(_host_tables(root.table("host"), in_order))
    for name in root.mapping("host"):
        if name not in in_order:
            hint = f'write it as a table of its own: [host."{printable(_without_userinfo(name))}"]'
            message = "a host that is not a table of its own is not seen by containerd 2"
            file.warnings.append(Problem(message, file.place("host"), hint))
    server_name = root.string("server")
    settings = _HostTable(root)
    server = settings.host(server_name) if server_name else None
    root.finish()
    return HostsFile(
        tuple(host for host in hosts if host is not None),
        server,
        tuple(file.problems),
        tuple(file.warnings),
        bool(root.mapping("host")),
    )


def _hosts_in_order(file: TomlFile) -> list[str]:
    """Return the names of the hosts in the order of their tables. A table inside a host's table is not a host."""
    return [keys[1] for _, keys, is_array in file.headers if len(keys) > 1 and keys[0] == "host" and not is_array]


def _host_tables(table: TomlTable, names: Iterable[str]) -> Iterator[RegistryHost | None]:
    for name in names:
        host_table = table.table(name)
        yield _HostTable(host_table).host(name)
        host_table.finish()


class _HostTable:
    """The settings that a host's table and the root of the file have in common."""

    def __init__(self, table: TomlTable) -> None:
        self._table = table
        self._capabilities = self._read_capabilities()
        self._skip_verify = table.boolean("skip_verify")
        self._override_path = table.boolean("override_path")
        self._headers = tuple(table.mapping("header"))
        table.ignore(*_CONNECTION_KEYS)

    def _read_capabilities(self) -> frozenset[str]:
        capabilities = frozenset(name.lower() for name in self._table.strings("capabilities") or ())
        for unknown in sorted(capabilities - CAPABILITIES):
            self._table.problem(f"unknown capability {printable(unknown)}", f"use {', '.join(sorted(CAPABILITIES))}")
        return capabilities or CAPABILITIES

    def host(self, written: str) -> RegistryHost | None:
        parts = _split(written)
        if parts is None:
            hint = "write it with its scheme: https://mirror.example.com"
            self._table.problem("the address of a host has no host in it", hint)
            return None
        return RegistryHost(
            _without_userinfo(written),
            parts.scheme,
            parts.netloc.rpartition("@")[2],
            self._api_root(parts.path),
            self._capabilities,
            self._table.place,
            self._skip_verify,
            self._override_path,
            self._headers,
            "@" in parts.netloc,
        )

    def _api_root(self, path: str) -> str:
        if not path:
            return "" if self._override_path else API_ROOT
        # Two leading slashes would be preserved.
        clean = "/" + posixpath.normpath(path).strip("/")
        if clean.endswith(API_ROOT) or self._override_path:
            return clean
        return clean.rstrip("/") + API_ROOT


def _split(written: str) -> SplitResult | None:
    """Parse an address like containerd: text that does not begin with ``http`` is a host."""
    try:
        parts = urlsplit(written if written.startswith("http") else f"https://{written}")
        # In a path, an @ can only be the end of a login that was not escaped.
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0) and "@" not in parts.path
    except ValueError:
        return None
    return parts if has_host and parts.scheme in ("http", "https") and parts.netloc.isprintable() else None


def _without_userinfo(address: str) -> str:
    """Return *address* without userinfo, safe to display."""
    return f"***@{address.rpartition('@')[2]}" if "@" in address else address


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
    """Return the possible directory names of *registry*; the first one that exists counts."""
    host, colon, port = registry.rpartition(":")
    with_underscores = (f"{host}_{port}_",) if colon and host else ()
    return (*with_underscores, registry, DEFAULT_DIRECTORY)


def read_hosts_file(folder: str) -> HostsFile | None:
    """Read the ``hosts.toml`` of *folder*; None if it is missing or empty. The result includes its errors."""
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
    """Return whether *host* is the registry itself and not a mirror of it."""
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
        # containerd tries these credentials at every host that requires some.
        gets_kubelet_credential=True,
        resolves=resolves,
    )


def mirrored_path(host: RegistryHost, path: str) -> str:
    """Return the repository at *host*: the path after the API version in its URL is prepended to the image's path."""
    _, marker, below = f"{host.path}/".partition(f"{API_ROOT}/")
    return f"{below}{path}" if marker else path


def _transport(host: RegistryHost) -> str:
    if host.scheme == "http":
        return "http"
    return "https, certificate not verified" if host.skip_verify else "https"
