"""Writes that are gathered: in order, together, and never later than what comes after them."""

from __future__ import annotations

import asyncio
from typing import cast

from ostiary_gateway.http1.write_coalescer import LARGE_PART, MOST_PARTS, Outbox, OutgoingTransport


class Inner:
    """A transport that keeps what it is told."""

    def __init__(self, told: list[str | bytes]) -> None:
        self.told = told
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.told.append(data)

    def close(self) -> None:
        self.closing = True
        self.told.append("closed")

    def abort(self) -> None:
        self.closing = True
        self.told.append("aborted")

    def get_write_buffer_size(self) -> int:
        return 0


def outgoing(inner: Inner, outbox: Outbox) -> OutgoingTransport:
    return OutgoingTransport(cast("asyncio.Transport", inner), outbox)


def made(told: list[str | bytes], outbox: Outbox | None = None) -> tuple[OutgoingTransport, Inner]:
    inner = Inner(told)
    return outgoing(inner, outbox or Outbox(asyncio.get_running_loop())), inner


async def test_what_one_turn_writes_leaves_at_its_end_in_order() -> None:
    told: list[str | bytes] = []
    outbox = Outbox(asyncio.get_running_loop())
    first, _ = made(told, outbox)
    second, _ = made(told, outbox)
    first.write(b"1")
    second.write(b"a")
    first.write(b"2")
    assert told == []
    assert first.get_write_buffer_size() == 2
    await asyncio.sleep(0)
    assert told == [b"12", b"a"]
    first.write(b"3")
    await asyncio.sleep(0)
    assert told == [b"12", b"a", b"3"]
    assert first.get_write_buffer_size() == 0


async def test_much_leaves_at_once_and_after_what_was_before() -> None:
    told: list[str | bytes] = []
    transport, _ = made(told)
    transport.write(b"head")
    transport.write(b"x" * LARGE_PART)
    assert told == [b"head" + b"x" * LARGE_PART]
    transport.writelines([b"y"] * (MOST_PARTS + 1))
    assert told[1:] == [b"y" * (MOST_PARTS + 1)]
    await asyncio.sleep(0)
    assert len(told) == 2


async def test_closing_comes_after_what_was_written() -> None:
    told: list[str | bytes] = []
    transport, _ = made(told)
    transport.write(b"bye")
    transport.close()
    assert told == [b"bye", "closed"]
    await asyncio.sleep(0)
    assert told == [b"bye", "closed"]


async def test_aborting_overtakes() -> None:
    told: list[str | bytes] = []
    transport, _ = made(told)
    transport.write(b"never mind")
    transport.abort()
    await asyncio.sleep(0)
    assert told == ["aborted"]


async def test_who_is_gone_gets_nothing() -> None:
    told: list[str | bytes] = []
    transport, inner = made(told)
    transport.write(b"too late")
    inner.closing = True
    await asyncio.sleep(0)
    assert told == []


async def test_one_that_cannot_be_written_to_does_not_hold_up_the_others() -> None:
    class Broken(Inner):
        def write(self, data: bytes) -> None:
            raise RuntimeError("the handle is closed")

    told: list[str | bytes] = []
    outbox = Outbox(asyncio.get_running_loop())
    outgoing(Broken(told), outbox).write(b"1")
    made(told, outbox)[0].write(b"2")
    await asyncio.sleep(0)
    assert told == ["aborted", b"2"]
