"""One replica of the gateway as it describes itself, and as JSON carries it. Pure.

Written into the token store by `replicas.registry`, read by those who show all replicas. A replica of another version
may write other fields: those that are not known are left out, and those that are missing have their default.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import asdict, dataclass, fields
from typing import cast, get_args, get_type_hints


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """One start of one replica: a replica that is started again is another one."""

    id: str
    host: str
    pid: int

    @classmethod
    def of_this_process(cls) -> ReplicaIdentity:
        return cls(secrets.token_hex(8), socket.gethostname(), os.getpid())


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A replica, as it was when it wrote this down. Times are lengths in seconds: clocks of machines differ.

    `configuration` is a keyed hash, and `configuration_key` names the key; hashes under different keys say nothing
    about each other. `revocation` is the number of the last revocation that is in force in all workers, `head` the
    store's last one, and `confirmed_seconds` how long ago the slowest worker knew that none was missing. `trouble` is
    what keeps it from serving, empty if nothing does.
    """

    id: str
    host: str = ""
    pid: int = 0
    version: str = ""
    interfaces: int = 0
    configuration: str = ""
    configuration_key: str = ""
    configured_seconds: float = 0.0
    up_seconds: float = 0.0
    revocation: int | None = None
    head: int | None = None
    confirmed_seconds: float = 0.0
    max_stale: float = 0.0
    requests_per_second: float = 0.0
    in_flight: int = 0
    open_streams: int = 0
    tokens: int = 0
    workers: int = 1
    trouble: str = ""

    @property
    def is_behind(self) -> bool:
        """Whether it has not known for too long that no revocation is missing."""
        return self.confirmed_seconds > self.max_stale


def encode_replica(replica: Replica) -> bytes:
    return json.dumps(asdict(replica)).encode()


def decode_replica(data: bytes) -> Replica | None:
    """The replica; None for what is none, which another version may have written."""
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return replica_from_json(value)


def replica_from_json(value: object) -> Replica | None:
    if not isinstance(value, dict):
        return None
    values = {field.name: value[field.name] for field in fields(Replica) if field.name in value}
    if "id" not in values or not all(_fits(name, field) for name, field in values.items()):
        return None
    return Replica(**cast("dict[str, str]", values))  # type: ignore[arg-type]  # the types have been checked


_TYPES = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(Replica).items()}


def _fits(name: str, value: object) -> bool:
    types = _TYPES[name]
    if isinstance(value, bool):
        return False
    # JSON does not tell 1.0 from 1.
    return isinstance(value, types) or (float in types and isinstance(value, int))
