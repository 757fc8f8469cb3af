"""Settings of the token store ``redis``, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from ostiary.core.loopback import is_loopback
from ostiary.core.yaml import ConfigSection
from ostiary_gateway.settings.kinds import FilePath, Flag, Holds, Integer, Names, Seconds, Text
from ostiary_gateway.settings.sections import OptionalSection

_ADDRESS = r"([^\s:/@\[\]]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
_NO_ADDRESS = "it must be like redis.example.com:6379"
_ADDRESSES = {"pattern": _ADDRESS, "mistake": _NO_ADDRESS, "least": 1, "empty_list": "the list is empty"}
REDIS_PORT = 6379
SENTINEL_PORT = 26379


def _password_file(whose: str) -> FilePath:
    doc = f"the file with {whose}; it is read anew for every connection"
    return FilePath(doc, holds=Holds.SECRET, checked=False, empty="", unset="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelSettings:
    """Sentinels, which report which server is the primary."""

    name: Annotated[str, Text("the name that the Sentinels have for the primary")]
    addresses: Annotated[
        tuple[str, ...],
        Names("the Sentinels; one that answers is enough", missing="it is missing: where they are", **_ADDRESSES),
    ]
    username: Annotated[str, Text("the user at the Sentinels", empty="", unset="none")] = ""
    password_file: Annotated[Path | None, _password_file("the password of the Sentinels")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """A cluster. All keys are in one slot, so on one node."""

    addresses: Annotated[
        tuple[str, ...],
        Names("nodes; one that answers is enough", missing="it is missing: where they are", **_ADDRESSES),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTls:
    """TLS. ``tls: {}`` uses the system's authorities."""

    ca: Annotated[
        Path | None,
        FilePath("authorities (PEM) of the servers", holds=Holds.CERTIFICATES, empty="", unset="the system's"),
    ] = None
    certificate: Annotated[
        Path | None, FilePath("our own certificate (PEM)", holds=Holds.CERTIFICATES, empty="", unset="none")
    ] = None
    key: Annotated[Path | None, FilePath("its key", holds=Holds.SECRET, empty="", unset="none")] = None

    def check(self, fields: ConfigSection) -> None:
        if (self.certificate is None) != (self.key is None):
            fields.problem("a certificate and its key go together", "key" if self.key is None else "certificate")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """The settings of the token store ``redis``."""

    SCHEMA: ClassVar[Mapping[str, object]] = {
        "oneOf": [{"required": ["address"]}, {"required": ["sentinel"]}, {"required": ["cluster"]}]
    }

    address: Annotated[
        str,
        Text("the server, as `host:port`", pattern=_ADDRESS, mistake=_NO_ADDRESS, empty="", unset="none"),
    ] = ""
    sentinel: Annotated[
        SentinelSettings | None, OptionalSection("Sentinels, which name the server", SentinelSettings)
    ] = None
    cluster: Annotated[ClusterSettings | None, OptionalSection("a cluster", ClusterSettings)] = None
    username: Annotated[str, Text("the user (ACL)", empty="", unset="Redis' own default user")] = ""
    password_file: Annotated[Path | None, _password_file("the password")] = None
    database: Annotated[int, Integer("the number of the database", least=0)] = 0
    prefix: Annotated[
        str,
        Text(
            "what all keys begin with, in braces: two gateways at one server need different ones",
            pattern=r"[^\s{}]+",
            mistake="it must have no spaces and no braces",
        ),
    ] = "ostiary"
    tls: Annotated[RedisTls | None, OptionalSection("TLS; left out, there is none", RedisTls)] = None
    insecure: Annotated[bool, Flag("without TLS beyond this machine: whoever is in between can sign in as anybody")] = (
        False
    )
    timeout: Annotated[float, Seconds("for one operation, connecting included")] = 2.0
    connections: Annotated[int, Integer("connections of each worker at a time")] = 4
    wait_replicas: Annotated[
        int,
        Integer("replicas of the server that must have a sign-in or a revocation before it is acknowledged", least=0),
    ] = 0
    wait_timeout: Annotated[float, Seconds("how long to wait for them; shorter than `timeout`")] = 1.0

    def check(self, fields: ConfigSection) -> None:
        ways = [name for name in ("address", "sentinel", "cluster") if getattr(self, name)]
        if len(ways) != 1 and all(fields.is_right(name) for name in ("address", "sentinel", "cluster")):
            fields.problem("one of address, sentinel and cluster says where Redis is", ways[1] if ways else "address")
        if self.cluster is not None and self.database:
            fields.problem("a cluster has only database 0", "database")
        if self.wait_replicas and self.wait_timeout >= self.timeout:
            fields.problem("it must be shorter than timeout", "waitTimeout")
        if self.tls is None and not self.insecure and not all(is_loopback(host_of(text)) for text in self.addresses):
            fields.problem(
                "sessions and passwords would be sent in plain text",
                ways[0] if ways else "address",
                "use tls: {ca: ca.pem}; or, in a network where nobody else is, insecure: true",
            )

    @property
    def addresses(self) -> tuple[str, ...]:
        for section in (self.sentinel, self.cluster):
            if section is not None:
                return section.addresses
        return (self.address,) if self.address else ()


def host_of(address: str) -> str:
    return split_address(address, 0)[0]


def split_address(address: str, default_port: int) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or host.startswith("[") != host.endswith("]"):
        host, port = address, ""
    return host.strip("[]"), int(port) if port else default_port
