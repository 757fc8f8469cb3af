"""A gateway in the test's own process, with the test's clock, policy and upstream, for tests of a request's path."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway.audit.ended_requests import EndedRequest
from ostiary_gateway.config import loads
from ostiary_gateway.config.gateway_config import AuthorizationSettings, GatewayConfig
from ostiary_gateway.config.provider import Authorization
from ostiary_gateway.interfaces.token_store import Found, RevocationBatch
from ostiary_gateway.server.listener import bind
from ostiary_gateway.server.worker import Worker
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.support.http1 import Client, Message, Upstream, Upstreamed, connected, get, turn, until

ALICE = UserInfo("alice", "7", ("dev",))
ALLOW = Decision(Verdict.ALLOW, "because")
DENY = Decision(Verdict.DENY, "never")
Rule = Callable[[Attributes], Decision]


class Policy:
    """An authorization provider that does what the test says; it waits as long as `gate` is shut."""

    def __init__(self, rule: Rule | Decision = ALLOW) -> None:
        self.rule = rule
        self.fails = False
        self.asked: list[Attributes] = []
        self.reached, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def authorize(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        self.reached.set()
        await self.gate.wait()
        return self._say(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()

    def _say(self, attributes: Attributes) -> Decision:
        if self.fails:
            raise ProviderError("it cannot be asked", cause="connection refused")
        return self.rule if isinstance(self.rule, Decision) else self.rule(attributes)


class ImmediatePolicy(Policy):
    """Decides without waiting, and can tell that it has changed."""

    revision = 1

    def decide(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        return self._say(attributes)


class NamelessPolicy(ImmediatePolicy):
    """Says whether names matter to it."""

    matters = False

    def name_matters(self, attributes: Attributes) -> bool:
        return self.matters


class Store(MemoryTokenStore):
    """Can be down, and waits in the middle of a lookup as long as `gate` is shut."""

    def __init__(self, *, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.down = False
        self.lookups = 0
        self.reached, self.gate = asyncio.Event(), asyncio.Event()
        self.gate.set()

    async def find(self, digest: bytes) -> Found | None:
        self.lookups += 1
        self._check()
        record = await super().find(digest)
        self.reached.set()
        await self.gate.wait()
        return record

    async def revocations_after(self, sequence: int | None) -> RevocationBatch:
        self._check()
        return await super().revocations_after(sequence)

    def _check(self) -> None:
        if self.down:
            raise ProviderError("the token store cannot be used", cause="no route to host")


def at(made: Upstream) -> str:
    return f"http://127.0.0.1:{made.port}"


def configured(folder: Path, server: str, policy: Policy | None = None, **sections: Any) -> GatewayConfig:
    """One upstream at *server*; *policy* decides, or everybody may do everything."""
    text = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "listen": {"address": "127.0.0.1:0"},
        "health": {"address": "127.0.0.1:0"},
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
        "upstreams": [{"name": "api", "server": server, "identity": "none", "attributes": "http"}],
        "audit": {"log": {"path": "audit.log"}},
        **sections,
    }
    config = loads(json.dumps(text), directory=folder)
    if policy is None:
        return config
    settings = replace(config.authorization, chain=(Authorization("policy", "policy", policy),))
    assert isinstance(settings, AuthorizationSettings)
    return replace(config, authorization=settings)


def kubernetes(server: str) -> list[dict[str, Any]]:
    """The ``upstreams`` of a gateway in front of a Kubernetes API."""
    return [{"name": "k", "server": server, "attributes": "kubernetes", "identity": "none"}]


class Gateway:
    """A worker that listens, and a client that is connected to it."""

    def __init__(self, worker: Worker, port: int, clock: FakeClock, store: Store, token: str, client: Client) -> None:
        self.worker, self.port, self.clock, self.store = worker, port, clock, store
        self.token, self.client = token, client
        # Where it listens for gRPC, if it does.
        self.grpc_port = 0

    def request(self, target: str = "/x", *lines: str, **more: Any) -> bytes:
        return get(target, f"Authorization: Bearer {self.token}", *lines, **more)

    async def ask(self, target: str = "/x", *lines: str, **more: Any) -> Message:
        """The answer to a request with the token of alice."""
        return await self.client.ask(self.request(target, *lines, **more), more.get("method", "GET"))

    async def ask_once(self, target: str = "/x", *lines: str, **more: Any) -> Message:
        """The same on a connection of its own, for what ends its connection."""
        async with connected(self.port) as client:
            return await client.ask(self.request(target, *lines, **more), more.get("method", "GET"))

    async def tick(self, seconds: float = 0.0) -> None:
        """Time passes, a second at a time, and the ticker does its work."""
        while True:
            step = min(1.0, seconds)
            self.clock.advance(step)
            seconds -= step
            for app in (self.worker.app, *self.worker._old):
                app.engine.tick()
            await turn(20)
            if seconds <= 0:
                return

    async def events(self) -> list[dict[str, Any]]:
        """The audit events so far."""
        await self.worker.app.auditor.flush()
        path = self.worker.app.config.directory / "audit.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def count(self, metric: str, *labels: str) -> float:
        """How often something was counted, in the series that have these labels."""
        series = self.worker.snapshot()[f"ostiary_gateway_{metric}"]["series"]
        return sum(cast(float, value) for names, value in series if set(labels) <= set(names))

    def ended(self, answer: Message) -> EndedRequest | None:
        """What ``ostiary-gateway explain`` says about the id of an answer."""
        audit_id = answer.one("Audit-Id")
        assert audit_id is not None
        ended = self.worker.app.shared.ended.recall(audit_id.decode())
        assert ended is None or (ended.id.encode(), ended.status) == (audit_id, answer.status)
        return ended

    @property
    def seats(self) -> int:
        return self.worker.app.shared.limits.seats.in_flight

    @property
    def streams(self) -> int:
        return self.worker.app.shared.limits.streams.open_in_all


class InnerFailures(logging.Handler):
    """Notes what went wrong inside the gateway. The client may not notice: it has been answered already."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "asyncio" or record.getMessage() == "a request failed inside the gateway":
            self.messages.append(f"{record.getMessage()}: {record.__dict__.get('cause')} {record.exc_info}")


@asynccontextmanager
async def serving(
    config: GatewayConfig, user: UserInfo = ALICE, *, may_fail_inside: bool = False, shortcuts: bool = True
) -> AsyncIterator[Gateway]:
    """A gateway with *config*, and a client with a token of *user*."""
    failures = InnerFailures()
    logs = [logging.getLogger(name) for name in ("ostiary.gateway", "asyncio")]
    for log in logs:
        log.addHandler(failures)
    try:
        async with _serving(config, user, shortcuts=shortcuts) as gateway:
            yield gateway
    finally:
        for log in logs:
            log.removeHandler(failures)
    assert may_fail_inside or failures.messages == []


@asynccontextmanager
async def _serving(config: GatewayConfig, user: UserInfo, *, shortcuts: bool) -> AsyncIterator[Gateway]:
    clock = FakeClock()
    store = Store(clock=clock)
    config = replace(config, store=replace(config.store, instance=store))
    with bind(config.listen.address) as listener:
        port = listener.getsockname()[1]
        grpc = None if config.listen.grpc is None else bind(config.listen.grpc.address)
        grpc_port = 0 if grpc is None else int(grpc.getsockname()[1])
        worker = Worker(config, listener, clock=clock, grpc_listener=grpc, shortcuts=shortcuts)
        await worker.start()
        issued = await worker.app.shared.tokens.issue(user, provider="me")
        try:
            async with connected(port) as client:
                gateway = Gateway(worker, port, clock, store, issued.token.reveal(), client)
                gateway.grpc_port = grpc_port
                yield gateway
        finally:
            await worker.close(drain=0.0)
            await turn()


async def another_token(site: Gateway, user: UserInfo) -> str:
    return (await site.worker.app.shared.tokens.issue(user, provider="me")).token.reveal()


# --- upstreams ---


async def endless(connection: Upstreamed) -> None:
    """Begins an answer and never ends it."""
    connection.upstream.requests.append(await connection.head())
    connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
    await connection.rest()


async def silent(connection: Upstreamed) -> None:
    """Takes a request and says nothing."""
    connection.upstream.requests.append(await connection.head())
    await connection.rest()


@asynccontextmanager
async def opened(site: Gateway, *request: str, token: str = "") -> AsyncIterator[Client]:
    """A connection with an answer that has begun and goes on."""
    async with connected(site.port) as client:
        data = site.request(*request)
        client.send(data.replace(site.token.encode(), token.encode()) if token else data)
        assert (await client.head()).status == 200
        yield client


def is_cut(client: Client) -> bool:
    return client.reader.at_eof() or client.reader.exception() is not None


async def cut(client: Client) -> None:
    """Wait until the gateway has ended the connection."""
    await until(lambda: is_cut(client))
