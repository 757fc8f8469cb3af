"""State that one replica of the gateway publishes, and its JSON form in the token store. Pure.

A replica of another version may write other fields: unknown ones are ignored, and missing ones have their default.
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
    """Identity of one run of a replica. A restarted replica has a new one."""

    id: str
    host: str
    pid: int

    @classmethod
    def of_this_process(cls) -> ReplicaIdentity:
        return cls(secrets.token_hex(8), socket.gethostname(), os.getpid())


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """State of a replica when it was published. Times are durations in seconds, because the clocks of machines differ.

    `configuration` is a keyed hash, and `configuration_key` identifies the key; hashes with different keys cannot be
    compared. `revocation` is the number of the last revocation that all workers enforce, `head` the last one in the
    store, and `confirmed_seconds` how long ago the slowest worker confirmed that it misses none. `trouble` is the
    reason why the replica cannot serve, empty if it can.
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
        """Whether the last confirmation of its revocations is older than `max_stale`."""
        return self.confirmed_seconds > self.max_stale


def encode_replica(replica: Replica) -> bytes:
    return json.dumps(asdict(replica)).encode()


def decode_replica(data: bytes) -> Replica | None:
    """Decode a replica. Returns None for invalid data, which another version may have written."""
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
    # JSON does not distinguish 1.0 from 1.
    return isinstance(value, types) or (float in types and isinstance(value, int))
