"""Handlers for tests of a client's connection: one that keeps the exchanges, one that answers at once."""

from __future__ import annotations

from ostiary_gateway.http1.exchange import Exchange

HOST = b"Host: gateway.test\r\n"
POST = b"POST /p HTTP/1.1\r\n" + HOST


class Held:
    """A handler that keeps the exchanges, for the test to answer; a responder that keeps what it is told."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.parts: list[bytes] = []
        self.told: list[str] = []

    def __call__(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)
        exchange.responder = self

    def body(self, data: bytes) -> None:
        self.parts.append(data)

    def body_end(self) -> None:
        self.told.append("end")

    def client_lost(self) -> None:
        self.told.append("lost")

    def client_full(self) -> None:
        self.told.append("full")

    def client_ready(self) -> None:
        self.told.append("ready")


def at_once(exchange: Exchange) -> None:
    """Answers without looking at the body, as a refusal does."""
    exchange.respond(401, [], b"who?")
