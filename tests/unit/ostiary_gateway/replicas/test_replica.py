"""A replica is read as it was written, and what another version writes does no harm."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from ostiary_gateway.replicas.replica import Replica, ReplicaIdentity, decode_replica, encode_replica, replica_from_json

ONE = Replica(id="a1", host="node-a", pid=7, version="1", revocation=4, confirmed_seconds=0.5, max_stale=5.0)


def test_a_replica_is_read_as_it_was_written() -> None:
    assert decode_replica(encode_replica(ONE)) == ONE
    assert decode_replica(encode_replica(replace(ONE, revocation=None))) == replace(ONE, revocation=None)


def test_fields_of_a_newer_version_are_left_out_and_missing_ones_have_their_default() -> None:
    assert replica_from_json({"id": "a1", "colour": "red"}) == Replica(id="a1")


def test_what_is_no_replica_is_none(subtests: pytest.Subtests) -> None:
    cases = [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"id": 1}',
        b'{"id": "a", "pid": "x"}',
        b'{"id": "a", "pid": true}',
        b'{"id": "a", "trouble": null}',
    ]
    for data in cases:
        with subtests.test(data=data):
            assert decode_replica(data) is None


def test_json_that_lost_the_point_of_a_number_is_still_read() -> None:
    fields = {**asdict(ONE), "max_stale": 5}
    assert replica_from_json(json.loads(json.dumps(fields))) == ONE


def test_a_replica_that_is_started_again_is_another_one() -> None:
    assert ReplicaIdentity.of_this_process().id != ReplicaIdentity.of_this_process().id


def test_it_is_behind_when_no_confirmation_came_for_longer_than_max_stale() -> None:
    assert not replace(ONE, confirmed_seconds=5.0).is_behind
    assert replace(ONE, confirmed_seconds=5.1).is_behind
