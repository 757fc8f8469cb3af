"""A connection is opened to the upstream that the configuration means, and to no other."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from ostiary.errors import KeyUnusable
from ostiary_gateway.http1.client_connection import UpstreamAddress, failure_reason
from ostiary_gateway.http1.client_pool import Pool
from tests.support.http1 import Upstream, honest, turn, upstream
from tests.support.http1_client import ask

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Coroutine[Any, Any, None]], None]


async def test_a_refused_connection_is_lost_without_an_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    pool = Pool(UpstreamAddress("127.0.0.1", port), asyncio.get_running_loop())
    lost = (await ask(pool)).over.result()
    assert lost is not None
    assert (lost.answered, lost.timeout) == (False, False)


async def test_a_connection_that_takes_too_long_is_a_timeout() -> None:
    # A full backlog: the kernel lets nobody in any more.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
            fillers.append(filler)
        pool = Pool(UpstreamAddress("127.0.0.1", port), asyncio.get_running_loop(), connect_timeout=0.05)
        lost = (await ask(pool)).over.result()
        for filler in fillers:
            filler.close()
    assert lost is not None
    assert lost.timeout


async def test_a_name_that_cannot_be_a_host_is_an_error_and_no_hang() -> None:
    pool = Pool(UpstreamAddress("a" * 100 + "..", 1), asyncio.get_running_loop())
    assert (await ask(pool)).over.result() is not None


# --- TLS ---


def contexts(ca: trustme.CA, *names: str) -> tuple[ssl.SSLContext, ssl.SSLContext, str]:
    server, trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    leaf = ca.issue_cert(*names)
    leaf.configure_cert(server)
    ca.configure_trust(trust)
    der = ssl.PEM_cert_to_DER_cert(leaf.cert_chain_pems[0].bytes().decode())
    return server, trust, hashlib.sha256(der).hexdigest()


@LOOPS
def test_the_pinned_certificate_is_the_only_one_that_will_do(run: Run, ca: trustme.CA) -> None:
    """S68."""
    server, trust, pin = contexts(ca, "upstream.test")

    async def main() -> None:
        async with upstream(tls=server) as made:
            for pins, served in (({pin}, True), ({"0" * 64}, False), ({"0" * 64, pin}, True), (set[str](), True)):
                address = UpstreamAddress("127.0.0.1", made.port, trust, "upstream.test", pins=frozenset(pins))
                pool = Pool(address, asyncio.get_running_loop())
                recorder = await ask(pool)
                assert (recorder.over.result() is None) is served
                if not served:
                    assert "certificate does not match" in str(recorder.over.result())
                    assert not pool.connections
                pool.close()
                await turn(20)
            assert len(made.requests) == 3

    run(main())


@pytest.mark.parametrize("wrong", ["name", "authority", "no TLS"])
async def test_an_upstream_that_cannot_be_trusted_gets_no_request(wrong: str, ca: trustme.CA) -> None:
    """S68."""
    server, trust, _ = contexts(ca, "upstream.test")
    if wrong == "authority":
        _, trust, _ = contexts(trustme.CA(), "upstream.test")
    name = "other.test" if wrong == "name" else "upstream.test"
    async with upstream(tls=None if wrong == "no TLS" else server) as made:
        # Who speaks no TLS waits for a request, and so never shakes hands.
        seconds = 0.05 if wrong == "no TLS" else 60
        address = UpstreamAddress("127.0.0.1", made.port, trust, name)
        pool = Pool(address, asyncio.get_running_loop(), connect_timeout=seconds)
        lost = (await ask(pool)).over.result()
        assert lost is not None
        assert not lost.answered
        assert made.requests == []
        pool.close()


async def test_an_upstream_may_listen_on_a_unix_socket(tmp_path: Path) -> None:
    made = Upstream(honest)
    server = await asyncio.start_unix_server(made.serve, tmp_path / "s")
    pool = Pool(UpstreamAddress("localhost", 80, unix_path=str(tmp_path / "s")), asyncio.get_running_loop())
    assert (await ask(pool)).status == 200
    pool.close()
    server.close()
    await turn()


def test_a_key_that_did_not_sign_in_the_handshake_is_told_as_that() -> None:
    error = KeyUnusable("the key did not sign in time", cause="no answer within 2 s")
    assert failure_reason(error) == "the key did not sign in time: no answer within 2 s"
