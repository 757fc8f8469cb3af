"""HTTP/2 and gRPC as far as one method needs them: what is answered, and what is bounded."""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
import trustme
from h2.settings import SettingCodes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostiary_gateway.extauth import grpc_connection as kept_bytes
from ostiary_gateway.extauth.grpc import (
    DEADLINE_EXCEEDED,
    INVALID_ARGUMENT,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    Call,
    framed,
)
from ostiary_gateway.extauth.grpc_connection import (
    FRAMES_PER_TURN,
    MOST_CALLS,
    MOST_CONTROL_FRAMES,
    MOST_KEPT,
    MOST_METADATA_BYTES,
    MOST_TAKEN_BACK,
    CheckConnection,
    CheckServer,
    largest_message,
)
from ostiary_gateway.http1.headers import NO_DIGEST
from ostiary_gateway.http1.request_head import ServerLimits
from ostiary_gateway.sessions import digest
from tests.support.check_client import check_client
from tests.support.http1 import until
from tests.support.http_server import server_context

LIMITS = ServerLimits()
ENHANCE_YOUR_CALM, REFUSED_STREAM = 11, 7


@dataclass
class Served:
    """A server that answers every call with its own message, or keeps it while `holds` is set."""

    port: int = 0
    holds: bool = False
    answer: bytes | None = None
    calls: list[Call] = field(default_factory=list)
    server: CheckServer = field(init=False)

    def handle(self, call: Call) -> None:
        self.calls.append(call)
        if not self.holds:
            call.answer(call.message if self.answer is None else self.answer)

    @property
    def connection(self) -> CheckConnection:
        (connection,) = self.server.connections
        return connection


@asynccontextmanager
async def serving(limits: ServerLimits = LIMITS, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    served, loop = Served(), asyncio.get_running_loop()
    served.server = CheckServer(served.handle, limits, loop)
    server = await loop.create_server(served.server.connection, "127.0.0.1", 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        for connection in list(served.server.connections):
            connection.transport.abort()


async def test_a_call_gets_its_answer_and_shows_the_digest_of_its_secret() -> None:
    async with serving() as served, check_client(served.port) as client:
        for message in (b"question", b"", b"x" * 40_000):
            outcome = await client.check(message, secret="s3cret")
            assert (outcome.status, outcome.message) == (0, message)
            assert outcome.headers["content-type"] == "application/grpc"
        await client.check(b"question")
    assert [call.secret for call in served.calls[2:]] == [digest(b"s3cret"), NO_DIGEST]


async def test_many_calls_at_once_are_answered_in_any_order() -> None:
    async with serving() as served, check_client(served.port) as client:
        served.holds = True
        streams = [client.begin() for _ in range(50)]
        for stream in reversed(streams):
            client.send(stream, framed(b"%d" % stream))
        await until(lambda: len(served.calls) == 50)
        random.Random(5).shuffle(served.calls)
        for call in served.calls:
            call.answer(call.message)
        for stream in streams:
            assert (await client.outcome(stream)).message == b"%d" % stream
        assert not served.connection.busy


async def test_another_method_and_what_is_no_call_are_refused_and_the_connection_goes_on() -> None:
    async with serving() as served, check_client(served.port) as client:
        outcome = await client.check(b"", path="/envoy.service.auth.v2.Authorization/Check")
        assert outcome.status == UNIMPLEMENTED
        stream = client.begin(content_type="application/json")
        assert (await client.outcome(stream)).status == INVALID_ARGUMENT
        assert (await client.check(b"still there")).message == b"still there"
    assert len(served.calls) == 1


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", INVALID_ARGUMENT),
        (b"\0\0\0", INVALID_ARGUMENT),
        (b"\0\0\0\0\5four", INVALID_ARGUMENT),
        (framed(b"one") + framed(b"two"), INVALID_ARGUMENT),
        (b"\1\0\0\0\4four", UNIMPLEMENTED),
    ],
)
async def test_a_call_has_exactly_one_message_that_is_not_compressed(data: bytes, status: int) -> None:
    async with serving() as served, check_client(served.port) as client:
        stream = client.begin()
        client.send(stream, data)
        assert (await client.outcome(stream)).status == status
        assert (await client.check(b"still there")).message == b"still there"


async def test_a_message_that_is_too_large_is_refused_before_all_of_it_has_come() -> None:
    async with serving(ServerLimits(head_bytes=1024)) as served, check_client(served.port) as client:
        stream = client.begin()
        client.send(stream, b"x" * (largest_message(served.server.limits) + 1), end=False)
        outcome = await client.outcome(stream)
        assert (outcome.status, outcome.ended) == (RESOURCE_EXHAUSTED, True)
        assert not served.connection.busy
        assert (await client.check(b"still there")).message == b"still there"


async def test_a_call_shows_the_certificate_of_its_client(ca: trustme.CA) -> None:
    leaf, told = ca.issue_cert("envoy.example"), server_context(ca, "localhost", client_certificates=ssl.CERT_OPTIONAL)
    client_context = ssl.create_default_context(cadata=ca.cert_pem.bytes().decode())
    for with_certificate in (False, True):
        if with_certificate:
            leaf.configure_cert(client_context)
        async with serving(tls=told) as served, check_client(served.port, client_context) as client:
            await client.check(b"question")
            der = ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
            assert served.connection.peer_certificate == (der if with_certificate else None)


async def test_metadata_is_bounded() -> None:
    async with serving() as served, check_client(served.port) as client:
        client.begin(metadata=[("x", "v" * (MOST_METADATA_BYTES + 1))])
        await client.until_closed()
        assert not served.calls


async def test_calls_at_a_time_are_bounded() -> None:
    async with serving() as served, check_client(served.port) as client:
        await client.check(b"")
        assert client.http.remote_settings.max_concurrent_streams == MOST_CALLS
        # A client that does not keep to it.
        client.http.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 10 * MOST_CALLS
        client.http.remote_settings.acknowledge()
        for _ in range(MOST_CALLS + 1):
            client.begin()
        await client.until_closed()
        assert client.goodbye not in (None, 0)


async def test_halves_of_messages_are_bounded_in_all() -> None:
    async with serving() as served, check_client(served.port) as client:
        await client.check(b"")
        for _ in range(MOST_KEPT // 60_000 + 5):
            if client.goodbye is None:
                await client.send_with_room(client.begin(), b"x" * 60_000, end=False)
        await client.until_closed()
        assert client.goodbye == ENHANCE_YOUR_CALM


async def test_what_is_kept_is_given_back_and_bounded_over_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_bytes, "MOST_KEPT_IN_ALL", 100_000)
    async with serving() as served, check_client(served.port) as first:
        await first.send_with_room(first.begin(), b"x" * 60_000, end=False)
        await until(lambda: served.server.kept.size > 60_000)
        async with check_client(served.port) as second:
            for _ in range(2):
                await second.send_with_room(second.begin(), b"x" * 60_000, end=False)
            await second.until_closed()
            assert second.goodbye == ENHANCE_YOUR_CALM
        # The first one has done nothing wrong, and goes on.
        assert (await first.check(b"x")).message == b"x"
        first.http.reset_stream(1)
        assert (await first.check(b"x")).message == b"x"
        await until(lambda: served.server.kept.size == 0)


async def test_who_begins_calls_and_takes_them_back_is_sent_away() -> None:
    async with serving() as served, check_client(served.port) as client:
        served.holds = True
        for _ in range(MOST_TAKEN_BACK + 1):
            stream = client.begin()
            client.http.reset_stream(stream)
        client.flush()
        await client.until_closed()
        assert client.goodbye == ENHANCE_YOUR_CALM


async def test_an_envoy_whose_clients_leave_now_and_then_stays() -> None:
    async with serving() as served, check_client(served.port) as client:
        for _ in range(2 * MOST_TAKEN_BACK):
            client.http.reset_stream(client.begin())
            assert (await client.check(b"x")).message == b"x"


async def test_a_call_that_was_taken_back_is_not_answered() -> None:
    async with serving() as served, check_client(served.port) as client:
        served.holds = True
        stream = client.begin()
        client.send(stream, framed(b"x"))
        await until(lambda: bool(served.calls))
        client.http.reset_stream(stream)
        client.flush()
        await until(lambda: served.calls[0].ended)
        served.calls[0].answer(b"too late")
        served.holds = False
        assert (await client.check(b"next")).message == b"next"


async def test_an_answer_waits_for_room_at_the_other_side() -> None:
    async with serving() as served, check_client(served.port) as client:
        served.answer = b"a" * 200_000
        stream = client.begin()
        # The client has room for no more than 65,535 bytes until it has taken what came.
        client.send(stream, framed(b"x"))
        outcome = await client.outcome(stream)
        assert (outcome.status, outcome.message) == (0, served.answer)


async def test_answers_that_nobody_takes_are_bounded() -> None:
    async with serving() as served, check_client(served.port) as client:
        served.answer = b"a" * (MOST_KEPT // 4)
        for _ in range(6):
            client.send(client.begin(), framed(b"x"))
        # It reads, but gives no room for more.
        client.http.acknowledge_received_data = lambda size, stream: None  # type: ignore[method-assign,assignment]
        await client.until_closed()
        assert client.goodbye == ENHANCE_YOUR_CALM


async def test_a_draining_connection_finishes_its_calls_and_takes_no_more() -> None:
    async with serving() as served, check_client(served.port) as client:
        served.holds = True
        first = client.begin()
        client.send(first, framed(b"first"))
        await until(lambda: bool(served.calls))
        client.goes_on = True
        served.connection.drain()
        # Sent before the client could know.
        second = client.begin()
        client.send(second, framed(b"second"))
        connection = served.connection
        await until(lambda: connection._http.highest_inbound_stream_id == second)
        served.calls[0].answer(b"done")
        await client.until_closed()
        assert (client.calls[first].message, client.goodbye) == (b"done", 0)
        assert client.calls[second].reset == REFUSED_STREAM
        assert len(served.calls) == 1


async def test_half_a_call_times_out_and_a_connection_without_calls() -> None:
    # No time at all for a call: as if it had passed.
    limits = ServerLimits(head_timeout=0.0, idle_timeout=300.0)
    async with serving(limits) as served, check_client(served.port) as client:
        now = asyncio.get_running_loop().time
        await client.check(b"x")
        assert now() + 200 < served.connection.deadline <= now() + 300
        half = client.begin()
        client.send(half, b"\0\0", end=False)
        await until(lambda: served.connection.deadline <= now())
        served.connection.time_out()
        assert (await client.outcome(half)).status == DEADLINE_EXCEEDED
        # The others go on.
        assert (await client.check(b"still there")).message == b"still there"
        served.connection.time_out()
        await client.until_closed()
        assert client.goodbye == 0


async def test_metadata_in_many_frames_without_an_end_is_bounded() -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        size = (16_000).to_bytes(3, "big")
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0" + b"\0\0\0\1\0\0\0\0\1")
        with suppress(ConnectionError):
            for _ in range(60):
                writer.write(size + b"\x09\0\0\0\0\1" + b"x" * 16_000)
                await writer.drain()
            async with asyncio.timeout(30):
                while await reader.read(4096):
                    pass
        assert reader.at_eof() or reader.exception() is not None
        assert not served.calls
        writer.close()
        await until(lambda: not served.server.connections)
        assert served.server.kept.size == 0


async def test_connections_are_bounded() -> None:
    async with serving(ServerLimits(connections=1)) as served, check_client(served.port) as client:
        assert (await client.check(b"x")).status == 0
        async with check_client(served.port) as another:
            await another.until_closed()
        assert (await client.check(b"x")).status == 0


async def test_what_is_no_http_2_is_cut_off() -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(30):
            while await reader.read(4096):
                pass
        writer.close()
        assert not served.calls


FRAMES = st.tuples(st.integers(0, 12), st.integers(0, 255), st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]), st.binary())
SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@SETTINGS
@given(frames=st.lists(FRAMES, max_size=12), raw=st.binary(max_size=64))
def test_any_frames_are_answered_or_end_the_connection(
    frames: list[tuple[int, int, int, bytes]], raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    data = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    for kind, flags, stream, payload in frames:
        data += len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    asyncio.run(_throw(data + raw))
    # Nothing of it was a failure of ours.
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def _throw(data: bytes) -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(30):
            try:
                while await reader.read(4096):
                    pass
            except ConnectionError:
                pass
        writer.close()
        async with check_client(served.port) as client:
            assert (await client.check(b"still there")).message == b"still there"


# --- floods ---


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


CONTROL = {
    "PING": frame(6, b"12345678"),
    "acknowledged PING": frame(6, b"12345678", flags=1),
    "SETTINGS": frame(4),
    "acknowledged SETTINGS": frame(4, flags=1),
    "WINDOW_UPDATE": frame(8, b"\0\0\0\1"),
    "PRIORITY": frame(2, b"\0\0\0\0\1", stream=5),
    "empty DATA": frame(0, stream=1),
    "padded DATA": frame(0, b"\1\0", flags=8, stream=1),
    "unknown": frame(0xFA, b"x"),
}


@pytest.mark.parametrize("name", CONTROL)
async def test_a_flood_of_control_frames_ends_the_connection(name: str) -> None:
    """CVE-2019-9512, 9513, 9515, 9518."""
    async with serving() as served, check_client(served.port) as client:
        client.goes_on = True
        client.begin()
        client.writer.write(CONTROL[name] * (2 * MOST_CONTROL_FRAMES))
        while client.goodbye is None:
            await client.read()
        assert client.goodbye == ENHANCE_YOUR_CALM


async def test_control_frames_of_a_client_that_makes_calls_are_no_flood() -> None:
    async with serving() as served, check_client(served.port) as client:
        for _ in range(MOST_CONTROL_FRAMES // 4):
            for _ in range(5):
                client.http.ping(b"12345678")
            assert (await client.check(b"question")).message == b"question"
        assert client.goodbye is None


async def test_a_few_frames_are_handled_in_each_turn() -> None:
    async with serving() as served, check_client(served.port) as client:
        assert (await client.check(b"first")).message == b"first"
        connection, ping = served.connection, CONTROL["PING"]
        connection.data_received(ping * 100)
        assert connection._frames.size == (100 - FRAMES_PER_TURN) * len(ping)
        assert connection.run_turn()
        assert connection._frames.size == (100 - 2 * FRAMES_PER_TURN) * len(ping)
        await until(lambda: not connection._frames.size)
        assert (await client.check(b"last")).message == b"last"
