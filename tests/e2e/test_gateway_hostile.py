"""The whole gateway between the worst of both sides: upstreams that break every rule, and clients that do.

The last test here is the promise that everything else rests on: whatever bytes a client sends, in whatever pieces,
what reaches an upstream was allowed exactly as it arrives there.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.config import loads
from ostiary_gateway.config.gateway_config import AuthorizationSettings, GatewayConfig
from ostiary_gateway.config.provider import Authorization
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.server.listener import bind
from ostiary_gateway.server.worker import Worker
from tests.support.cluster.hostile import BEHAVIOURS, SMUGGLED, Hostile, send
from tests.support.http1 import (
    SECONDS,
    Client,
    Malformed,
    Message,
    Upstream,
    Upstreamed,
    connected,
    get,
    turn,
    until,
    upstream,
)

USER = UserInfo("alice", "7", ("dev", "a,system:masters"))
CREDENTIAL = "the-gateways-own-credential"


@dataclass(frozen=True)
class Line:
    """What was decided on."""

    user: str
    method: str
    path: str
    query: str
    upgrade: str


class WholeLine:
    """A mapper that keeps all of the request line, so that the decision is about all of it."""

    def request_info(self, line: RequestLine) -> RequestInfo:
        return RequestInfo(line.method.lower(), line.method, line.path, modifier=line.upgrade, name=line.query)

    def long_running(self, info: RequestInfo) -> bool:
        return info.path.startswith("/stream")


@dataclass
class Recording:
    """Allows what does not say otherwise, and writes down what it allowed."""

    allowed: set[Line] = field(default_factory=set)

    def decide(self, attributes: Attributes) -> Decision:
        request = attributes.request
        if request.verb == "impersonate":
            return Decision(Verdict.ALLOW if request.name == "friend" else Verdict.DENY)
        if "deny" in request.path or "deny" in request.name or request.method == "DELETE":
            return Decision(Verdict.DENY)
        self.allowed.add(Line(attributes.user.username, request.method, request.path, request.name, request.modifier))
        return Decision(Verdict.ALLOW)

    async def authorize(self, attributes: Attributes) -> Decision:
        return self.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


@dataclass
class Door:
    worker: Worker
    port: int
    token: str
    recording: Recording
    trust: ssl.SSLContext | None = None

    def ask(self, target: str, *lines: str, method: str = "GET", body: bytes = b"") -> bytes:
        return get(target, f"Authorization: Bearer {self.token}", *lines, method=method, body=body)

    def later(self, seconds: float) -> None:
        self.worker.app.tick(asyncio.get_running_loop().time() + seconds)


@asynccontextmanager
async def gateway(folder: Path, server: str, *, ca: trustme.CA | None = None) -> AsyncIterator[Door]:
    """A worker in this loop, before one upstream. With *ca* there is TLS on both sides."""
    (folder / "token").write_text(CREDENTIAL)
    listen: dict[str, Any] = {"address": "127.0.0.1:0"}
    tls: dict[str, Any] = {}
    trust = None
    if ca is not None:
        ca.cert_pem.write_to_path(str(folder / "ca.pem"))
        ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(folder / "server.pem"))
        listen["tls"] = {"certificate": "server.pem", "key": "server.pem"}
        tls = {"tls": {"ca": "ca.pem"}}
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        ca.configure_trust(trust)
    text = json.dumps(
        {
            "apiVersion": "ostiary.dev/v1",
            "kind": "Gateway",
            "listen": listen,
            "health": {"address": "127.0.0.1:0"},
            "store": {"type": "memory"},
            "identity": [{"name": "me", "type": "single_user"}],
            "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
            "upstreams": [
                {
                    "name": "hostile",
                    "server": server,
                    "identity": "impersonation",
                    "attributes": "http",
                    "tokenFile": "token",
                    **tls,
                }
            ],
            "audit": {"log": {"path": "audit.log"}},
        }
    )
    recording = Recording()
    config = _with(loads(text, directory=folder), recording)
    listener = bind(config.listen.address)
    worker = Worker(config, listener)
    await worker.start()
    issued = await worker.app.shared.tokens.issue(USER, provider="me")
    try:
        yield Door(worker, listener.getsockname()[1], issued.token.reveal(), recording, trust)
    finally:
        await worker.close(drain=0.0)
        listener.close()
        await turn()


def _with(config: GatewayConfig, recording: Recording) -> GatewayConfig:
    chain = (Authorization("recording", "recording", recording),)
    whole = replace(config.upstreams[0], attributes=replace(config.upstreams[0].attributes, instance=WholeLine()))
    return replace(config, authorization=AuthorizationSettings(chain), upstreams=(whole,))


# --- upstreams that break the rules ---

FAILED = frozenset({502, 503, 504})
# The answer is whole, or at least may be taken for what the upstream meant.
WHOLE = {
    "body-too-long": 200,
    "body-after-no-content": 204,
    "redirect": 302,
    "close-after-promise": 200,
}
STALLS = [name for name in BEHAVIOURS if name.startswith("stall")]
KEEPS_CONNECTION = frozenset({"redirect"})


@pytest.fixture
def hostile() -> Iterator[Hostile]:
    with Hostile() as made:
        yield made


async def outcome(client: Client, request: bytes) -> int:
    """The status of a whole answer, or 0 if it was cut."""
    client.send(request)
    try:
        answer = await client.answer()
    except (EOFError, ConnectionError):
        return 0
    assert b"smuggled" not in answer.body
    return answer.status


@pytest.mark.parametrize("name", [name for name in BEHAVIOURS if name not in (*STALLS, "body-without-end")])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_upstream_that_breaks_the_rules_is_a_failure_and_never_half_an_answer(
    tmp_path: Path, hostile: Hostile, name: str, method: str
) -> None:
    """P6."""
    async with gateway(tmp_path, hostile.url) as door, connected(door.port) as client:
        status = await outcome(client, door.ask(f"/{name}", method=method))
        if name in WHOLE:
            assert status == WHOLE[name]
        else:
            assert status in (FAILED | {0})
        async with connected(door.port) as second:
            for _ in range(2):
                assert await outcome(second, door.ask("/fine")) == 200
        asked = [heard.connection for heard in hostile.requests if heard.target == f"/{name}".encode()]
        fine = {heard.connection for heard in hostile.requests if heard.target == b"/fine"}
        assert len(asked) == 1, "sent twice"
        if name not in KEEPS_CONNECTION | {"close-after-promise"}:
            assert asked[0] not in fine, "a spoiled connection was used again"


@pytest.mark.parametrize("name", STALLS)
async def test_an_upstream_that_stalls_is_given_up_in_time(tmp_path: Path, hostile: Hostile, name: str) -> None:
    async with gateway(tmp_path, hostile.url) as door, connected(door.port) as client:
        client.send(door.ask(f"/{name}"))
        assert await asyncio.to_thread(hostile.stalled.wait, SECONDS)
        if name == "stall-in-body":
            assert (await client.head()).status == 200
        await turn(20)
        door.later(61)
        if name == "stall-in-body":
            with pytest.raises((EOFError, ConnectionError)):
                await client.exactly(7)
        else:
            assert (await client.answer()).status == 504
        assert await asyncio.to_thread(hostile.abandoned.wait, SECONDS)


async def test_an_answer_without_end_ends_with_the_client(tmp_path: Path, hostile: Hostile) -> None:
    async with gateway(tmp_path, hostile.url) as door, connected(door.port) as client:
        client.send(door.ask("/body-without-end"))
        assert (await client.head()).status == 200
        await client.skip(1_000_000)
        (connection,) = door.worker._connections
        assert connection.transport.get_write_buffer_size() < 2_000_000
        client.reset()
        assert await asyncio.to_thread(hostile.abandoned.wait, SECONDS)


@pytest.mark.parametrize("name", [n for n in BEHAVIOURS if n not in (*STALLS, "body-without-end", "switch-unasked")])
async def test_no_rule_that_an_upstream_breaks_opens_a_tunnel(tmp_path: Path, hostile: Hostile, name: str) -> None:
    """P5."""
    async with gateway(tmp_path, hostile.url) as door, connected(door.port) as client:
        request = door.ask(f"/{name}", "Connection: upgrade", "Upgrade: websocket")
        assert await outcome(client, request + b"words for a tunnel") in (FAILED | {0})
        assert await client.closed()
        assert len(hostile.requests) == 1


async def test_bytes_of_an_idle_upstream_are_nobodys_answer(tmp_path: Path, hostile: Hostile) -> None:
    """P6."""
    hostile.script("/late", send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), send(SMUGGLED))
    async with gateway(tmp_path, hostile.url) as door, connected(door.port) as client:
        assert await outcome(client, door.ask("/late")) == 200
        pool = door.worker.app.routes.upstreams[0].pool
        await until(lambda: not pool.connections)
        assert await outcome(client, door.ask("/fine")) == 200


async def test_the_same_over_tls_on_both_sides(tmp_path: Path, ca: trustme.CA) -> None:
    """P6."""
    with Hostile(ca) as hostile:
        async with gateway(tmp_path, hostile.url, ca=ca) as door, connected(door.port, door.trust) as client:
            for name in ("body-too-long", "two-lengths", "garbage", "switch-unasked", "header-huge"):
                status = await outcome(client, door.ask(f"/{name}"))
                assert status == 200 if name == "body-too-long" else status in FAILED
                assert await outcome(client, door.ask("/fine")) == 200


# --- what an upstream is told ---


async def test_an_upstream_hears_exactly_one_identity_and_where_the_request_came_from(tmp_path: Path) -> None:
    """H1, H3, H5, H6, H7, H8."""
    claims = [
        "X-Remote-User: root",
        "x_remote_user: root",
        "X_Forwarded_For: 1.2.3.4",
        "X-Forwarded-For: 1.2.3.4",
        "X-Forwarded-Uri: /other",
        "X-Http-Method-Override: DELETE",
        "Audit-ID: mine",
        "Cookie: __Host-ostiary-login=secret; a=b",
        "Proxy-Authorization: Basic xyz",
    ]
    async with upstream() as made, gateway(tmp_path, f"http://127.0.0.1:{made.port}") as door:
        async with connected(door.port) as client:
            assert (await client.ask(door.ask("/a", *claims))).status == 200
        (heard,) = made.requests
        assert heard.all("Impersonate-User") == [b"alice"]
        assert heard.all("Impersonate-Group") == [b"dev", b"a,system:masters"]
        assert heard.all("Authorization") == [f"Bearer {CREDENTIAL}".encode()]
        assert heard.all("X-Forwarded-For") == [b"127.0.0.1"]
        assert heard.all("Cookie") == [b"a=b"]
        assert len(heard.all("Audit-ID")) == 1
        said = b"\r\n".join(name + value for name, value in heard.headers).lower()
        for word in (b"root", b"1.2.3.4", b"/other", b"delete", b"mine", b"secret", b"xyz"):
            assert word not in said


@pytest.mark.parametrize("listed", ["X-Remote-User", "Impersonate-User", "Authorization", "x_forwarded_for", "Host"])
async def test_connection_cannot_take_away_what_we_set(tmp_path: Path, listed: str) -> None:
    """H2."""
    async with upstream() as made, gateway(tmp_path, f"http://127.0.0.1:{made.port}") as door:
        async with connected(door.port) as client:
            assert (await client.ask(door.ask("/a", f"Connection: close, {listed}"))).status == 400
        assert made.requests == []


async def test_h2c_is_never_offered_to_an_upstream(tmp_path: Path) -> None:
    """P5."""
    async with upstream() as made, gateway(tmp_path, f"http://127.0.0.1:{made.port}") as door:
        async with connected(door.port) as client:
            offer = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAA"]
            assert (await client.ask(door.ask("/a", *offer))).status == 200
            assert (await client.ask(door.ask("/b"))).status == 200
        assert [(heard.all("Upgrade"), heard.all("HTTP2-Settings")) for heard in made.requests] == [([], [])] * 2


async def test_a_refused_request_with_an_expectation_is_refused_before_its_body(tmp_path: Path) -> None:
    """S56."""
    async with upstream() as made, gateway(tmp_path, f"http://127.0.0.1:{made.port}") as door:
        lines = ("Expect: 100-continue", "Content-Length: 4")
        async with connected(door.port) as client:
            answer = await client.ask(door.ask("/deny", *lines, method="POST"))
            assert (answer.status, answer.interim, answer.one("Connection")) == (403, [], b"close")
            assert await client.closed()
        async with connected(door.port) as client:
            client.send(door.ask("/allowed", *lines, method="POST"))
            assert (await client.head()).status == 100
            assert (await client.ask(b"body")).body == b"body"
        assert [heard.target for heard in made.requests] == [b"/allowed"]


async def test_a_whole_address_is_decided_on_and_forwarded_as_its_path(tmp_path: Path) -> None:
    """P1."""
    async with upstream() as made, gateway(tmp_path, f"http://127.0.0.1:{made.port}") as door:
        async with connected(door.port) as client:
            assert (await client.ask(door.ask("http://gateway.test/a?b"))).status == 200
            assert (await client.ask(door.ask("http://other.test/a"))).status == 400
        assert [heard.target for heard in made.requests] == [b"/a?b"]
        assert door.recording.allowed == {Line("alice", "GET", "/a", "b", "")}


async def test_a_user_whose_name_no_header_can_carry_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    """H6."""
    async with upstream() as made, gateway(tmp_path, f"http://127.0.0.1:{made.port}") as door:
        tokens = door.worker.app.shared.tokens
        issued = await tokens.issue(UserInfo("bob", "", (" spaced ",)), provider="me")
        async with connected(door.port) as client:
            answer = await client.ask(get("/a", f"Authorization: Bearer {issued.token.reveal()}"))
            assert answer.status >= 400
        assert made.requests == []


# --- the promise ---

TOKENS = ("TOKEN", "TOKEN", "TOKEN", "TOKEN", "wrong")
METHODS = ("GET", "GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PRI", "get", "GE T")
TARGET_PIECES = (
    *("/", "/a", "/b", "/deny", "//", "/.", "/..", "/%2e%2e", "/%2f", "/%5c", "\\", ";x", "#f", "?", "?x=1", "&x=deny"),
    *("%", "%00", "%25", "%C3%A9", "\t", "\x7f", "é", "*", "http://gateway.test", "http://other.test", "@", ":", " "),
)
HEADER_NAMES = (
    *("Impersonate-User", "impersonate_user", "X-Remote-User", "X_REMOTE_USER", "X-Forwarded-For", "Authorization"),
    *("Host", "Content-Length", "Transfer-Encoding", "transfer-encoding", "Transfer_Encoding", "Connection", "Upgrade"),
    *("Expect", "Cookie", "X-Own", "Content-Length ", " X-Own", "X\x00Own", "Sec-WebSocket-Protocol", "Trailer"),
    *("Audit-ID", "X-HTTP-Method-Override", "Impersonate-Extra-A", "Impersonate-Group"),
)
HEADER_VALUES = (
    *("root", "friend", "0", "4", "5", "+4", "4,4", "chunked", "Chunked", "gzip", "chunked, chunked", "close"),
    *("keep-alive", "upgrade", "websocket", "h2c", "Upgrade, X-Remote-User", "100-continue", "Bearer x", "a\tb", "é"),
    *("gateway.test", "a\r\n b", "a\nX-Remote-User: root", "a\rb", "\x00", "__Host-ostiary=1; a=b", "v5", ""),
)
BODIES = (
    *(b"", b"body", b"4\r\nbody\r\n0\r\n\r\n", b"4;x=y\r\nbody\r\n0\r\nX-Remote-User: root\r\n\r\n", b"0\r\n\r\n"),
    *(b"4\nbody\r\n0\r\n\r\n", b"GET /smuggled?deny HTTP/1.1\r\nHost: gateway.test\r\n\r\n", b"\r\n", b"zz\r\n"),
)
FRAMINGS = (
    *("", "", "Content-Length: 4\r\n", "Content-Length: 0\r\n", "Transfer-Encoding: chunked\r\n"),
    *("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "Connection: upgrade\r\nUpgrade: websocket\r\n"),
    *("Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 4\r\n", "Upgrade: websocket\r\n"),
    "Connection: upgrade\r\nUpgrade: h2c\r\n",
)
VERSIONS = ("HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "RTSP/1.0", "")

targets = st.one_of(
    st.sampled_from(("/a", "/a?x=1", "/b/c", "/deny")),
    st.lists(st.sampled_from(TARGET_PIECES), min_size=1, max_size=4).map("".join),
)
headers = st.lists(st.tuples(st.sampled_from(HEADER_NAMES), st.sampled_from(HEADER_VALUES)), max_size=3)


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    line = f"{draw(st.sampled_from(METHODS))} {draw(targets)} {draw(st.sampled_from(VERSIONS))}\r\n"
    token = draw(st.sampled_from(TOKENS))
    lines = [f"Host: gateway.test\r\nAuthorization: Bearer {token}\r\n", draw(st.sampled_from(FRAMINGS))]
    lines += [f"{name}: {value}\r\n" for name, value in draw(headers)]
    head = (line + "".join(lines) + "\r\n").encode("utf-8")
    framing = lines[1]
    if draw(st.booleans()) and framing == "Content-Length: 4\r\n":
        return head + b"body"
    if draw(st.booleans()) and framing == "Transfer-Encoding: chunked\r\n":
        return head + BODIES[2]
    return head + draw(st.sampled_from(BODIES))


class Scene:
    """One gateway and one upstream for all examples, in one loop."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self._folder = folder
        self.faults: list[str] = []
        self.runner.run(self._open())

    async def _open(self) -> None:
        self._upstream = upstream(self._strict)
        self.upstream: Upstream = await self._upstream.__aenter__()
        self._gateway = gateway(self._folder, f"http://127.0.0.1:{self.upstream.port}")
        self.door: Door = await self._gateway.__aenter__()

    def close(self) -> None:
        async def end() -> None:
            await self._gateway.__aexit__(None, None, None)
            await self._upstream.__aexit__(None, None, None)

        self.runner.run(end())
        self.runner.close()

    async def _strict(self, connection: Upstreamed) -> None:
        """Reads what arrives with a parser of the test's own, and answers it."""
        try:
            while True:
                head = await connection.head()
                self.upstream.requests.append(head)
                await connection._body(head, until_close=False)
                connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        except Malformed as error:
            self.faults.append(str(error))

    async def play(self, data: bytes, cuts: list[int]) -> list[Message]:
        """Send *data* in pieces; gives what the upstream got of it."""
        self.upstream.requests.clear()
        data = data.replace(b"Bearer TOKEN", b"Bearer " + self.door.token.encode())
        async with connected(self.door.port) as client:
            start = 0
            for cut in sorted({min(cut, len(data)) for cut in cuts} | {len(data)}):
                client.send(data[start:cut])
                start = cut
                await turn(3)
            await self._quiet(client)
        await self._gone()
        return list(self.upstream.requests)

    def forget(self) -> None:
        """As if nothing had come before."""
        self.door.worker._http.known.clear()
        self.door.worker.app.engine.forget_plans()

    def again(self, data: bytes) -> list[Message]:
        return self.runner.run(self.play(data, []))

    async def _quiet(self, client: Client) -> None:
        """Until nothing moves any more: the gateway has closed, or waits for bytes that do not come."""
        calm, before = 0, (-1, -1)
        while calm < 12 and not client.reader.at_eof() and client.reader.exception() is None:
            now = (len(self.upstream.requests), len(client.reader._buffer))  # type: ignore[attr-defined]
            calm, before = (calm + 1, before) if now == before else (0, now)
            await asyncio.sleep(0)

    async def _gone(self) -> None:
        await until(lambda: not self.door.worker._connections)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("scene"))
    yield made
    made.close()


OURS = ("impersonate-user", "authorization", "host", "x-forwarded-for", "x-forwarded-proto", "audit-id")
SMUGGLE = b"POST /a HTTP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer TOKEN\r\n"


@given(
    st.lists(requests(), min_size=1, max_size=3).map(b"".join),
    st.lists(st.integers(0, 400), max_size=4),
)
@example(SMUGGLE + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 40\r\n\r\nGET /deny HTTP/1.1\r\n\r\n", [])
@example(SMUGGLE + b"Upgrade: websocket\r\n\r\nGET /deny HTTP/1.1\r\nHost: gateway.test\r\n\r\n", [5, 90])
@example(SMUGGLE + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Remote-User: root\r\n\r\n", [60])
@example(b"GET /a RTSP/1.1\r\nHost: gateway.test\r\nAuthorization: Bearer TOKEN\r\n\r\n", [])
@example(SMUGGLE + b"Impersonate-User: friend\r\n\r\n" + SMUGGLE + b"Impersonate-User: root\r\n\r\n", [])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_everything_that_reaches_an_upstream_was_allowed_exactly_as_it_arrives(
    scene: Scene, data: bytes, cuts: list[int]
) -> None:
    """P1, P6, H1, H2, H5, S42."""
    arrived = scene.runner.run(scene.play(data, cuts))
    assert scene.faults == []
    for message in arrived:
        method, target, version = message.start.decode("ascii").split(" ")
        path, _, query = target.partition("?")
        upgrade = (message.one("Upgrade") or b"").decode().lower()
        names = [name.decode("ascii").lower() for name, _ in message.headers]
        assert version == "HTTP/1.1"
        for name in OURS:
            assert names.count(name) == 1, name
        user = (message.one("Impersonate-User") or b"").decode()
        assert Line(user, method, path, query, upgrade) in scene.door.recording.allowed
        assert message.one("Authorization") == f"Bearer {CREDENTIAL}".encode()
        assert message.one("X-Forwarded-For") == b"127.0.0.1"
        assert message.all("Impersonate-Group") == ([b"dev", b"a,system:masters"] if user == "alice" else [])
        assert not [name for name in names if name.replace("_", "-").startswith("x-remote-")]


PLAIN = SMUGGLE.replace(b"POST", b"GET")


@given(requests(), requests())
@example(SMUGGLE.replace(b"POST /a", b"GET http://gateway.test/a?x=1") + b"\r\n", PLAIN + b"\r\n")
@example(SMUGGLE + b"Content-Length: 4\r\n\r\nbody", SMUGGLE + b"Content-Length: 4\r\n\r\nBODY")
@example(PLAIN + b"X-Own: 1\r\n\r\n", PLAIN + b"X-Own: 2\r\n\r\n")
@example(PLAIN + b"Impersonate-User: friend\r\n\r\n", PLAIN + b"\r\n")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_came_before_changes_nothing_of_what_comes(scene: Scene, first: bytes, second: bytes) -> None:
    """P1, H1: the bytes of a head that came before are not read again, and others are not taken for them."""
    scene.forget()
    fresh = _as_told(scene.again(second))
    scene.forget()
    # The first time the token may have to be looked up; the second time the head is remembered.
    for _ in range(2):
        scene.again(first)
    assert _as_told(scene.again(second)) == fresh
    assert _as_told(scene.again(second)) == fresh
    assert scene.faults == []


def _as_told(arrived: list[Message]) -> list[tuple[bytes, list[tuple[bytes, bytes]], bytes]]:
    """All that an upstream was told, but for the id, which is another each time."""
    return [
        (one.start, [header for header in one.headers if header[0].lower() != b"audit-id"], one.body) for one in arrived
    ]


def test_heads_that_came_before_are_known(scene: Scene) -> None:
    """Else the promise above would be empty."""
    scene.forget()
    data = PLAIN + b"X-Own: known\r\n\r\n"
    for _ in range(3):
        assert len(scene.again(data)) == 1
    bytes_sent = data.replace(b"TOKEN", scene.door.token.encode())
    assert scene.door.worker._http.known.find(hashlib.sha256(bytes_sent).digest()) is not None


def test_the_examples_reach_the_upstream_at_all(scene: Scene) -> None:
    """Else the promise would be empty."""
    first = SMUGGLE + b"Content-Length: 4\r\n\r\nbody"
    second = SMUGGLE.replace(b"POST", b"GET") + b"Impersonate-User: friend\r\n\r\n"
    arrived = scene.runner.run(scene.play(first + second, [10, 100, 200]))
    assert [message.start for message in arrived] == [b"POST /a HTTP/1.1", b"GET /a HTTP/1.1"]
    assert [message.one("Impersonate-User") for message in arrived] == [b"alice", b"friend"]
