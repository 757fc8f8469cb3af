"""Comparison of all replicas: which have another configuration, and which are silent. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ostiary_gateway.replicas.replica import Replica


class Configuration(Enum):
    """How a replica's configuration compares with that of most replicas."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SeenReplica:
    """A replica compared with the others.

    `name` is the host, plus a part of the id if several replicas share the host. `silent_seconds` is the age of its
    last message if that is overdue, else 0.
    """

    replica: Replica
    name: str
    configuration: Configuration
    silent_seconds: float = 0.0

    @property
    def trouble(self) -> str:
        """Why the replica is not healthy; empty if it is."""
        if self.silent_seconds:
            return f"silent for {self.silent_seconds:.0f} s"
        if self.replica.trouble:
            return self.replica.trouble
        return "revocations are not confirmed" if self.replica.is_behind else ""

    @property
    def needs_attention(self) -> bool:
        return bool(self.trouble) or self.configuration is Configuration.OTHER


@dataclass(frozen=True, slots=True)
class Heard:
    """A replica, and the age of its last message if that is overdue."""

    replica: Replica
    silent_seconds: float = 0.0


def compare(heard: Sequence[Heard]) -> list[SeenReplica]:
    """Compare each replica with the configuration that most of them have, and return them sorted by name.

    If two configurations are equally frequent, the one that was loaded last counts, because an update is in progress.
    """
    hosts = Counter(each.replica.host for each in heard)
    usual = _usual([each.replica for each in heard])
    rows = [
        SeenReplica(each.replica, _name(each.replica, hosts), _mark(each.replica, usual), each.silent_seconds)
        for each in heard
    ]
    return sorted(rows, key=lambda row: (row.name, row.replica.id))


def _usual(replicas: Sequence[Replica]) -> Replica | None:
    """Return one of the replicas with the most frequent configuration."""
    counts = Counter((replica.configuration_key, replica.configuration) for replica in replicas)

    def rank(replica: Replica) -> tuple[int, float]:
        return counts[replica.configuration_key, replica.configuration], -replica.configured_seconds

    return max((replica for replica in replicas if replica.configuration), key=rank, default=None)


def _mark(replica: Replica, usual: Replica | None) -> Configuration:
    is_comparable = usual is not None and replica.configuration_key == usual.configuration_key
    if usual is None or not is_comparable or not replica.configuration:
        return Configuration.UNKNOWN
    return Configuration.SAME if replica.configuration == usual.configuration else Configuration.OTHER


def _name(replica: Replica, hosts: Counter[str]) -> str:
    return f"{replica.host}/{replica.id[:4]}" if hosts[replica.host] > 1 else replica.host
