"""Reads containerd's ``hosts.toml``: the hosts that are asked for the images of one registry, in the order of the file.

Of a file with a mistake containerd logs an error, uses nothing, and asks the registry itself: the mirror is silently
not used. Here the mistake is told. Header values and certificates are read by nobody here.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from ostiary.core.text import printable
from ostiary.model import Place, Problem
from ostiary.registry.mirrors.toml_file import TomlFile, TomlTable

CAPABILITIES = frozenset({"pull", "resolve", "push"})
API_ROOT = "/v2"
# What only matters to the connection.
_CONNECTION_KEYS = ("ca", "client", "dial_timeout")


@dataclass(frozen=True, slots=True)
class RegistryHost:
    """A host to ask. `path` is the root of its API; `written` is its address as it stands in the file."""

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
    """`server` is None if the file does not name one: then it is the registry itself. It is asked last."""

    hosts: tuple[RegistryHost, ...]
    server: RegistryHost | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    has_host_tables: bool = True


def parse_hosts_file(file: TomlFile) -> HostsFile:
    """What *file* says. With `problems`, containerd would not use any of it."""
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
    """The names of the hosts as their tables stand; a table inside a host's table is no host."""
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
        # Two slashes at the beginning would stay two.
        clean = "/" + posixpath.normpath(path).strip("/")
        if clean.endswith(API_ROOT) or self._override_path:
            return clean
        return clean.rstrip("/") + API_ROOT


def _split(written: str) -> SplitResult | None:
    """The parts of an address, as containerd reads it: what does not begin with ``http`` is taken for a host."""
    try:
        parts = urlsplit(written if written.startswith("http") else f"https://{written}")
        # In a path, an @ can only be the end of a login that was not escaped.
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0) and "@" not in parts.path
    except ValueError:
        return None
    return parts if has_host and parts.scheme in ("http", "https") and parts.netloc.isprintable() else None


def _without_userinfo(address: str) -> str:
    """*address* as it may be shown."""
    return f"***@{address.rpartition('@')[2]}" if "@" in address else address
