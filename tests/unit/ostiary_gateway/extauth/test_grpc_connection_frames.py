"""How a connection's bytes are cut into frames."""

from __future__ import annotations

import pytest

from ostiary_gateway.extauth.grpc_connection import Frames

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
PING = b"\0\0\x08\x06\0\0\0\0\0" + b"12345678"
LARGE = b"\0\x40\0\0\0\0\0\0\1" + b"x" * 0x4000


def test_so_many_frames_are_taken_and_no_byte_is_lost() -> None:
    frames = Frames()
    data = PREFACE + PING * 10 + LARGE
    frames.add(data)
    assert frames.take(1) == PREFACE
    assert frames.take(3) == PING * 3
    rest = b""
    while frames.has_more:
        rest += frames.take(4)
    assert rest == PING * 7 + LARGE
    assert frames.control == 10


@pytest.mark.parametrize("size", [1, 2, 9, 17, 1000])
def test_it_does_not_matter_how_the_bytes_arrive(size: int) -> None:
    frames, taken = Frames(), b""
    data = PREFACE + LARGE + PING * 3 + LARGE
    for start in range(0, len(data), size):
        frames.add(data[start : start + size])
        while frames.has_more:
            taken += frames.take(2)
        # Of a frame no more is kept than a part of its head.
        assert frames.size < 9
    assert taken == data
    assert frames.control == 3
