"""What all replicas look like beside each other: which have another configuration, which are silent. Pure.

Called by `replicas.registry` for the log and the metrics, and by those who show the replicas.
"""

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
    """A replica among the others. `name` is its host, with its id where two have the same.

    `silent_seconds` is how long it has written nothing, beyond the time in which it should have.
    """

    replica: Replica
    name: str
    configuration: Configuration
    silent_seconds: float = 0.0

    @property
    def trouble(self) -> str:
        """What is wrong with it, empty if nothing is."""
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
    """A replica, and for how long it has not been heard of."""

    replica: Replica
    silent_seconds: float = 0.0


def compare(heard: Sequence[Heard]) -> list[SeenReplica]:
    """All replicas by name, each compared with the configuration that most of them have.

    If two configurations are equally frequent, the one that was loaded last counts: an update is on its way.
    """
    hosts = Counter(each.replica.host for each in heard)
    usual = _usual([each.replica for each in heard])
    rows = [
        SeenReplica(each.replica, _name(each.replica, hosts), _mark(each.replica, usual), each.silent_seconds)
        for each in heard
    ]
    return sorted(rows, key=lambda row: (row.name, row.replica.id))


def _usual(replicas: Sequence[Replica]) -> Replica | None:
    """One of the replicas that have the configuration of most."""
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
