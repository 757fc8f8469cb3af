"""An answer of our own as a Kubernetes Status, or none if nobody is there to read it."""

from __future__ import annotations

from ostiary.wire.status import Answer
from ostiary_gateway.proxy.context import RequestContext
from ostiary_gateway.proxy.responses import send_status
from tests.support.http1 import connected, get, listening, until
from tests.support.http1_server import Held

ANSWER = Answer(403, b'{"kind":"Status"}\n')


async def test_the_answer_has_the_id_of_its_request_and_the_headers_that_are_given() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(get())
        await until(lambda: bool(held.exchanges))
        ctx = RequestContext(held.exchanges[0], 0.0, "an-id")
        assert send_status(ctx, ANSWER, (b"Retry-After", b"3"), (b"X-One", b"1")) == 403
        answer = await client.answer()
        assert (answer.status, answer.body) == ANSWER
        assert answer.one("Audit-Id") == b"an-id"
        assert answer.one("Content-Type") == b"application/json"
        assert (answer.one("Retry-After"), answer.one("X-One")) == (b"3", b"1")


async def test_nothing_is_sent_to_a_client_that_is_gone() -> None:
    held = Held()
    async with listening(held) as listener, connected(listener.port) as client:
        client.send(get())
        await until(lambda: bool(held.exchanges))
        client.reset()
        await until(lambda: held.exchanges[0].gone)
        assert send_status(RequestContext(held.exchanges[0], 0.0, "an-id"), ANSWER) == 0
