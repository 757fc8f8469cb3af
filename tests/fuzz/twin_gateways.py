"""Two gateways in memory, one with every shortcut and one with none, that get the same bytes and must do the same.

Both have the same tokens, policy and clock; transports are lists of bytes. What each sends to its upstream and to its
client, and what it records, is kept in order, without the ids and times that differ anyway.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from ostiary.core.scopes import narrow, parse_scope
from ostiary.model import UserInfo
from ostiary_gateway.config import loads
from ostiary_gateway.http1.client_connection import UpstreamAddress, UpstreamConnection
from ostiary_gateway.http1.server_connection import ServerConnection
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.providers.rbac.provider import RbacAuthorization
from ostiary_gateway.proxy.plan_cache import POLICY_SECONDS
from ostiary_gateway.server.listener import bind
from ostiary_gateway.server.worker import Worker
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.gateway import role
from tests.support.http1 import turn

USERS = (UserInfo("alice", "7", ("dev",), (("team", ("a", "b")),)), UserInfo('bo"b\\', groups=("readers",)))
POLICY = [
    *role(
        "", {"apiGroups": [""], "resources": ["pods", "pods/log", "nodes", "pods/proxy"], "verbs": ["*"]}, User="alice"
    ),
    *role("shop", {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}, Group="readers"),
    *role(
        "",
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["settings"], "verbs": ["get"]},
        {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list", "patch"]},
        Group="readers",
    ),
    *role("", {"apiGroups": [""], "resources": ["users", "groups"], "verbs": ["impersonate"]}, User="alice"),
]
# The same roles and bindings, which say otherwise: names matter, or less is allowed.
POLICIES = (
    POLICY,
    [
        {**each, "rules": [{**rule, "resourceNames": ["web-1", "settings"]} for rule in each["rules"]]}
        if "rules" in each
        else each
        for each in POLICY
    ],
    POLICY[2:],
)
# Tokens of the first user that are less than that user.
SCOPES = ("get,list pods -n shop", "get pods -n shop --name web-1,web-2")
# With the length last, where an answer that is written anew has it.
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-From: upstream\r\nContent-Length: 2\r\n\r\nok"
HELD: tuple[bytes, ...] = ()
# What an upstream may do with a request: answer in so many reads, hang up, or leave it for `Twins.release`.
ANSWERS: tuple[tuple[bytes, ...], ...] = (
    (ANSWER,),
    HELD,
    (ANSWER[:9], ANSWER[9:40], ANSWER[40:]),
    (ANSWER[:-2], ANSWER[-2:]),
    (b"HTTP/1.1 200 OK\r\nX-From: upstream\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", b"1\r\n!\r\n", b"0\r\nX-T: a\r\n\r\n"),
    (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno",),
    (b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere.test/\r\nContent-Length: 0\r\n\r\n",),
    (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 3\r\n\r\nbad",),
    (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", ANSWER),
    (b"HTTP/1.1 204 No Content\r\n\r\n",),
    (b"HTTP/1.1 304 Not Modified\r\nETag: a\r\n\r\n",),
    (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",),
    (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",),
    (b"HTTP/1.1 200 OK\r\n\r\nok", b""),
    (ANSWER[:-1], b""),
    (ANSWER + b"HTTP/1.1 200 OK\r\n",),
    (b"not HTTP\r\n\r\n",),
    (b"",),
)
_AUDIT_ID = re.compile(rb"(?i)(audit-id: |\"requestID\":\"|request id )[0-9a-f-]{36}")


class Memory:
    """A transport that keeps what is written, and hands it to *on_write*."""

    def __init__(self, on_write: Callable[[bytes], None]) -> None:
        self.on_write = on_write
        self.closing = False
        self.protocol: asyncio.Protocol | None = None

    def get_extra_info(self, name: str) -> Any:
        return ("192.0.2.1", 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        if not self.closing:
            self.on_write(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing and self.protocol is not None:
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
        self.closing = True

    abort = close

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_reading(self) -> bool:
        return True


@dataclass
class Side:
    """One of the two."""

    worker: Worker
    log: list[tuple[str, object]] = field(default_factory=list)
    connection: ServerConnection | None = None
    transport: Memory | None = None
    # What the upstream does with the next requests, and those that it has left unanswered.
    answer: tuple[bytes, ...] = ANSWERS[0]
    held: list[Callable[[bytes], None]] = field(default_factory=list)
    is_paused: bool = False

    # Of an audit sink.
    dropped = 0

    def accept(self, line: str) -> None:
        try:
            event = json.loads(line)
        except ValueError:
            # Raised here it would count as a failure of the sink.
            self.log.append(("not JSON", line))
            return
        for name in ("auditID", "requestReceivedTimestamp", "stageTimestamp"):
            assert event.pop(name)
        self.log.append(("event", event))

    async def flush(self) -> None: ...

    async def attach(self) -> None:
        self.worker.app.auditor.sinks = (self,)
        # Until what runs in the background waits for what it waits for.
        await turn(5)
        for upstream in self.worker.app.routes.upstreams:
            upstream.pool._dial = self._dial
            # The gateway tries a rejected credential again when the real clock says so, in the midst of anything. With
            # another event nobody waits for it.
            upstream.credential_rejected = asyncio.Event()

    async def _dial(
        self, address: UpstreamAddress, loop: asyncio.AbstractEventLoop, make: Callable[[], UpstreamConnection]
    ) -> UpstreamConnection:
        connection = make()

        def deliver(part: bytes) -> None:
            if transport.closing:
                return
            if part:
                connection.data_received(part)
            else:
                transport.close()

        def answer(data: bytes) -> None:
            self.log.append(("upstream", _AUDIT_ID.sub(rb"\1", data)))
            if self.answer is HELD:
                self.held.append(deliver)
            # Bodies come with the head here, and a request to switch protocols is refused.
            for part in self.answer:
                loop.call_soon(deliver, part)

        transport = Memory(answer)
        transport.protocol = connection
        connection.connection_made(cast("asyncio.Transport", transport))
        return connection

    def send(self, data: bytes) -> None:
        if self.connection is None or self.transport is None or self.transport.closing:
            self.connect()
        assert self.connection is not None
        self.connection.data_received(data)

    async def settle(self) -> None:
        """Wait until nothing happens any more: it may take several connections, one after the other."""
        happened = -1
        while happened != len(self.log):
            happened = len(self.log)
            await turn(12)

    @property
    def idle(self) -> list[int]:
        """How many idle connections each upstream has."""
        return [len(upstream.pool._idle) for upstream in self.worker.app.routes.upstreams]

    def close_idle(self) -> None:
        for upstream in self.worker.app.routes.upstreams:
            upstream.pool._close_idle()

    def release(self) -> None:
        """Answer whatever waits."""
        held, self.held = self.held, []
        for deliver in held:
            deliver(ANSWER)

    def pause_or_resume(self) -> None:
        """The client stops reading, or goes on."""
        if self.connection is None or self.transport is None or self.transport.closing:
            return
        self.is_paused = not self.is_paused
        if self.is_paused:
            self.connection.pause_writing()
        else:
            self.connection.resume_writing()

    def tick(self) -> None:
        self.worker.app.shared.authenticator.tick()
        self.worker.app.engine.tick()

    def connect(self) -> None:
        self.hang_up()
        self.is_paused = False
        self.connection = self.worker._http.connection()
        self.transport = Memory(lambda data: self.log.append(("client", _AUDIT_ID.sub(rb"\1", data))))
        self.transport.protocol = self.connection
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    def hang_up(self) -> None:
        if self.transport is not None and not self.transport.closing:
            self.log.append(("client", "still open"))
            self.transport.close()
        self.connection = self.transport = None

    def forget(self) -> None:
        """Remember nothing: what was sent before is no part of what comes."""
        self.hang_up()
        self.answer, self.held = ANSWERS[0], []
        self.close_idle()
        self.worker._http.heads.clear()
        self.worker.app.engine.forget_plans()
        self.log.clear()


@dataclass
class Twins:
    """Both of them. `tokens` are those of `USERS`, and those of `SCOPES`."""

    sides: tuple[Side, Side]
    clock: FakeClock
    tokens: list[bytes]
    policy: Path

    async def send(self, data: bytes) -> None:
        for side in self.sides:
            side.send(data)
            await side.settle()

    async def do(self, what: Callable[[Side], None]) -> None:
        """The same to both of them."""
        for side in self.sides:
            what(side)
            await side.settle()

    def use_answer(self, number: int) -> None:
        # Whether a lost connection is replaced depends on whether it was idle before. A redirect that is refused leaves
        # its connection idle only if it came whole, which is never noticed without shortcuts.
        if self.sides[0].idle != self.sides[1].idle:
            for side in self.sides:
                side.close_idle()
        for side in self.sides:
            side.answer = ANSWERS[number]

    async def renew_tokens(self) -> None:
        tokens = self.sides[0].worker.app.shared.tokens
        issued = [await tokens.issue(user, provider="me") for user in USERS]
        narrowed = [
            await tokens.mint(
                issued[0].session,
                lifetime=timedelta(minutes=10),
                delegation=narrow(None, parse_scope(scope)).encode(),
            )
            for scope in SCOPES
        ]
        every = (*(each.token for each in issued), *(each.token for each in narrowed))
        self.tokens = [token.reveal().encode() for token in every]

    def use_policy(self, number: int) -> None:
        """Put another one of `POLICIES` into force, as changed files are."""
        self._write_policy(number)
        for side in self.sides:
            for provider in side.worker.app.authorizer._providers:
                cast("RbacAuthorization", provider._provider).check_now()
        # For so long the gateway need not notice.
        self.clock.advance(2 * POLICY_SECONDS)

    def _write_policy(self, number: int) -> None:
        text = "\n---\n".join(map(json.dumps, POLICIES[number]))
        if text != self.policy.read_text():
            self.policy.write_text(text)

    async def revoke(self, number: int) -> None:
        tokens = self.sides[0].worker.app.shared.tokens
        found = await tokens.find(self.tokens[number].decode())
        if found is not None:
            await tokens.revoke(RevocationKind.SESSION, found.session.id)
        for side in self.sides:
            await side.worker.app.shared.authenticator.feed.confirm()

    def start_anew(self) -> None:
        self.use_policy(0)
        for side in self.sides:
            side.forget()

    def compare(self) -> None:
        with_shortcuts, without = (side.log for side in self.sides)
        for number, (first, second) in enumerate(zip(with_shortcuts, without, strict=False)):
            assert first == second, f"step {number}: with {first}, without {second}"
        assert len(with_shortcuts) == len(without)


@asynccontextmanager
async def twin_gateways(folder: Path) -> AsyncIterator[Twins]:
    (folder / "policy.yaml").write_text("\n---\n".join(map(json.dumps, POLICY)))
    text = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "listen": {"address": "127.0.0.1:0", "limits": {"headers": 20}, "dropHeaders": ["X-Dropped"]},
        "health": {"address": "127.0.0.1:0"},
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {
            "chain": [{"name": "policy", "type": "rbac", "paths": ["policy.yaml"], "watch": False}],
            "cacheTTL": "10s",
        },
        "upstreams": [
            {"name": "k", "server": "http://127.0.0.1:1", "attributes": "kubernetes"},
            {"name": "h", "server": "http://127.0.0.1:2", "attributes": "http", "prefix": "/app", "identity": "none"},
            # Among the objects of the first one.
            {"name": "n", "server": "http://127.0.0.1:3", "attributes": "kubernetes", "prefix": "/api/v1/nodes/web-2"},
        ],
        "limits": {"failuresPerMinute": 0},
        "audit": {"log": {"path": "audit.log"}},
    }
    clock = FakeClock()
    store = MemoryTokenStore(clock=clock)
    sides = []
    for name in ("with", "without"):
        config = loads(json.dumps(text), directory=folder)
        config = replace(config, store=replace(config.store, instance=store))
        worker = Worker(config, bind(config.listen.address), clock=clock, shortcuts=name == "with")
        await worker.start()
        side = Side(worker)
        await side.attach()
        sides.append(side)
    twins = Twins((sides[0], sides[1]), clock, [], folder / "policy.yaml")
    await twins.renew_tokens()
    try:
        yield twins
    finally:
        for side in sides:
            side.hang_up()
            await side.worker.close(drain=0.0)
        await turn()
