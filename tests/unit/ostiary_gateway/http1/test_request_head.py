"""Heads that came before: the same bytes are read once, and nothing else is taken for the same."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import cast

import pytest

from ostiary_gateway.http1.exchange import Exchange
from ostiary_gateway.http1.request_head import (
    KNOWN_BYTES,
    KNOWN_BYTES_PER_OWNER,
    LONGEST_KNOWN,
    KnownHeads,
    RequestHead,
    ServerLimits,
)
from ostiary_gateway.http1.server_connection import Server, ServerConnection
from tests.support.bounded import bytes_of_owner
from tests.support.http1 import chunked, get


class Wire:
    """A transport that keeps what is written to it."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def get_extra_info(self, name: str) -> object:
        return ("192.0.2.1", 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


_NOW = {"time": staticmethod(lambda: 0.0), "call_soon": staticmethod(lambda work: work())}
AT_ONCE = cast("asyncio.AbstractEventLoop", type("Loop", (), _NOW)())


class Site:
    """Connections that share what they know. Each request is wanted again, and answered with its body."""

    def __init__(self, *, wanted: bool = True, limits: ServerLimits | None = None) -> None:
        self.wanted = wanted
        self.limits = limits or ServerLimits()
        # Nothing waits for a turn of the loop: what is written is there at once.
        self.server = Server(self.handle, self.limits, AT_ONCE)
        self.known = self.server.known
        self.exchanges: list[Exchange] = []
        self.bodies: list[bytes] = []

    def connect(self) -> tuple[ServerConnection, Wire]:
        self.server.limits = self.limits
        connection, wire = self.server.connection(), Wire()
        connection.connection_made(cast("asyncio.Transport", wire))
        return connection, wire

    def handle(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        if self.wanted:
            exchange.request.known = "wanted"
        exchange.accept_body(Answering(self, exchange))

    @property
    def heads(self) -> list[RequestHead]:
        return [exchange.request for exchange in self.exchanges]


class Answering:
    """Takes a body, and answers when it is whole."""

    def __init__(self, site: Site, exchange: Exchange) -> None:
        self.site, self.exchange, self.parts = site, exchange, b""

    def body(self, data: bytes) -> None:
        self.parts += data

    def body_end(self) -> None:
        self.site.bodies.append(self.parts)
        self.exchange.respond(200, [], self.parts)

    def client_lost(self) -> None: ...

    def client_full(self) -> None: ...

    def client_ready(self) -> None: ...


async def test_the_same_bytes_are_read_once_by_all_connections() -> None:
    site = Site()
    for _ in range(3):
        connection, wire = site.connect()
        connection.data_received(get("/a", "Accept: text/plain"))
        connection.data_received(get("/a", "Accept: text/plain"))
        assert wire.written.count(b"HTTP/1.1 200 OK") == 2
    assert len({id(head) for head in site.heads}) == 1
    assert len({id(exchange) for exchange in site.exchanges}) == 6


async def test_a_head_is_known_with_another_body() -> None:
    site = Site()
    connection, _ = site.connect()
    for body in (b"one", b"two", b"six"):
        connection.data_received(get("/a", method="POST", body=body))
    assert site.bodies == [b"one", b"two", b"six"]
    assert len({id(head) for head in site.heads}) == 1


async def test_a_known_head_whose_body_comes_in_parts_is_parsed() -> None:
    site = Site()
    connection, _ = site.connect()
    whole = get("/a", method="POST", body=b"hello")
    connection.data_received(whole)
    connection.data_received(whole[:-2])
    assert len(site.bodies) == 1
    connection.data_received(b"lo")
    connection.data_received(whole + get("/b"))
    assert site.bodies == [b"hello", b"hello", b"hello", b""]
    assert [head.target for head in site.heads] == [b"/a", b"/a", b"/a", b"/b"]


async def test_nothing_is_kept_that_nobody_wants() -> None:
    site = Site(wanted=False)
    connection, _ = site.connect()
    connection.data_received(get("/a"))
    assert len(site.known) == 0


NOT_KEPT = {
    "chunks": get("/a", "Transfer-Encoding: chunked", method="POST") + chunked(b"hi"),
    "an expectation": get("/a", "Expect: 100-continue", method="POST", body=b"hi"),
    "the end of the connection": get("/a", "Connection: close"),
    "HTTP/1.0": b"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "another protocol": get("/a", "Connection: Upgrade", "Upgrade: websocket"),
    "a protocol that is not served": get("/a", "Connection: Upgrade", "Upgrade: h2c"),
    "empty lines before it": b"\r\n\r\n" + get("/a"),
    "two requests": get("/a") + get("/a"),
    "too long": get("/" + "a" * LONGEST_KNOWN),
}


async def test_only_plain_heads_are_kept(subtests: pytest.Subtests) -> None:
    for case, data in NOT_KEPT.items():
        with subtests.test(case):
            site = Site()
            connection, _ = site.connect()
            connection.data_received(data)
            assert site.exchanges
            assert len(site.known) == 0


async def test_a_head_that_came_in_parts_is_not_kept() -> None:
    site = Site()
    connection, _ = site.connect()
    data = get("/a")
    connection.data_received(data[:9])
    connection.data_received(data[9:])
    assert len(site.exchanges) == 1
    assert len(site.known) == 0


async def test_the_largest_body_is_the_connections_own_limit() -> None:
    site = Site()
    connection, _ = site.connect()
    data = get("/a", method="POST", body=b"hello")
    connection.data_received(data)
    site.limits = ServerLimits(body_bytes=4)
    connection, wire = site.connect()
    connection.data_received(data)
    assert wire.written.startswith(b"HTTP/1.1 413 ")


def wanted_by(owner: str, size: int) -> RequestHead:
    head = RequestHead()
    head.known, head.known_owner, head.known_size = "wanted", owner, size
    return head


async def test_no_more_are_kept_than_there_is_room_for_and_nobody_fills_it_alone() -> None:
    """T2."""
    known = KnownHeads()
    known.keep(b"GET /jane HTTP/1.1\r\n\r\n", wanted_by("jane", 10_000))
    for number in range(1000):
        known.keep(b"GET /%d HTTP/1.1\r\n\r\n" % number, wanted_by("mallory", 10_000))
    assert bytes_of_owner(known._heads, "mallory") <= KNOWN_BYTES_PER_OWNER
    assert 300 < len(known) < 400
    assert known.find(sha256(b"GET /jane HTTP/1.1\r\n\r\n").digest()) is not None
    for number in range(10_000):
        known.keep(b"GET /%d HTTP/1.1\r\n\r\n" % number, wanted_by(str(number), 10_000))
    assert known._heads.held <= KNOWN_BYTES


async def test_a_token_is_not_among_what_is_kept() -> None:
    site = Site()
    connection, _ = site.connect()
    connection.data_received(get("/a", "Authorization: Bearer ost_secret"))
    kept = list(site.known._heads)
    assert len(kept) == 1
    assert b"secret" not in kept[0]
