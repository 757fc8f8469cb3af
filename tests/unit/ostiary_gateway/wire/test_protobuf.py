"""Reviews in the protobuf encoding, as kubectl 1.33 really sends them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary_gateway.wire.protobuf import ProtobufError, decode, encode

METADATA = b'\n\x10\n\x00\x12\x00\x1a\x00"\x00*\x002\x008\x00B\x00'
CAN_I_GET_PODS = (
    b"k8s\x00\n2\n\x17authorization.k8s.io/v1\x12\x17SelfSubjectAccessReview\x128" + METADATA +
    b'\x12\x1a\n\x18\n\x03dev\x12\x03get\x1a\x00"\x00*\x04pods2\x00:\x00'
    b'\x1a\x08\x08\x00\x12\x00\x1a\x00 \x00\x1a\x00"\x00'
)  # fmt: skip
CAN_I_GET_METRICS = (
    b"k8s\x00\n2\n\x17authorization.k8s.io/v1\x12\x17SelfSubjectAccessReview\x12/" + METADATA +
    b'\x12\x11\x12\x0f\n\x08/metrics\x12\x03get\x1a\x08\x08\x00\x12\x00\x1a\x00 \x00\x1a\x00"\x00'
)  # fmt: skip
CAN_I_LIST = (
    b"k8s\x00\n1\n\x17authorization.k8s.io/v1\x12\x16SelfSubjectRulesReview\x12\x1f" + METADATA +
    b'\x12\x05\n\x03dev\x1a\x04\x18\x00"\x00\x1a\x00"\x00'
)  # fmt: skip
WHOAMI = (
    b"k8s\x00\n-\n\x18authentication.k8s.io/v1\x12\x11SelfSubjectReview\x12\x1a" + METADATA +
    b'\x12\x06\n\x04\n\x00\x12\x00\x1a\x00"\x00'
)  # fmt: skip


def read(data: bytes) -> dict[str, Any]:
    """Without metadata and status, which nobody asks with."""
    value = decode(data, "")
    return {key: part for key, part in value.items() if key not in ("metadata", "status")}


def field(number: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes((number << 3 | 2, len(value))) + value


def review(raw: bytes, kind: bytes = b"SelfSubjectAccessReview") -> bytes:
    return b"k8s\x00" + field(1, field(1, b"authorization.k8s.io/v1") + field(2, kind)) + field(2, raw)


def test_what_kubectl_sends_is_read() -> None:
    assert read(CAN_I_GET_PODS) == {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"namespace": "dev", "verb": "get", "resource": "pods"}},
    }
    assert read(CAN_I_GET_METRICS)["spec"] == {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
    assert read(CAN_I_LIST)["spec"] == {"namespace": "dev"}
    assert read(WHOAMI) == {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}


def test_selectors_are_read() -> None:
    requirement = field(1, b"app") + field(2, b"In") + field(3, b"a") + field(3, b"b")
    selector = field(2, requirement) + field(2, field(1, b"x") + field(2, b"Exists"))
    asked = review(field(2, field(1, field(2, b"list") + field(9, selector))))
    assert read(asked)["spec"]["resourceAttributes"] == {
        "verb": "list",
        "labelSelector": {
            "requirements": [
                {"key": "app", "operator": "In", "values": ["a", "b"]},
                {"key": "x", "operator": "Exists"},
            ]
        },
    }


def test_unknown_fields_of_every_type_are_skipped() -> None:
    unknown = b"\x78\x96\x01" + b"\x79" + b"8bytes.." + b"\x7d" + b"4by." + field(14, b"x")
    assert read(review(unknown + field(2, b"")))["spec"] == {}


def test_what_is_no_review_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        b"",
        b"{}",
        b"k8s\x00\xff",
        review(field(2, b"")) + field(3, b"gzip"),
        review(field(2, b"") + field(2, b"")),
        review(b"\x10\x01"),
        review(field(2, field(1, field(1, b"\xff")))),
        review(b"\x13\x14"),
        review(b"\x12\x7f"),
        b"k8s\x00" + b"\xff" * 11,
        CAN_I_GET_PODS[:-30],
    ]
    for data in cases:
        with subtests.test(data=data), pytest.raises(ProtobufError):
            decode(data, "")


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_bytes_are_a_review_or_refused(data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from((CAN_I_GET_PODS, CAN_I_LIST, WHOAMI))))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtobufError):
        read(bytes(damaged))


def test_a_kind_that_is_not_said_is_the_one_that_is_expected() -> None:
    assert decode(b"k8s\x00" + field(2, field(2, field(1, b"dev"))), "SelfSubjectRulesReview") == {
        "spec": {"namespace": "dev"}
    }


@pytest.mark.parametrize("asked", [CAN_I_GET_PODS, CAN_I_GET_METRICS, CAN_I_LIST, WHOAMI])
def test_what_is_written_is_what_kubectl_writes(asked: bytes) -> None:
    assert encode(decode(asked, "")) == asked
