"""SPOP as bytes: what is written is read again, and what is cut off or foreign is refused."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.extauth.haproxy import spop

NUMBERS = st.integers(0, 2**64 - 1)
# As HAProxy 2.6 writes them.
GOLDEN = {0: b"\x00", 239: b"\xef", 240: b"\xf0\x00", 2287: b"\xff\x7f", 2288: b"\xf0\x80\x00", 264431: b"\xff\xff\x7f"}


def test_numbers_have_the_bytes_of_the_specification(subtests: pytest.Subtests) -> None:
    for number, data in GOLDEN.items():
        with subtests.test(number=number, data=data):
            assert spop.number(number) == data
            assert spop.read_number(data, 0) == (number, len(data))


@given(NUMBERS, st.binary(max_size=8))
def test_a_number_is_read_as_it_was_written_and_what_follows_is_left(number: int, rest: bytes) -> None:
    data = spop.number(number)
    assert spop.read_number(data + rest, 0) == (number, len(data))
    if len(data) > 1:
        with pytest.raises(spop.SpopError):
            spop.read_number(data[:-1], 0)


@given(st.dictionaries(st.binary(max_size=20), st.one_of(st.binary(max_size=300), NUMBERS), max_size=20))
def test_names_with_values_are_read_as_they_were_written(values: dict[bytes, bytes | int]) -> None:
    typed = {
        name: spop.string(value) if isinstance(value, bytes) else spop.uint32(value) for name, value in values.items()
    }
    data = spop.pairs(typed)
    assert spop.read_pairs(data, 0) == (values, len(data))


def test_typed_values(subtests: pytest.Subtests) -> None:
    cases: list[tuple[bytes, spop.Value]] = [
        (b"\x00", None),
        (b"\x01", False),
        (b"\x11", True),
        (b"\x06\x7f\x00\x00\x01", IPv4Address("127.0.0.1")),
        (b"\x07" + b"\x00" * 15 + b"\x01", IPv6Address("::1")),
        (b"\x09\x02ab", b"ab"),
    ]
    for data, value in cases:
        with subtests.test(data=data, value=value):
            assert spop.read_value(data, 0) == (value, len(data))
            for end in range(len(data)):
                with pytest.raises(spop.SpopError):
                    spop.read_value(data[:end], 0)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",
        b"\x0f\x00",
        b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x03\xf0" + b"\xff" * 20,
        b"\x08\x05abc",
    ],
)
def test_what_has_no_type_or_no_end_is_refused(data: bytes) -> None:
    with pytest.raises(spop.SpopError):
        spop.read_value(data, 0)


def test_messages_with_too_much_in_them_are_refused() -> None:
    many = b"".join(spop.text(b"%d" % number) + b"\x00" for number in range(40))
    for payload in (spop.text(b"m") + b"\x28" + many, (spop.text(b"m") + b"\x00") * 5, spop.text(b"m")):
        with pytest.raises(spop.SpopError):
            spop.read_messages(payload)
    twice = spop.pairs({b"a": b"\x00"}) * 2
    with pytest.raises(spop.SpopError):
        spop.read_messages(spop.text(b"m") + b"\x02" + twice)


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=20), st.binary(max_size=50)), max_size=20))
def test_headers_are_read_as_haproxy_writes_them(headers: list[tuple[bytes, bytes]]) -> None:
    data = b"".join(spop.text(name) + spop.text(value) for name, value in headers) + b"\x00\x00"
    assert spop.read_headers(data) == headers
    with pytest.raises(spop.SpopError):
        spop.read_headers(data[:-1])
    with pytest.raises(spop.SpopError):
        spop.read_headers(data + b"x")


@given(NUMBERS, NUMBERS, st.binary(max_size=100))
def test_a_frame_says_its_length_and_its_numbers(stream: int, number: int, payload: bytes) -> None:
    frame = spop.frame(spop.ACK, stream, number, payload)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert (frame[4], frame[8]) == (spop.ACK, spop.FIN)
    read_stream, at = spop.read_number(frame, 9)
    read_number, at = spop.read_number(frame, at)
    assert (read_stream, read_number, frame[at:]) == (stream, number, payload)


def test_frames_have_the_numbers_of_the_specification() -> None:
    kinds = (spop.HAPROXY_HELLO, spop.HAPROXY_DISCONNECT, spop.NOTIFY)
    assert [spop.frame(kind, 0, 0, b"")[4] for kind in kinds] == [1, 2, 3]
    kinds = (spop.AGENT_HELLO, spop.AGENT_DISCONNECT, spop.ACK)
    assert [spop.frame(kind, 0, 0, b"")[4] for kind in kinds] == [101, 102, 103]
