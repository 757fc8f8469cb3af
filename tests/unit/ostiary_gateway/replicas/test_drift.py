"""Replicas beside each other: which have another configuration, and which are silent."""

from __future__ import annotations

from ostiary_gateway.replicas.drift import Configuration, Heard, compare
from ostiary_gateway.replicas.replica import Replica

SAME, OTHER, UNKNOWN = Configuration.SAME, Configuration.OTHER, Configuration.UNKNOWN


def heard(host: str, configuration: str, *, key: str = "k", configured: float = 100.0, **more: float) -> Heard:
    replica = Replica(
        id=f"id of {host}",
        host=host,
        configuration=configuration,
        configuration_key=key,
        configured_seconds=configured,
        max_stale=5.0,
        confirmed_seconds=more.pop("confirmed", 0.0),
    )
    return Heard(replica, more.pop("silent", 0.0))


def marks(*all_heard: Heard) -> dict[str, Configuration]:
    return {row.name: row.configuration for row in compare(all_heard)}


def test_the_one_that_differs_from_most_is_marked() -> None:
    assert marks(heard("a", "x"), heard("b", "y"), heard("c", "x")) == {"a": SAME, "b": OTHER, "c": SAME}


def test_of_two_equally_frequent_configurations_the_one_that_was_loaded_last_counts() -> None:
    old, new = heard("a", "x", configured=100.0), heard("b", "y", configured=3.0)
    assert marks(old, new) == {"a": OTHER, "b": SAME}
    assert marks(new, old) == {"a": OTHER, "b": SAME}


def test_hashes_under_different_keys_are_not_compared() -> None:
    assert marks(heard("a", "x"), heard("b", "x"), heard("c", "y", key="new")) == {"a": SAME, "b": SAME, "c": UNKNOWN}


def test_a_replica_without_workers_has_no_configuration_to_compare() -> None:
    assert marks(heard("a", ""), heard("b", ""), heard("c", "x")) == {"a": UNKNOWN, "b": UNKNOWN, "c": SAME}
    assert marks(heard("a", "")) == {"a": UNKNOWN}


def test_two_replicas_on_one_host_are_told_apart() -> None:
    twins = [
        Heard(Replica(id="aaaa1", host="node", configuration="x", configuration_key="k")),
        Heard(Replica(id="bbbb2", host="node", configuration="x", configuration_key="k")),
    ]
    assert [row.name for row in compare(twins)] == ["node/aaaa", "node/bbbb"]


def test_they_are_listed_by_name() -> None:
    assert [row.name for row in compare([heard("b", "x"), heard("a", "x")])] == ["a", "b"]


def test_trouble_names_silence_before_all_else() -> None:
    (silent,) = compare([heard("a", "x", silent=12.0, confirmed=9.0)])
    assert silent.trouble == "silent for 12 s"
    (behind,) = compare([heard("a", "x", confirmed=9.0)])
    assert behind.trouble == "revocations are not confirmed"
    (good,) = compare([heard("a", "x")])
    assert (good.trouble, good.needs_attention) == ("", False)
