"""Bodies that are neither bytes nor generators, and websockets: what of them can be signed, library by library."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
from kubernetes import stream
from kubernetes.client import CoreV1Api

from ostiary import RequestNotSigned, RequestToSign
from ostiary.client.adapters import urllib3 as urllib3_adapter
from tests.conformance.adapters.exec_server import EXEC, exec_server
from tests.conformance.adapters.test_request_signing import ECHO, MacSigner, mac, verify
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript

Post = Callable[[Any, Any], int]


def post_with_urllib3(connection: Any, body: Any) -> int:
    with connection.urllib3() as manager:
        return int(manager.request("POST", ECHO, body=body).status)


def post_with_requests(connection: Any, body: Any) -> int:
    with connection.requests() as session:
        return int(session.post(ECHO, data=body).status_code)


both = pytest.mark.parametrize("post", [post_with_urllib3, post_with_requests])


@both
def test_a_file_is_signed_whole_from_where_it_stands_and_again_after_a_401(
    post: Post, connect_to: Connect, api: ApiServer, plugin: PluginScript, tmp_path: Path
) -> None:
    path = tmp_path / "body"
    path.write_bytes(b"skipped" + b"y" * 3000)
    connection, signer = connect_to(signer=MacSigner()), MacSigner()
    connection.request_signer = signer
    assert post(connection, b"first") == 200
    api.rules.tokens = {"token-2"}
    plugin.answer(token="token-2")
    with path.open("rb") as file:
        file.seek(7)
        assert post(connection, file) == 200
    assert api.statuses == [200, 401, 200]
    assert api.requests[1].body == api.requests[2].body == signer.requests[1].body == b"y" * 3000
    for received in api.requests:
        verify(api, received)


@both
def test_a_file_is_where_it_was_if_it_could_not_be_signed(post: Post, connect_to: Connect, api: ApiServer) -> None:
    class Failing:
        def sign(self, request: RequestToSign) -> dict[str, str]:
            raise LookupError(f"no key for {len(request.body)} bytes")

    file = io.BytesIO(b"skipped" + b"y" * 3000)
    file.seek(7)
    with pytest.raises(RequestNotSigned) as caught:
        post(connect_to(signer=Failing()), file)
    assert "3000 bytes" in str(caught.value.cause)
    assert file.tell() == 7
    assert api.requests == []


@both
def test_a_file_that_does_not_fit_is_streamed(
    post: Post, connect_to: Connect, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urllib3_adapter, "SIGNED_FILE_BYTES", 10)
    assert post(connect_to(signer=MacSigner()), io.BytesIO(b"x" * 10)) == 200
    with pytest.raises(RequestNotSigned) as caught:
        post(connect_to(signer=MacSigner()), io.BytesIO(b"x" * 11))
    assert caught.value.code == "request-body-streamed"
    assert len(api.requests) == 1


@pytest.mark.parametrize("body", ["text", bytearray(b"b"), [b"one", b"two"], None])
def test_what_urllib3_takes_for_a_body_is_signed_as_it_is_sent(body: Any, connect_to: Connect, api: ApiServer) -> None:
    assert post_with_urllib3(connect_to(signer=MacSigner()), body) == 200
    verify(api, api.requests[0])


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"json": {"a": "ü"}}, None),
        ({"data": "text ü"}, None),
        ({"data": io.BytesIO(b"x")}, "request-body-streamed"),
        ({"data": b"x" * 1000, "compress": "gzip"}, "request-body-streamed"),
    ],
)
def test_aiohttp_signs_what_is_in_memory_and_sent_as_it_stands(
    options: dict[str, Any], code: str | None, connect_to: Connect, api: ApiServer
) -> None:
    async def post() -> int:
        async with connect_to(signer=MacSigner()).aiohttp() as session, session.post(ECHO, **options) as answer:
            return answer.status

    if code is None:
        assert asyncio.run(post()) == 200
        verify(api, api.requests[0])
        return
    with pytest.raises(RequestNotSigned) as caught:
        asyncio.run(post())
    assert caught.value.code == code
    assert api.requests == []


def test_the_handshake_of_a_websocket_is_signed_with_the_url_that_is_dialled(
    connect_to: Connect, ca: trustme.CA
) -> None:
    async def run() -> None:
        async with exec_server(ca, tokens={"token-1"}) as server:
            signer = MacSigner()
            connection = connect_to(server=server.url, signer=signer)
            client = CoreV1Api(connection.kubernetes())
            call = partial(stream.stream, client.connect_get_namespaced_pod_exec, "web", "default")
            words = await asyncio.to_thread(partial(call, command=["echo", "a b+c"], stdout=True, stdin=False))
            assert "echo a b+c" in words
            await session_speaks(connection.aiohttp())
            for headers, target in zip(server.seen, server.targets, strict=True):
                expected = mac("GET", server.url + target, headers["Host"], headers["Authorization"], b"")
                assert headers["X-Signature"] == expected
            assert len(server.seen) == len(signer.requests) == 2

    async def session_speaks(session: aiohttp.ClientSession) -> None:
        async with session, session.ws_connect(EXEC + "?command=ls", protocols=["v4.channel.k8s.io"]) as socket:
            assert (await socket.receive_bytes())[1:] == b"ls"

    asyncio.run(run())


def test_a_signer_is_shown_a_body_of_the_standard_library_client(connect_to: Connect, api: ApiServer) -> None:
    from ostiary.client.api_requests import ApiRequests

    shown: list[RequestToSign] = []

    class Noting(MacSigner):
        def sign(self, request: RequestToSign) -> dict[str, str]:
            shown.append(request)
            return super().sign(request)

    assert ApiRequests(connect_to(signer=Noting())).send("POST", ECHO, b"{}").status == 200
    assert shown[0].body == b"{}"
    verify(api, api.requests[0])
