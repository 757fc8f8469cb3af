"""Settings of the token store ``postgresql``. Does not import a PostgreSQL library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

from ostiary.core.loopback import is_loopback
from ostiary.core.yaml import ConfigSection
from ostiary_gateway.settings.kinds import FilePath, Flag, Holds, Integer, Names, OneOf, Seconds, Text
from ostiary_gateway.settings.sections import OptionalSection

DEFAULT_PORT = 5432
# A name, an IPv4 address or an IPv6 address in brackets, with an optional port; or the folder of a Unix socket.
HOST_PATTERN = r"(/[^:]*|\[[0-9A-Fa-f:.]+\]|[^/:\[\]\s]+)(:[0-9]{1,5})?"
_HOSTS = "they must be like db-1.example.com, db-1.example.com:5433 or /run/postgresql"


class Pooler(Enum):
    """The connection pooler between the gateway and the database."""

    NONE = "none"  # or one in session mode
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class DatabaseServer:
    """A server; `host` is a folder if it is reached by a Unix socket."""

    host: str
    port: int

    @property
    def is_socket(self) -> bool:
        return self.host.startswith("/")

    @property
    def is_local(self) -> bool:
        return self.is_socket or is_loopback(self.host.lower())

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> DatabaseServer:
    match = re.fullmatch(HOST_PATTERN, text)
    if match is None:
        raise ValueError(_HOSTS)
    return DatabaseServer(match[1].strip("[]"), int(match[2][1:]) if match[2] else DEFAULT_PORT)


def _file(doc: str, holds: Holds, *, unset: str) -> FilePath:
    # Not read at the start: files of secrets are replaced while the gateway runs.
    return FilePath(doc, holds=holds, checked=False, empty="", unset=unset)


def _hosts(doc: str) -> Names:
    return Names(doc, pattern=HOST_PATTERN, mistake=_HOSTS, least=1, missing="it is missing: where the database is")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresqlTls:
    """Verification of the server, and the client certificate. Over the network there is always TLS."""

    ca: Annotated[Path | None, _file("authorities (PEM) of the server", Holds.CERTIFICATES, unset="the system's")] = (
        None
    )
    certificate: Annotated[
        Path | None, _file("a client certificate (PEM), with its chain", Holds.CERTIFICATES, unset="none")
    ] = None
    key: Annotated[Path | None, _file("its private key", Holds.SECRET, unset="none")] = None
    server_name: Annotated[str, Text("the name in the server's certificate", unset="that of the host", empty="")] = ""

    def check(self, fields: ConfigSection) -> None:
        if (self.certificate is None) != (self.key is None) and fields.is_right("certificate", "key"):
            missing = "key" if self.key is None else "certificate"
            fields.problem("a client certificate needs its key, and a key its certificate", missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSettings:
    """Servers for notifications, if `hosts` are a pooler that has none."""

    hosts: Annotated[tuple[str, ...], _hosts("servers, or a pooler in session mode, for notifications alone")]

    @property
    def addresses(self) -> tuple[DatabaseServer, ...]:
        return tuple(parse_address(text) for text in self.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresqlSettings:
    """The settings of the token store ``postgresql``."""

    hosts: Annotated[
        tuple[str, ...], _hosts("all servers of the cluster, `host:port`; the one that takes writes is used")
    ]
    database: Annotated[str, Text("the database", missing="it is missing: the name of the database")]
    user: Annotated[str, Text("the role that the gateway connects as", missing="it is missing: the name of the role")]
    password_file: Annotated[
        Path | None,
        _file("the file with its password; read again for each connection", Holds.SECRET, unset="none"),
    ] = None
    schema: Annotated[
        str,
        Text(
            "the schema of the tables: one for each gateway that shares a database",
            pattern="[a-z_][a-z0-9_]{0,47}",
            mistake="it must be lower-case letters, digits and underscores, 48 at most",
        ),
    ] = "ostiary"
    tls: Annotated[
        PostgresqlTls | None,
        OptionalSection("how the server is verified; also for a host on this machine", PostgresqlTls),
    ] = None
    connections: Annotated[int, Integer("connections of each worker at most, besides the one for notifications")] = 10
    connect_timeout: Annotated[float, Seconds("how long to wait for a connection to one of the hosts")] = 2.0
    command_timeout: Annotated[float, Seconds("how long to wait for an answer; shorter than `tokens.maxStale`")] = 2.0
    pooler: Annotated[Pooler, OneOf("`transaction` behind a pooler such as PgBouncer in that mode", Pooler)] = (
        Pooler.NONE
    )
    notifications: Annotated[bool, Flag("hear of revocations at once (`LISTEN`), besides asking every second")] = True
    listen: Annotated[
        ListenSettings | None, OptionalSection("where notifications come from, if not from `hosts`", ListenSettings)
    ] = None

    @property
    def addresses(self) -> tuple[DatabaseServer, ...]:
        return tuple(parse_address(text) for text in self.hosts)

    @property
    def listen_addresses(self) -> tuple[DatabaseServer, ...]:
        """The servers to listen at; none if notifications are off, or a pooler would drop them."""
        if not self.notifications:
            return ()
        if self.listen is not None:
            return self.listen.addresses
        return () if self.pooler is Pooler.TRANSACTION else self.addresses

    @property
    def place(self) -> str:
        """The location for error messages, without secrets."""
        return f"postgresql {', '.join(map(str, self.addresses))}, database {self.database}, schema {self.schema}"

    def check(self, fields: ConfigSection) -> None:
        if self.listen is not None and not self.notifications and fields.is_right("listen", "notifications"):
            fields.problem("notifications are off", "listen", "remove it, or set notifications: true")
