"""Envoy's messages of external authorization: our reader and writer beside the real runtime of protobuf."""

from __future__ import annotations

import string
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.wire.envoy_check import allowing_response, check_request, denying_response, header_map
from ostiary_gateway.wire.protobuf import ProtobufError, bytes_field, number_field
from tests.support import envoy_messages

NAMES = st.text(string.ascii_lowercase + "-:", min_size=1, max_size=20)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
PAIRS = st.lists(st.tuples(NAMES, st.binary(max_size=300)), max_size=8)
ANSWERED = st.lists(st.tuples(NAMES, TEXTS), max_size=8)


@given(headers=PAIRS, context=st.dictionaries(TEXTS, TEXTS, max_size=4), address=TEXTS)
def test_what_envoy_writes_is_read_byte_for_byte(
    headers: list[tuple[str, bytes]], context: dict[str, str], address: str
) -> None:
    request = check_request(envoy_messages.check_request(headers, context=context, address=address))
    assert header_map(request.headers) == [(name.encode(), value) for name, value in headers]
    assert request.context == {key.encode(): value.encode() for key, value in context.items()}
    assert request.address == address.encode()


@given(headers=ANSWERED, removed=st.lists(NAMES, max_size=4))
def test_an_allowing_answer_is_one_to_the_real_runtime(headers: list[tuple[str, str]], removed: list[str]) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers]
    answer = envoy_messages.check_response(allowing_response(pairs, [name.encode() for name in removed]))
    assert answer.HasField("status")
    assert answer.status.code == 0
    assert answer.HasField("ok_response")
    assert not answer.HasField("denied_response")
    assert [(each.header.key, each.header.value) for each in answer.ok_response.headers] == headers
    # Each takes the place of the client's, also in an Envoy for which appending is the default.
    assert {each.append_action for each in answer.ok_response.headers} <= {2}
    assert not any(each.HasField("append") for each in answer.ok_response.headers)
    assert list(answer.ok_response.headers_to_remove) == removed


@given(status=st.integers(200, 599), headers=ANSWERED, body=TEXTS)
def test_a_denying_answer_is_one_to_the_real_runtime(status: int, headers: list[tuple[str, str]], body: str) -> None:
    pairs = [(name.encode(), value.encode()) for name, value in headers]
    answer = envoy_messages.check_response(denying_response(status, pairs, body.encode()))
    assert answer.status.code != 0
    assert not answer.HasField("ok_response")
    assert (answer.denied_response.status.code, answer.denied_response.body) == (status, body)
    assert [(each.header.key, each.header.value) for each in answer.denied_response.headers] == headers


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(ProtobufError):
        header_map(check_request(data).headers)


@given(data=st.data())
def test_a_message_with_a_changed_byte_is_read_or_refused(data: st.DataObject) -> None:
    message = bytearray(envoy_messages.check_request([(":path", b"/x"), (":method", b"GET")], context={"a": "b"}))
    message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtobufError):
        header_map(check_request(bytes(message)).headers)


def test_what_readers_would_merge_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        bytes_field(4, b"") * 2,
        bytes_field(1, b"") * 2,
        bytes_field(4, bytes_field(2, b"") * 2),
        bytes_field(4, bytes_field(2, bytes_field(13, b"") * 2)),
        bytes_field(10, bytes_field(1, b"door") + bytes_field(2, b"x")) * 2,
        bytes_field(10, bytes_field(1, b"door") * 2),
        bytes_field(1, bytes_field(1, bytes_field(1, bytes_field(2, b"192.0.2.1") * 2))),
    ]
    for attributes in cases:
        with subtests.test(attributes=attributes), pytest.raises(ProtobufError, match="twice"):
            check_request(bytes_field(1, attributes))


def test_a_number_in_the_place_of_a_message_is_refused() -> None:
    with pytest.raises(ProtobufError):
        check_request(number_field(1, 5))


def test_an_empty_message_says_nothing() -> None:
    request = check_request(b"")
    assert (request.headers, request.address, dict(request.context)) == (b"", b"", {})
