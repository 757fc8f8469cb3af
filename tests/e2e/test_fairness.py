"""No connection monopolises a worker: another user's request and ``/livez`` complete *during* a flood.

Judged by the CPU time that the gateway spends between the arrival of that request and its response, so that neither a
slow machine nor its other programs matter. The flood is one connection unless its row says otherwise.
"""

from __future__ import annotations

import math
import os
import selectors
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from hpack import Encoder

from ostiary_gateway.extauth.haproxy import spop
from ostiary_gateway.wire.token_format import new_token
from tests.support.envoy_messages import METHOD as CHECK_METHOD
from tests.support.gateway import SECONDS, ServedGateway, Site, role
from tests.support.holding_upstream import HoldingUpstream
from tests.support.ports import free_port
from tests.support.spop_client import hello

METHOD = CHECK_METHOD.encode()

# CPU milliseconds of the gateway while somebody else's request, or a probe, waits for its response.
REQUEST_BUDGET, PROBE_BUDGET = 50.0, 20.0
LOG_LINES_PER_SECOND = 10
# The flood has begun when the gateway has spent so much on it, or when it has ended the connection so often.
BUSY_SECONDS, MOST_ENDS = 0.1, 20
LARGEST_PROCESS = 200 * 1024 * 1024
SAMPLES = 5
BLOCK = 256 * 1024

ALLOWED = {"nonResourceURLs": ["/allowed", "/allowed/*"], "verbs": ["*"]}


@dataclass(frozen=True)
class Scene:
    """A gateway with one worker, which also serves the probes."""

    gateway: ServedGateway
    tokens: dict[str, str]
    grpc_port: int
    spoe_port: int

    @property
    def cpu(self) -> float:
        """The CPU time of the gateway's process, in seconds."""
        # What clock_getcpuclockid(3) returns.
        return time.clock_gettime((~self.gateway.pid << 3) | 2)

    @property
    def health_port(self) -> int:
        return int(self.gateway.health.rpartition(":")[2])

    def request(self, user: str = "jane", path: str = "/allowed") -> bytes:
        return lines(f"GET {path} HTTP/1.1", f"Authorization: Bearer {self.tokens[user]}")


def lines(first: str, *more: str, body: bytes = b"") -> bytes:
    length = [f"Content-Length: {len(body)}"] if body else []
    return "\r\n".join([first, "Host: gateway.test", *more, *length, "", ""]).encode() + body


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    site = Site(tmp_path_factory.mktemp("fairness") / "gateway", trustme.CA())
    site.users("jane", "mallory")
    site.policy(role("", ALLOWED, User="jane"), role("", ALLOWED, User="mallory"))
    (site.folder / "secret").write_text("the-secret-of-this-door")
    grpc_port, spoe_port = free_port(), free_port()
    with HoldingUpstream() as upstream, site.serving(**sections(upstream, grpc_port, spoe_port)) as gateway:
        tokens = {user: gateway.login(user).token for user in ("jane", "mallory")}
        yield Scene(gateway, tokens, grpc_port, spoe_port)


def sections(upstream: HoldingUpstream, grpc_port: int, spoe_port: int) -> dict[str, Any]:
    callers = {"callers": {"tokenFile": "secret"}}
    haproxy = {"name": "haproxy", "proxy": "haproxy", "agent": {"address": f"127.0.0.1:{spoe_port}"}}
    return {
        "upstreams": [{"name": "api", "server": upstream.url, "attributes": "http", "hosts": ["gateway.test"]}],
        "listen": {"tls": None, "drain": "0s", "grpc": {"address": f"127.0.0.1:{grpc_port}"}},
        "doors": [{"name": "envoy", "proxy": "envoy-grpc", **callers}, {**haproxy, **callers}],
        "webhooks": {"tokenReview": True, **callers},
    }


class Flood:
    """Sends *block* again and again on each of *connections* connections, and connects again when one is closed.

    One thread for all of them: the upstream is in this process, too, and must get its turns.
    """

    def __init__(self, port: int, block: bytes, *, connections: int = 1, greeting: bytes = b"") -> None:
        self._port, self._greeting = port, greeting
        self._block = memoryview(block)
        self._connections = connections
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._rest: dict[socket.socket, memoryview] = {}
        self.ends = 0

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            while not self._stop.is_set():
                while len(self._rest) < self._connections:
                    self._connect(selector)
                for key, events in selector.select(0.05):
                    assert isinstance(key.fileobj, socket.socket)
                    self._move(selector, key.fileobj, events)
            for client in self._rest:
                client.close()

    def _connect(self, selector: selectors.BaseSelector) -> None:
        client = socket.create_connection(("127.0.0.1", self._port), timeout=SECONDS)
        client.sendall(self._greeting)
        client.setblocking(False)
        selector.register(client, selectors.EVENT_READ | selectors.EVENT_WRITE)
        self._rest[client] = self._block

    def _move(self, selector: selectors.BaseSelector, client: socket.socket, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                rest = self._rest[client]
                self._rest[client] = rest[client.send(rest) :] or self._block
            if events & selectors.EVENT_READ and not client.recv(1 << 20):
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            selector.unregister(client)
            client.close()
            del self._rest[client]
            self.ends += 1


def wait_until_busy(scene: Scene, flood: Flood, since: float) -> None:
    deadline = time.monotonic() + SECONDS
    while scene.cpu - since < BUSY_SECONDS and flood.ends < MOST_ENDS:
        assert time.monotonic() < deadline, "the flood does not reach the gateway"
        threading.Event().wait(0.005)


def cpu_until_response(scene: Scene, port: int, request: bytes, expected: bytes = b"HTTP/1.1 200 OK\r\n") -> float:
    """Send *request* on a new connection; returns the gateway's CPU time until its response, in milliseconds.

    Infinite if there is none after a second of CPU time.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client:
        client.settimeout(0.1)
        before = scene.cpu
        client.sendall(request)
        deadline = time.monotonic() + SECONDS
        while scene.cpu - before < 1.0:
            assert time.monotonic() < deadline, "the gateway hangs"
            with suppress(TimeoutError):
                response = client.recv(4096)
                spent = (scene.cpu - before) * 1000
                assert response.startswith(expected)
                return spent
    return math.inf


def pipelined(request: bytes) -> bytes:
    return request * math.ceil(BLOCK / len(request))


@dataclass(frozen=True)
class Row:
    """What is sent again and again: to the listener for requests, unless *port* is another one."""

    block: Callable[[Scene], bytes]
    connections: int = 1
    greeting: bytes = b""
    port: Callable[[Scene], int] = lambda scene: scene.gateway.port


def http(*head: str, body: bytes = b"") -> Row:
    return Row(lambda scene: pipelined(lines(*head, body=body)))


def user(path: str, **more: Any) -> Row:
    return Row(lambda scene: pipelined(scene.request("mallory", path)), **more)


def grpc(kind: int, payload: bytes = b"", *, stream: int = 0) -> Row:
    """Frames of HTTP/2 after the preface and an empty SETTINGS; stream 1 is a call whose message never comes."""
    greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4)
    call = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", METHOD), (b":authority", b"gateway")]
    greeting += frame(1, Encoder().encode([*call, (b"content-type", b"application/grpc")]), flags=4, stream=1)
    block = pipelined(frame(kind, payload, stream=stream))
    return Row(lambda scene: block, greeting=greeting, port=lambda scene: scene.grpc_port)


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def spoe(payload: bytes) -> Row:
    block = pipelined(spop.frame(spop.NOTIFY, 1, 1, payload))
    return Row(lambda scene: block, greeting=hello(), port=lambda scene: scene.spoe_port)


FLOODS: dict[str, Row] = {
    "401 without a token": http("GET /api/v1/pods HTTP/1.1"),
    "401 with a body": http("POST /api HTTP/1.1", body=b"x" * 100),
    "OPTIONS *": http("OPTIONS * HTTP/1.1"),
    "403": user("/denied"),
    "PING": grpc(6, b"12345678"),
    "empty DATA": grpc(0, stream=1),
    "a wrong SPOE secret": spoe(b"\x05check\x00"),
}
MORE_FLOODS: dict[str, Row] = {
    "401 with a Basic header": http("GET /api HTTP/1.1", "Authorization: Basic bWU6bWU="),
    "401 with a malformed token": http("GET /api HTTP/1.1", "Authorization: Bearer " + "x" * 40),
    "401 with an unknown token": http("GET /api HTTP/1.1", f"Authorization: Bearer {new_token().reveal()}"),
    "401 with a chunked body": Row(
        lambda scene: pipelined(
            lines("POST /api HTTP/1.1", "Transfer-Encoding: chunked") + b"4\r\nbody\r\n0\r\nX: y\r\n\r\n"
        )
    ),
    "401 on many connections": Row(lambda scene: pipelined(lines("GET /api HTTP/1.1")), connections=16),
    "400": http("GET /api HTTP/1.1", "Authorization: Bearer a", "Authorization: Bearer b"),
    "404": user("/auth/there-is-no-such-page"),
    "empty lines": Row(lambda scene: b"\r\n" * (BLOCK // 2)),
    "bytes that are no request": Row(lambda scene: b"garbage\r\n\r\n" * (BLOCK // 11)),
    "200 of the upstream": user("/allowed"),
    "200 of the upstream, on many connections": Row(lambda scene: scene.request("mallory"), connections=8),
    "the sign-in page": http("GET /auth HTTP/1.1"),
    "device codes": http("POST /auth/device HTTP/1.1", "Content-Type: application/json", body=b"{}"),
    "introspection": http("POST /webhooks/token-review HTTP/1.1", body=b"{}"),
    "probes": Row(
        lambda scene: pipelined(lines("GET /livez HTTP/1.1")), port=lambda scene: scene.health_port, connections=4
    ),
    "SETTINGS": grpc(4),
    "WINDOW_UPDATE": grpc(8, b"\0\0\0\1"),
    "PRIORITY": grpc(2, b"\0\0\0\0\1", stream=5),
    "DATA of one byte": grpc(0, b"x", stream=1),
    "SPOE frames of an unknown type": Row(
        lambda scene: pipelined(spop.frame(77, 1, 1, b"x")), greeting=hello(), port=lambda scene: scene.spoe_port
    ),
}


@pytest.mark.parametrize("name", [*FLOODS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_FLOODS)])
def test_others_are_served_during_a_flood(scene: Scene, name: str) -> None:
    row = (FLOODS | MORE_FLOODS)[name]
    cpu_until_response(scene, scene.gateway.port, scene.request())
    flood = Flood(row.port(scene), row.block(scene), connections=row.connections, greeting=row.greeting)
    with flooding(scene, flood):
        measure(scene, name)


class Handshakes(Flood):
    """Connections that do nothing but a TLS handshake, each of which is a full one."""

    def _run(self) -> None:
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        while not self._stop.is_set():
            with suppress(OSError), ExitStack() as stack:
                clients = []
                for _ in range(self._connections):
                    client = stack.enter_context(socket.create_connection(("127.0.0.1", self._port), timeout=SECONDS))
                    clients.append(trust.wrap_socket(client, do_handshake_on_connect=False))
                    stack.callback(clients[-1].close)
                # The gateway finds all of them in one iteration of its loop.
                for client in clients:
                    client.setblocking(False)
                    with suppress(ssl.SSLWantReadError):
                        client.do_handshake()
                for client in clients:
                    client.settimeout(SECONDS)
                    client.do_handshake()


@pytest.mark.slow
def test_others_are_served_during_a_flood_of_tls_handshakes(tmp_path: Path) -> None:
    site = Site(tmp_path / "gateway", trustme.CA())
    site.users("jane")
    with site.serving(listen={"drain": "0s"}) as gateway:
        scene = Scene(gateway, {}, 0, 0)
        hello = client_hello(gateway)
        with flooding(scene, Handshakes(gateway.port, b"", connections=30)):
            handshakes = [cpu_until_response(scene, gateway.port, hello, b"\x16\x03\x03") for _ in range(SAMPLES)]
            probes = [
                cpu_until_response(scene, scene.health_port, lines("GET /livez HTTP/1.1")) for _ in range(SAMPLES)
            ]
        report("TLS handshakes", statistics.median(handshakes), statistics.median(probes))
        assert statistics.median(handshakes) <= REQUEST_BUDGET, handshakes
        assert statistics.median(probes) <= PROBE_BUDGET, probes


def client_hello(gateway: ServedGateway) -> bytes:
    """The first bytes of a TLS handshake; the server's response follows at once."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = gateway.trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@contextmanager
def flooding(scene: Scene, flood: Flood) -> Iterator[None]:
    lines_before, cpu, began = len(scene.gateway.lines), scene.cpu, time.monotonic()
    with flood:
        wait_until_busy(scene, flood, cpu)
        yield
    seconds = math.ceil(time.monotonic() - began)
    logged = len(scene.gateway.lines) - lines_before
    assert logged <= LOG_LINES_PER_SECOND * (seconds + 1), scene.gateway.lines[-1]


def measure(scene: Scene, name: str) -> None:
    """Both are the median, since the test's own process may get the CPU late."""
    requests = [cpu_until_response(scene, scene.gateway.port, scene.request()) for _ in range(SAMPLES)]
    probes = [cpu_until_response(scene, scene.health_port, lines("GET /livez HTTP/1.1")) for _ in range(SAMPLES)]
    request, probe = statistics.median(requests), statistics.median(probes)
    report(name, request, probe)
    assert request <= REQUEST_BUDGET, requests
    assert probe <= PROBE_BUDGET, probes
    assert memory_of(scene.gateway.pid) < LARGEST_PROCESS


def report(name: str, request: float, probe: float) -> None:
    """Append the figures to the file that ``FAIRNESS_REPORT`` names."""
    if "FAIRNESS_REPORT" in os.environ:
        with Path(os.environ["FAIRNESS_REPORT"]).open("a") as file:
            file.write(f"{name}: request {request:.1f} ms, probe {probe:.1f} ms\n")


def memory_of(pid: int) -> int:
    """The resident set of a process, in bytes."""
    (row,) = [row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("VmRSS:")]
    return int(row.split()[1]) * 1024
