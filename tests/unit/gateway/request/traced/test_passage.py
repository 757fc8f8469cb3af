"""What the span of a request says about it, by the semantic conventions for HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.collector import CLIENT, SERVER, collecting, plain
from tests.support.http1 import Upstreamed, until, upstream
from tests.unit.gateway.request.gateways import at, configured, serving
from tests.unit.gateway.request.traced.test_engine import only_request, traced

NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("code", "client_failed", "server_failed"),
    [(204, False, False), (399, False, False), (400, True, False), (499, True, False), (500, True, True)],
)
async def test_an_error_of_the_client_is_a_failure_for_who_asks_and_none_for_who_answers(
    tmp_path: Path, code: int, client_failed: bool, server_failed: bool
) -> None:
    async def answers(connection: Upstreamed) -> None:
        await connection.request()
        length = b"" if code == 204 else b"Content-Length: 0\r\n"
        connection.send(b"HTTP/1.1 %d Because\r\n%s\r\n" % (code, length))

    with collecting() as collector:
        async with (
            upstream(answers) as made,
            serving(configured(tmp_path, at(made), tracing=traced(collector))) as site,
        ):
            assert (await site.ask()).status == code
            await until(lambda: bool(collector.spans))
        for kind, failed in ((CLIENT, client_failed), (SERVER, server_failed)):
            (span,) = collector.of_kind(kind)
            attributes = plain(span.attributes)
            assert attributes["http.response.status_code"] == code
            assert attributes.get("error.type") == (str(code) if failed else None)
            assert span.status.code == (2 if failed else 0)


@pytest.mark.parametrize(
    ("host", "address", "port"),
    [
        ("gateway.test", "gateway.test", None),
        ("gateway.test:8443", "gateway.test", 8443),
        ("127.0.0.1", "127.0.0.1", None),
        ("[::1]", "[::1]", None),
        ("[::1]:8443", "[::1]", 8443),
        ("gateway.test:", "gateway.test:", None),
        ("gateway.test:x", "gateway.test:x", None),
    ],
)
async def test_the_server_is_what_the_client_calls_it(
    tmp_path: Path, host: str, address: str, port: int | None
) -> None:
    with collecting() as collector:
        async with serving(configured(tmp_path, NOWHERE, tracing=traced(collector))) as site:
            await site.client.ask(site.request().replace(b"gateway.test", host.encode()))
            attributes, _ = await only_request(collector)
    assert (attributes["server.address"], attributes.get("server.port")) == (address, port)


async def test_long_texts_are_cut(tmp_path: Path) -> None:
    with collecting() as collector:
        async with serving(configured(tmp_path, NOWHERE, tracing=traced(collector))) as site:
            await site.ask("/" + "x" * 3000, "User-Agent: " + "y" * 3000)
            attributes, _ = await only_request(collector)
    assert attributes["url.path"] == "/" + "x" * 1023
    assert attributes["user_agent.original"] == "y" * 1024


async def test_without_a_user_agent_none_is_said(tmp_path: Path) -> None:
    with collecting() as collector:
        async with serving(configured(tmp_path, NOWHERE, tracing=traced(collector))) as site:
            await site.ask()
            attributes, _ = await only_request(collector)
    assert "user_agent.original" not in attributes


@pytest.mark.parametrize("trusted", [True, False])
async def test_the_client_is_who_a_trusted_proxy_says_it_is(tmp_path: Path, trusted: bool) -> None:
    listen = {"address": "127.0.0.1:0", **({"trustedProxies": ["127.0.0.1"]} if trusted else {})}
    with collecting() as collector:
        config = configured(tmp_path, NOWHERE, tracing=traced(collector), listen=listen, insecureAllowAll=True)
        async with serving(config) as site:
            await site.ask("/x", "X-Forwarded-For: 192.0.2.7")
            attributes, _ = await only_request(collector)
    assert attributes["client.address"] == ("192.0.2.7" if trusted else "127.0.0.1")
    assert attributes["network.peer.address"] == "127.0.0.1"


async def test_an_old_client_is_told_by_its_version(tmp_path: Path) -> None:
    with collecting() as collector:
        async with upstream() as made, serving(configured(tmp_path, at(made), tracing=traced(collector))) as site:
            await site.client.ask(site.request().replace(b"HTTP/1.1", b"HTTP/1.0"))
            attributes, _ = await only_request(collector)
    assert attributes["network.protocol.version"] == "1.0"


async def test_an_upstream_at_a_socket_is_named_by_its_path(tmp_path: Path) -> None:
    upstreams = [{"name": "api", "server": f"unix:{tmp_path}/none", "identity": "none", "attributes": "http"}]
    with collecting() as collector:
        async with serving(configured(tmp_path, NOWHERE, tracing=traced(collector), upstreams=upstreams)) as site:
            await site.ask()
            await until(lambda: bool(collector.spans))
        (client,) = collector.of_kind(CLIENT)
        attributes = plain(client.attributes)
    assert (attributes["server.address"], attributes["url.scheme"]) == (f"{tmp_path}/none", "http")
    assert "server.port" not in attributes
