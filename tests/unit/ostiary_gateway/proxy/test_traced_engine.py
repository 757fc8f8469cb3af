"""What the span of a request says about it, by the semantic conventions for HTTP."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from ostiary_gateway.sessions import new_token
from tests.support.collector import CLIENT, SERVER, collecting, plain
from tests.support.http1 import Upstreamed, get, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import at, configured, kubernetes, serving
from tests.unit.ostiary_gateway.proxy.test_traced_engine_engine import only_request, traced

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


async def test_the_server_is_what_the_client_calls_it(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("gateway.test", "gateway.test", None),
        ("gateway.test:8443", "gateway.test", 8443),
        ("127.0.0.1", "127.0.0.1", None),
        ("[::1]", "[::1]", None),
        ("[::1]:8443", "[::1]", 8443),
        ("gateway.test:", "gateway.test:", None),
        ("gateway.test:x", "gateway.test:x", None),
    ]
    for host, address, port in cases:
        with subtests.test(host=host, address=address, port=port):
            tmp_path = tmp_path_factory.mktemp("case")
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


async def test_tokens_wherever_a_client_puts_them_are_not_exported(tmp_path: Path) -> None:
    """As in the log and in audit events."""
    opaque, signed = new_token().reveal(), f"eyJ{'hbGci' * 5}.{'eyJzdWIi' * 4}.{'c2lnbmF0' * 4}"
    encoded = "".join(f"%{ord(character):02x}" for character in opaque)
    # Cut at the longest text that is exported, it would no longer look like a token.
    late = "x" * 1013 + "/" + opaque
    with collecting() as collector:

        def arrived(most: int) -> bool:
            return len(collector.of_kind(SERVER)) == most

        config = configured(tmp_path, NOWHERE, tracing=traced(collector), upstreams=kubernetes(NOWHERE))
        async with serving(config) as site:
            for number, (path, *headers) in enumerate(
                [
                    (f"/api/v1/namespaces/{opaque}/pods/{signed}",),
                    (f"/apis/{opaque}/v1/{opaque}/{opaque}/{opaque}",),
                    (f"/{encoded}/x",),
                    (f"/{late}",),
                    ("/x", f"User-Agent: curl {opaque} {signed}"),
                    ("/x", f"User-Agent: {late}"),
                    ("/x", f"traceparent: 00-{'a' * 32}-{'b' * 16}-01", f"tracestate: vendor={opaque}"),
                    (f"/x?token={opaque}",),
                ]
            ):
                await site.ask(path, *headers)
                await until(partial(arrived, number + 1))
            # Presented in the place of the Host, and as the token of nobody.
            request = get("/x", f"Authorization: Bearer {opaque}").replace(b"gateway.test", opaque.encode())
            await site.client.ask(request)
            await until(partial(arrived, number + 2))
        exported = str(collector.spans)
        for secret in (opaque, signed, encoded, opaque[:8], signed[:20]):
            assert secret not in exported
        paths = [plain(span.attributes)["url.path"] for span in collector.of_kind(SERVER)]
    assert paths[0] == "/api/v1/namespaces/REDACTED/pods/REDACTED"
    assert paths[2] == "/REDACTED/x"
    assert "ostiary.namespace" in exported


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
