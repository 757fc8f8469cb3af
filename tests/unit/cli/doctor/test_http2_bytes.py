"""HTTP/2 goes out as it is written, and what comes back is followed to its end."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.cli.doctor.probe import Ground, Presents, Probe, request_frames_of
from ostiary.cli.doctor.traffic.http2_bytes import (
    DATA,
    END_STREAM,
    HEADERS,
    PREFACE,
    SETTINGS,
    SETTINGS_ACK,
    frames,
    is_over,
    request_frames,
    status_of,
    wants_ack,
)
from ostiary.model import Secret

TEXT = st.binary(max_size=400)


@given(st.lists(st.tuples(TEXT.filter(bool), TEXT), min_size=1, max_size=6), TEXT)
def test_a_decoder_reads_what_was_written(headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    data = request_frames(tuple(headers), body)
    assert data.startswith(PREFACE)
    sent = {kind: content for kind, _, _, content in frames(data.removeprefix(PREFACE))}
    decoded = hpack.Decoder(max_header_list_size=1 << 20).decode(sent[HEADERS], raw=True)
    assert [tuple(pair) for pair in decoded] == headers
    assert sent.get(DATA, b"") == body
    assert is_over(data.removeprefix(PREFACE))


@given(st.binary(max_size=200))
def test_any_bytes_can_be_followed(data: bytes) -> None:
    assert is_over(data) in (True, False)
    assert status_of(data) >= 0


@given(st.integers(0, 60))
def test_half_a_frame_is_waited_for(size: int) -> None:
    data = request_frames(((b":status", b"200"),), b"body").removeprefix(PREFACE)
    assert is_over(data[:size]) == (size >= len(data))


def test_settings_are_to_be_acknowledged_once() -> None:
    assert wants_ack(b"\0\0\0" + bytes([SETTINGS, 0]) + b"\0\0\0\0")
    assert not wants_ack(SETTINGS_ACK)


@pytest.mark.parametrize("before", [b"", b"\x20"])
def test_a_status_of_the_static_table_is_read(before: bytes) -> None:
    block = before + b"\x8c"
    data = len(block).to_bytes(3, "big") + bytes([HEADERS, END_STREAM]) + b"\0\0\0\1" + block
    assert (status_of(data), is_over(data)) == (400, True)


GROUND = Ground(host=b"shop.example", path=b"/x", claim=b"doctor-claim", token=Secret("a-token"))


def _headers(probe: Probe) -> list[tuple[bytes, bytes]]:
    data = request_frames_of(probe, GROUND, "run-0001").removeprefix(PREFACE)
    (block,) = [content for kind, _, _, content in frames(data) if kind == HEADERS]
    return [(bytes(name), bytes(value)) for name, value in hpack.Decoder().decode(block, raw=True)]


def test_what_a_probe_says_takes_the_place_of_what_a_plain_request_has() -> None:
    headers = _headers(Probe(label="", http2=((b":path", b"/other"), (b"x-remote-user", b"doctor-claim"))))
    assert headers == [
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":authority", b"shop.example"),
        (b":path", b"/other"),
        (b"doctor-probe", b"run-0001"),
        (b"authorization", b"Bearer a-token"),
        (b"x-remote-user", b"doctor-claim"),
    ]


def test_only_a_probe_that_presents_the_token_has_it() -> None:
    assert b"authorization" not in dict(_headers(Probe(label="", http2=(), presents=Presents.NONE)))
