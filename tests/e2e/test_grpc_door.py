"""The gRPC listener of a real gateway: a real client of gRPC, several workers, reloads and stops; and a real Envoy
before listeners that are down, slow or wrong.

The suite of requests that go through Envoy is ``tests/e2e/test_doors.py``.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from tests.support.door_cases import Case
from tests.support.doors import HOST, Client, EchoUpstream, printed, running
from tests.support.envoy_messages import METHOD, check_request, check_response
from tests.support.fake_check_server import ALLOWED, WRONG, FakeCheckServer, answering
from tests.support.gateway import SECONDS, ServedGateway, Site
from tests.support.ports import free_port

pytestmark = pytest.mark.timeout(180)

SECRET = "the-secret-of-this-door"
CONTEXT = {"ostiary-door": "edge", "ostiary-upstream": "shop"}
DOOR = {"name": "edge", "proxy": "envoy-grpc", "callers": {"tokenFile": "secret"}}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path / "gateway", trustme.CA())
    (site.folder / "secret").write_text(SECRET + "\n")
    site.users("alice")
    return site


def sections(port: int, *doors: dict[str, Any], **listen: Any) -> dict[str, Any]:
    upstream = {"name": "shop", "server": "http://127.0.0.1:9", "attributes": "http", "hosts": [HOST]}
    return {
        "upstreams": [upstream],
        "listen": {"grpc": {"address": f"127.0.0.1:{port}"}, **listen},
        "doors": [*doors],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
    }


def question(token: str, path: str = "/x", **context: str) -> bytes:
    headers = [(":authority", HOST.encode()), (":path", path.encode()), (":method", b"GET")]
    return check_request([*headers, ("authorization", b"Bearer " + token.encode())], context={**CONTEXT, **context})


@contextmanager
def channel(site: Site, port: int, **proof: bytes) -> Iterator[grpc.Channel]:
    credentials = grpc.ssl_channel_credentials(site.ca.cert_pem.bytes(), **proof)
    # A connection of its own for each channel.
    with grpc.secure_channel(f"localhost:{port}", credentials, [("grpc.use_local_subchannel_pool", 1)]) as made:
        yield made


def ask(made: grpc.Channel, message: bytes, *, secret: str | None = SECRET, method: str = METHOD) -> Any:
    metadata = [] if secret is None else [("x-ostiary-door", secret)]
    call = made.unary_unary(method, request_serializer=None, response_deserializer=None)
    return check_response(call(message, metadata=metadata, timeout=SECONDS, wait_for_ready=True))


def code(made: grpc.Channel, message: bytes, **more: Any) -> grpc.StatusCode:
    """How a call fails."""
    with pytest.raises(grpc.RpcError) as failure:
        ask(made, message, **more)
    status = failure.value.code()
    assert isinstance(status, grpc.StatusCode)
    return status


def user_of(answer: Any) -> str:
    headers = {str(each.header.key): str(each.header.value) for each in answer.ok_response.headers}
    return headers["x-remote-user"]


# --- a real client of gRPC ---


def test_a_client_of_grpc_is_answered_over_tls_by_every_worker_and_may_call_many_times_at_once(site: Site) -> None:
    port = free_port()
    with site.serving(**sections(port, DOOR, workers=2)) as gateway:
        assert f"gRPC on 127.0.0.1:{port}" in gateway.stderr
        token = gateway.login("alice").token

        def call(number: int) -> str:
            # Each has a connection of its own, and finds one of the two workers.
            with channel(site, port) as made:
                return user_of(ask(made, question(token, f"/x/{number}")))

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(call, range(24))) == {"alice"}
        with channel(site, port) as made:
            assert ask(made, question("nobodys")).denied_response.status.code == 401
            assert code(made, question(token), secret=None) is grpc.StatusCode.PERMISSION_DENIED
            assert code(made, question(token), secret="wrong") is grpc.StatusCode.PERMISSION_DENIED
            assert code(made, question(token, ostiary_x="", **{"ostiary-door": "x"})) is (
                grpc.StatusCode.PERMISSION_DENIED
            )
            assert code(made, question(token), method="/other/Method") is grpc.StatusCode.UNIMPLEMENTED
            assert code(made, b"x" * 300_000) is grpc.StatusCode.RESOURCE_EXHAUSTED
            # It goes on after all that.
            assert user_of(ask(made, question(token))) == "alice"
            many = made.unary_unary(METHOD)
            metadata = [("x-ostiary-door", SECRET)]
            # More than may be open at a time: the client waits with the others.
            futures = [many.future(question(token, f"/x/{n}"), metadata=metadata, timeout=60) for n in range(600)]
            assert {user_of(check_response(future.result())) for future in futures} == {"alice"}
        assert gateway.metric("ostiary_gateway_door_questions_total", door="edge", result="unknown_caller") == 2


def test_a_client_certificate_is_proof_enough_and_no_other_is(site: Site) -> None:
    port = free_port()
    tls = {"certificate": "server.pem", "key": "server.key", "clientCA": "ca.pem"}
    door = {**DOOR, "callers": {"names": ["envoy"]}}
    with site.serving(**sections(port, door, tls=tls)) as gateway:
        token = gateway.login("alice").token
        for name, is_proxy in (("envoy", True), ("other", False)):
            leaf = site.ca.issue_cert(f"{name}.example", common_name=name)
            proof = {
                "private_key": leaf.private_key_pem.bytes(),
                "certificate_chain": leaf.cert_chain_pems[0].bytes(),
            }
            with channel(site, port, **proof) as made:
                if is_proxy:
                    assert user_of(ask(made, question(token), secret=None)) == "alice"
                else:
                    assert code(made, question(token), secret=None) is grpc.StatusCode.PERMISSION_DENIED
        with channel(site, port) as made:
            assert code(made, question(token)) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_reload_keeps_the_listener_and_takes_up_its_doors(site: Site, workers: int) -> None:
    port = free_port()
    with site.serving(**sections(port, workers=workers)) as gateway, channel(site, port) as made:
        token = gateway.login("alice").token
        # Nobody may ask, and the connection stays.
        assert code(made, question(token)) is grpc.StatusCode.PERMISSION_DENIED
        site.write_config(**sections(port, DOOR, workers=workers))
        _reload(gateway, workers, 1)
        assert user_of(ask(made, question(token))) == "alice"
        site.write_config(**sections(free_port(), DOOR, workers=workers))
        gateway.signal(signal.SIGHUP)
        assert "listen.grpc" in gateway.line("the configuration was not reloaded")
        assert user_of(ask(made, question(token))) == "alice"


def _reload(gateway: ServedGateway, workers: int, times: int) -> None:
    gateway.signal(signal.SIGHUP)
    for number in range(workers):
        gateway.line("the configuration was reloaded", after=workers * (times - 1) + number)


@pytest.mark.slow
def test_a_stop_lets_clients_go_elsewhere_and_ends_well(site: Site) -> None:
    port = free_port()
    with site.serving(**sections(port, DOOR)) as gateway, channel(site, port) as made:
        token = gateway.login("alice").token
        assert user_of(ask(made, question(token))) == "alice"
        lost = threading.Event()
        made.subscribe(lambda state: lost.set() if state is not grpc.ChannelConnectivity.READY else None)
        lost.clear()
        gateway.stop()
        assert lost.wait(SECONDS)


@pytest.mark.slow
def test_an_address_that_is_taken_is_told(site: Site) -> None:
    with FakeCheckServer() as other:
        config = site.write_config(**sections(other.port, DOOR))
        command = [sys.executable, "-m", "ostiary_gateway", "serve", "--config", str(config)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode != 0
    assert "for gRPC" in ended.stderr
    assert "listen.grpc.address" in ended.stderr


# --- a real Envoy before a listener that is wrong ---


def test_nobody_is_let_in_while_the_gateway_cannot_be_asked(site: Site, tmp_path: Path) -> None:
    port = free_port()
    with EchoUpstream() as echo, FakeCheckServer() as gateway:
        config = site.write_config(**sections(gateway.port, DOOR))
        where = ("--gateway", f"http://127.0.0.1:{gateway.port}", "--backend", f"shop=http://127.0.0.1:{echo.port}")
        text = printed("envoy-grpc", config, "--listen", f"127.0.0.1:{port}", *where)
        with running("envoy-grpc", tmp_path / "envoy", text, port) as client:
            gateway.answer = answering(ALLOWED)
            assert _send(client, "allowed").status == 200
            assert "allowed" in echo.seen, "what is tried below could not be told from nothing"
            for name, answer in WRONG.items():
                gateway.answer = answer
                reply = _send(client, name)
                expected = 403 if "denied" in name and name != "permission denied" else 503
                assert (reply.status, name in echo.seen) == (expected, False), name
            gateway.answer = None
            gateway.asked.clear()
            with ThreadPoolExecutor() as pool:
                slow = pool.submit(_send, client, "slow")
                assert gateway.asked.wait(30)
                assert "slow" not in echo.seen
                gateway.go_on.set()
                assert slow.result(30).status == 503
            gateway.stop()
            assert _send(client, "down").status == 503
            assert not {"slow", "down"} & set(echo.seen)


def _send(client: Client, name: str) -> Any:
    return client.send(Case(name, "/closed").request("a-token"))


@pytest.mark.slow
def test_a_route_without_its_context_and_a_wrong_secret_let_nobody_in(site: Site, tmp_path: Path) -> None:
    port = free_port()
    with EchoUpstream() as echo, site.serving(**sections(port, DOOR)) as gateway:
        token = gateway.login("alice").token
        config = site.folder / "gateway.yaml"
        trust = ("--gateway", f"https://localhost:{port}", "--ca", str(site.folder / "ca.pem"))
        more = ("--backend", f"shop=http://127.0.0.1:{echo.port}", *trust)
        for name, change in {
            "nothing changed": ("", ""),
            "no upstream": ("ostiary-upstream: 'shop'", "something: else"),
            "no door": ("ostiary-door: 'edge'", "something: else"),
            "another upstream": ("ostiary-upstream: 'shop'", "ostiary-upstream: other"),
            "a wrong secret": (SECRET, "wrong"),
            "no raw headers": ("encode_raw_headers: true", "encode_raw_headers: false"),
            "no path": ("- {exact: ':path'}\n", "\n"),
        }.items():
            listen = free_port()
            text = printed("envoy-grpc", config, "--listen", f"127.0.0.1:{listen}", *more)
            assert change[0] in text
            changed = text.replace(*change) if change[0] else text
            expected = 200 if name == "nothing changed" else 503
            with running(
                "envoy-grpc", tmp_path / name, changed, listen, ready=401 if expected == 200 else 503
            ) as client:
                assert client.send(Case(name, "/x").request(token)).status == expected, name
                assert (name in echo.seen) is (expected == 200), name


def test_a_huge_head_is_decided_on_or_refused(site: Site, tmp_path: Path) -> None:
    port, listen = free_port(), free_port()
    with EchoUpstream() as echo, site.serving(**sections(port, DOOR)) as gateway:
        token = gateway.login("alice").token
        more = ("--backend", f"shop=http://127.0.0.1:{echo.port}", "--ca", str(site.folder / "ca.pem"))
        config = site.folder / "gateway.yaml"
        text = printed(
            "envoy-grpc", config, "--listen", f"127.0.0.1:{listen}", "--gateway", f"https://localhost:{port}", *more
        )
        with running("envoy-grpc", tmp_path / "envoy", text, listen) as client:
            for name, size, expected in (("large", 40_000, 200), ("huge", 70_000, 431)):
                reply = client.send(Case(name, "/" + "x" * size).request(token))
                assert reply.status == expected, name
                assert (name in echo.seen) is (expected == 200)
            many = tuple((f"X-{number}", "v" * 100) for number in range(70))
            assert client.send(Case("many", headers=many).request(token)).status == 200
