"""A request through a listener: who it is from for the cluster, what of it passes, and what is said when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trustme

from tests.support.connect_listener import served
from tests.support.http1 import Message, Upstreamed, until
from tests.support.plugins import PluginScript, exec_user

TOKEN = {"token": "real-token"}
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
UNAUTHORIZED = json.dumps({"kind": "Status", "apiVersion": "v1", "reason": "Unauthorized", "code": 401}).encode()


def answer(status: str, body: bytes = b"", *lines: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


async def echo(connection: Upstreamed) -> None:
    while True:
        request = await connection.request()
        connection.upstream.requests.append(request)
        connection.send(answer("200 OK", request.body))


def message_of(response: Message) -> str:
    return str(json.loads(response.body)["message"])


async def test_the_credential_of_the_kubeconfig_takes_the_place_of_the_clients(tmp_path: Path, ca: trustme.CA) -> None:
    async with served(tmp_path, ca, echo, user=TOKEN, path="/base") as s:
        response = await s.ask("/api/v1/pods?watch=1", "X-Remote-User: admin", "User-Agent: kubectl", "Cookie: a=b")
        assert response.status == 200
        (request,) = s.upstream.requests
        assert request.start == b"GET /base/api/v1/pods?watch=1 HTTP/1.1"
        assert request.all("Authorization") == [b"Bearer real-token"]
        assert request.all("Host") == [f"localhost:{s.upstream.port}".encode()]
        assert request.all("User-Agent") == [b"kubectl"]
        assert request.all("Cookie") == [b"a=b"]
        assert request.all("X-Remote-User") == request.all("X-Forwarded-For") == []
        assert response.one("Audit-Id") == request.one("Audit-Id")


async def test_bodies_pass_whole_however_large(tmp_path: Path, ca: trustme.CA) -> None:
    body = bytes(range(256)) * 8192
    async with served(tmp_path, ca, echo, user=TOKEN) as s:
        response = await s.ask("/upload", method="POST", body=body)
        assert response.body == body


@pytest.mark.parametrize("lines", [("Impersonate-User: bob",), ("Impersonate-User: bob", "Impersonate-Group: a")])
async def test_a_clients_impersonation_is_never_mixed_with_the_kubeconfigs(
    tmp_path: Path, ca: trustme.CA, lines: tuple[str, ...]
) -> None:
    user = {**TOKEN, "as": "auditor", "as-groups": ["audit"]}
    async with served(tmp_path, ca, echo, user=user) as s:
        await s.ask("/")
        await s.ask("/", *lines)
        assert (await s.ask("/", "Impersonate_User: bob")).status == 400
        without, own = (_impersonation(request) for request in s.upstream.requests)
        assert without == ["impersonate-user: auditor", "impersonate-group: audit"]
        assert own == [f"{name.lower()}: {value}" for name, value in (line.split(": ") for line in lines)]


async def test_what_the_cluster_would_not_act_upon_never_replaces_the_kubeconfigs_impersonation(
    tmp_path_factory: pytest.TempPathFactory, ca: trustme.CA, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[str, ...]] = [
        ("Impersonate-Foo: x",),
        ("Impersonate-User: bob", "Impersonate-Foo: x"),
        ("Impersonate-User:",),
        ("Impersonate-User: ", "Impersonate-User: bob"),
        ("Impersonate-Group: admins",),
        ("Impersonate-Extra-Reason: x",),
    ]
    for lines in cases:
        with subtests.test(lines=lines):
            tmp_path = tmp_path_factory.mktemp("case")
            async with served(tmp_path, ca, echo, user={**TOKEN, "as": "auditor"}) as s:
                assert (await s.ask("/", *lines)).status == 400
                assert s.upstream.requests == []


def _impersonation(request: Message) -> list[str]:
    return [
        f"{name.decode().lower()}: {value.decode()}"
        for name, value in request.headers
        if name.lower().startswith(b"impersonate")
    ]


async def test_after_an_upgrade_bytes_go_both_ways(tmp_path: Path, ca: trustme.CA) -> None:
    async def script(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.head())
        connection.send(SWITCH)
        while data := await connection.reader.read(65536):
            connection.send(data.upper())

    async with served(tmp_path, ca, script, user=TOKEN) as s, s.client() as client:
        protocol = "Sec-WebSocket-Protocol: v5.channel.k8s.io"
        client.send(s.request("/exec", "Connection: Upgrade", "Upgrade: websocket", protocol))
        assert (await client.answer()).status == 101
        client.send(b"hello")
        assert await client.exactly(5) == b"HELLO"
        assert s.upstream.requests[0].one("Sec-WebSocket-Protocol") == b"v5.channel.k8s.io"
        assert s.listener.connections == 1


async def test_a_401_refreshes_once_and_is_then_the_clients(tmp_path: Path, ca: trustme.CA) -> None:
    accepted: set[bytes] = set()

    async def script(connection: Upstreamed) -> None:
        while True:
            request = await connection.request()
            connection.upstream.requests.append(request)
            known = request.one("Authorization") in accepted
            connection.send(answer("200 OK", request.body) if known else answer("401 Unauthorized", UNAUTHORIZED))

    plugin = PluginScript(tmp_path / "plugin").answer(token="first")
    async with served(tmp_path, ca, script, user=exec_user(plugin.path)) as s:
        accepted.add(b"Bearer second")
        await s.listener.cluster.check()
        plugin.answer(token="second")
        response = await s.ask("/", method="POST", body=b"kept")
        assert (response.status, response.body) == (200, b"kept")
        assert plugin.runs == 2
        accepted.clear()
        response = await s.ask("/")
        assert response.status == 401
        assert "the server rejected the credential of user 'dev'" in message_of(response)
        assert plugin.runs == 3


async def test_a_401_of_a_program_behind_the_cluster_is_its_own(tmp_path: Path, ca: trustme.CA) -> None:
    async def script(connection: Upstreamed) -> None:
        while True:
            connection.upstream.requests.append(await connection.request())
            connection.send(answer("401 Unauthorized", b"whoever you are", "WWW-Authenticate: Basic"))

    async with served(tmp_path, ca, script, user=TOKEN) as s:
        response = await s.ask("/api/v1/namespaces/default/services/shop/proxy/")
        assert (response.status, response.body) == (401, b"whoever you are")


async def test_redirects_do_not_lead_the_token_elsewhere(tmp_path: Path, ca: trustme.CA) -> None:
    async def script(connection: Upstreamed) -> None:
        await connection.request()
        connection.send(answer("302 Found", b"", "Location: http://127.0.0.1:9/"))

    async with served(tmp_path, ca, script, user=TOKEN) as s:
        response = await s.ask("/")
        assert response.status == 502
        assert response.one("Location") is None


@pytest.mark.parametrize(
    ("user", "cluster", "said"),
    [
        (exec_user("/nonexistent/plugin"), {}, "exec plugin"),
        (exec_user("/bin/true", mode="Always"), {}, "cannot ask a person"),
        (TOKEN, {"tls-server-name": "other.example"}, "its certificate cannot be verified"),
    ],
)
async def test_what_is_wrong_is_told_to_the_client(
    tmp_path: Path, ca: trustme.CA, user: dict[str, Any], cluster: dict[str, Any], said: str
) -> None:
    async with served(tmp_path, ca, echo, user=user, cluster=cluster) as s:
        response = await s.ask("/")
        assert response.status == 503
        assert said in message_of(response)
        assert "real-token" not in message_of(response)
        assert not s.listener.busy


async def test_a_client_that_leaves_ends_its_request_at_the_cluster(tmp_path: Path, ca: trustme.CA) -> None:
    ended: list[bool] = []

    async def watch(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.request())
        connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
        await connection.reader.read()
        ended.append(True)

    async with served(tmp_path, ca, watch, user=TOKEN) as s:
        async with s.client() as client:
            client.send(s.request("/api/v1/pods?watch=1"))
            assert (await client.head()).status == 200
            assert s.listener.busy
        await until(lambda: ended == [True])
        await until(lambda: s.listener.connections == 0)
        assert not s.listener.busy


async def test_a_kubeconfig_that_leads_back_to_us_is_refused(tmp_path: Path, ca: trustme.CA) -> None:
    user = exec_user("ostiary", args=["connect", "token", "test@ostiary"])
    async with served(tmp_path, ca, echo, user=user) as s:
        response = await s.ask("/")
        assert response.status == 503
        assert "goes through ostiary connect already" in message_of(response)


async def test_another_program_is_served_while_one_sends_requests_without_a_token(
    tmp_path: Path, ca: trustme.CA
) -> None:
    flood = "GET /api HTTP/1.1\r\nHost: {host}\r\n\r\n" * 20_000
    async with served(tmp_path, ca, echo, user=TOKEN) as s, s.client() as first, s.client() as second:
        assert (await second.ask(s.request("/api"))).status == 200
        first.send(flood.format(host=s.listener.record.host).encode())
        # The proxy has begun with the flood.
        assert (await first.answer()).status == 401
        assert (await second.ask(s.request("/api"))).status == 200
        # The queue has not come to its end.
        assert s.listener._http.queue.held > 0
