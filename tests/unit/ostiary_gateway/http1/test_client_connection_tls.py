"""A session of an upstream is resumed with that upstream, for so long, and nowhere else."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trustme
import uvloop

from ostiary_gateway.http1.client_connection import MOST_SECONDS, UpstreamAddress, UpstreamContext, UpstreamTls
from ostiary_gateway.http1.client_pool import Pool
from ostiary_gateway.testing import FakeClock
from tests.support.http1 import Upstream, turn, upstream
from tests.support.http1_client import ask
from tests.support.tls_in_memory import VERSIONS, Shaken, shake_hands

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
VERSION = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime.now(UTC))


@pytest.fixture
def server(ca: trustme.CA) -> ssl.SSLContext:
    return server_context(ca.issue_cert("localhost"))


def server_context(leaf: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    leaf.configure_cert(context)
    return context


def client_context(ca: trustme.CA, clock: FakeClock | None) -> UpstreamContext:
    context = UpstreamContext(ssl.PROTOCOL_TLS_CLIENT)
    ca.configure_trust(context)
    if clock is not None:
        context.resume_sessions(clock)
    return context


def visit(server: ssl.SSLContext, client: UpstreamContext, *, ends: bool = True) -> Shaken:
    shaken = shake_hands(server, client)
    if ends:
        assert isinstance(shaken.client, UpstreamTls)
        shaken.client.keep_session()
    return shaken


# --- over connections ---


@LOOPS
@VERSION
def test_the_next_connection_resumes_the_session_of_the_one_before(
    run: Run, version: ssl.TLSVersion, ca: trustme.CA, server: ssl.SSLContext, clock: FakeClock
) -> None:
    results: list[str] = []
    context = client_context(ca, clock)
    context.maximum_version = version
    context.on_handshake = results.append
    pin = hashlib.sha256(peer_certificate(server, ca)).hexdigest()

    async def main() -> None:
        async with upstream(tls=server) as made:
            pool = Pool(
                UpstreamAddress("127.0.0.1", made.port, context, "localhost", pins=frozenset({pin})),
                asyncio.get_running_loop(),
            )
            for _ in range(3):
                assert (await ask(pool)).over.result() is None
                # As when it was idle for too long.
                pool.tick(float("inf"))
                await turn(20)
            assert len(made.connections) == 3
            pool.close()

    run(main())
    assert results == ["full", "resumed", "resumed"]


@LOOPS
def test_a_connection_resumes_beside_one_that_is_open(
    run: Run, ca: trustme.CA, server: ssl.SSLContext, clock: FakeClock
) -> None:
    async def main() -> None:
        async with upstream(tls=server) as made:
            pool = Pool(
                UpstreamAddress("127.0.0.1", made.port, client_context(ca, clock), "localhost"),
                asyncio.get_running_loop(),
            )
            assert (await ask(pool)).over.result() is None
            busy = pool.idle()
            assert busy is not None
            assert (await ask(pool)).over.result() is None
            assert resumed(made) == [False, True]
            pool.close()
            busy.abandon()

    run(main())


@LOOPS
def test_a_pin_that_does_not_match_is_not_overlooked_in_a_resumed_session(
    run: Run, ca: trustme.CA, server: ssl.SSLContext, clock: FakeClock
) -> None:
    results: list[str] = []
    context = client_context(ca, clock)
    context.on_handshake = results.append

    async def main() -> None:
        async with upstream(tls=server) as made:
            loop = asyncio.get_running_loop()
            trusting = UpstreamAddress("127.0.0.1", made.port, context, "localhost")
            pool = Pool(trusting, loop)
            assert (await ask(pool)).over.result() is None
            pinned = UpstreamAddress("127.0.0.1", made.port, context, "localhost", pins=frozenset({"0" * 64}))
            pool.move(pinned)
            await turn(20)
            assert "does not match tls.pins" in str((await ask(pool)).over.result())
            assert results == ["full", "resumed"]
            pool.close()

    run(main())


def resumed(made: Upstream) -> list[bool]:
    return [each.writer.get_extra_info("ssl_object").session_reused for each in made.connections]


def peer_certificate(server: ssl.SSLContext, ca: trustme.CA) -> bytes:
    certificate = shake_hands(server, client_context(ca, None)).client.getpeercert(binary_form=True)
    assert certificate is not None
    return certificate


# --- for how long ---


def test_it_ends_an_hour_after_the_certificate_was_checked_however_often_it_is_resumed(
    ca: trustme.CA, server: ssl.SSLContext, clock: FakeClock
) -> None:
    client = client_context(ca, clock)
    assert not visit(server, client).resumed
    for _ in range(5):
        clock.advance(seconds=MOST_SECONDS / 6)
        assert visit(server, client).resumed
    clock.advance(seconds=MOST_SECONDS / 6)
    assert not visit(server, client).resumed
    clock.advance(seconds=MOST_SECONDS / 2)
    assert visit(server, client).resumed


def test_a_session_of_an_older_check_does_not_live_as_long_as_a_newer_one(
    ca: trustme.CA, server: ssl.SSLContext, clock: FakeClock
) -> None:
    client, other = client_context(ca, clock), server_context(ca.issue_cert("localhost"))
    visit(server, client)
    clock.advance(seconds=MOST_SECONDS - 60)
    assert not visit(other, client).resumed
    clock.advance(seconds=120)
    assert visit(other, client).resumed


def test_it_ends_with_the_certificate_of_the_upstream(ca: trustme.CA, clock: FakeClock) -> None:
    leaf = ca.issue_cert("localhost", not_after=clock.now() + timedelta(minutes=10))
    server, client = server_context(leaf), client_context(ca, clock)
    visit(server, client)
    clock.advance(minutes=9)
    assert visit(server, client).resumed
    clock.advance(minutes=2)
    assert not visit(server, client).resumed


# --- where not ---


def test_another_context_shakes_hands_in_full(ca: trustme.CA, server: ssl.SSLContext, clock: FakeClock) -> None:
    """Such as one with another certificate of ours, or one that trusts another authority."""
    visit(server, client_context(ca, clock))
    assert not visit(server, client_context(ca, clock)).resumed


def test_a_handshake_that_fails_is_not_tried_again_with_the_same_session(
    ca: trustme.CA, server: ssl.SSLContext, clock: FakeClock
) -> None:
    client = client_context(ca, clock)
    visit(server, client)
    stranger = server_context(trustme.CA().issue_cert("localhost"))
    with pytest.raises(ssl.SSLCertVerificationError):
        visit(stranger, client)
    assert not visit(server, client).resumed
    assert visit(server, client).resumed


def test_it_can_be_turned_off(ca: trustme.CA, server: ssl.SSLContext) -> None:
    client = client_context(ca, None)
    visit(server, client)
    assert not visit(server, client).resumed


def test_a_server_that_is_not_checked_is_never_resumed(
    server: ssl.SSLContext, ca: trustme.CA, clock: FakeClock
) -> None:
    client = client_context(ca, clock)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    visit(server, client)
    assert not visit(server, client).resumed
