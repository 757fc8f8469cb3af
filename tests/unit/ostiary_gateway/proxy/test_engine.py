"""The way of a request through a real worker, on a real socket: what is remembered, given back, refused."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway.audit import recorded
from ostiary_gateway.config import loads
from ostiary_gateway.config.gateway_config import AuthorizationSettings, GatewayConfig
from ostiary_gateway.config.provider import Authorization, Provider
from ostiary_gateway.interfaces.token_store import Found, RevocationKind
from ostiary_gateway.proxy.head_cache import CachedHead
from ostiary_gateway.server.listener import bind
from ostiary_gateway.server.worker import Worker
from ostiary_gateway.stores.memory import MemoryTokenStore
from tests.support.http1 import Client, Script, Upstream, Upstreamed, connected, get, turn, until, upstream

ALICE = UserInfo("alice", "7", ("dev",))


def configured(folder: Path, server: str, **sections: Any) -> GatewayConfig:
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
    return loads(json.dumps(text), directory=folder)


@dataclass
class Served:
    worker: Worker
    port: int
    token: str
    client: Client

    def request(self, path: str = "/x", *lines: str, **more: Any) -> bytes:
        return get(path, f"Authorization: Bearer {self.token}", *lines, **more)

    @property
    def seats(self) -> int:
        return self.worker.app.shared.limits.seats.in_flight


@asynccontextmanager
async def served(config: GatewayConfig) -> AsyncIterator[Served]:
    with bind(config.listen.address) as listener:
        port = listener.getsockname()[1]
        worker = Worker(config, listener)
        await worker.start()
        issued = await worker.app.shared.tokens.issue(ALICE, provider="me")
        try:
            async with connected(port) as client:
                yield Served(worker, port, issued.token.reveal(), client)
        finally:
            await worker.close(drain=0.0)
            await turn()


def named(name: bytes) -> Script:
    async def script(connection: Upstreamed) -> None:
        while True:
            connection.upstream.requests.append(await connection.request())
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(name), name))

    return script


def at(made: Upstream) -> str:
    return f"http://127.0.0.1:{made.port}"


# --- heads that came before ---


async def test_a_head_is_remembered_when_it_comes_for_the_second_time(tmp_path: Path) -> None:
    async with upstream() as made, served(configured(tmp_path, at(made))) as site:
        known = []
        for _ in range(4):
            assert (await site.client.ask(site.request())).status == 200
            known.append(len(site.worker._http.known))
        for number in range(20):
            await site.client.ask(site.request(f"/{number}"))
        assert known == [0, 1, 1, 1]
        assert len(site.worker._http.known) == 1, "who asks for ever new things pushes nobody out"


async def test_what_is_remembered_holds_no_token_and_dies_with_it(tmp_path: Path) -> None:
    async with upstream() as made, served(configured(tmp_path, at(made))) as site:
        for _ in range(3):
            await site.client.ask(site.request())
        (head,) = site.worker._http.known._heads.values()
        assert isinstance(head.known, CachedHead)
        assert head.headers == []
        assert head.known.scanned.authorization is None
        assert site.token not in repr(head.known.scanned.lines)
        tokens = site.worker.app.shared.tokens
        await tokens.revoke(RevocationKind.USER, "alice")
        await until(lambda: not site.worker.app.shared.authenticator.size)
        assert (await site.client.ask(site.request())).status == 401
        assert head.known.token is None
        assert (await site.client.ask(site.request())).status == 401


async def test_a_request_that_a_reload_overtakes_leaves_no_plan_behind(tmp_path: Path) -> None:
    class Slow(MemoryTokenStore):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.go_on = asyncio.Event(), asyncio.Event()

        async def find(self, token_digest: bytes) -> Found | None:
            found = await super().find(token_digest)
            self.asked.set()
            await self.go_on.wait()
            return found

    store = Slow()
    async with upstream(named(b"old")) as old, upstream(named(b"new")) as new:
        first = configured(tmp_path, at(old))
        first = replace(first, store=replace(first.store, instance=store))
        second = replace(configured(tmp_path, at(new)), store=first.store)
        async with served(first) as site, connected(site.port) as other:
            site.client.send(site.request())
            await store.asked.wait()
            await site.worker.reload(second)
            store.go_on.set()
            assert (await site.client.answer()).body == b"old", "it began before"
            for _ in range(3):
                assert (await other.ask(site.request())).body == b"new"


# --- seats ---


class Broken:
    """An admission provider that keeps no promise."""

    def admit(self, attributes: Attributes, *, size: int | None) -> Any:
        return None

    def settled(self, attributes: Attributes, *, status: int) -> None: ...


async def test_a_failure_inside_gives_the_seat_back_and_is_recorded(tmp_path: Path) -> None:
    """S73."""
    async with upstream() as made:
        config = configured(tmp_path, at(made), limits={"concurrency": 2, "queueWait": "1s"})
        config = replace(config, admission=(Provider("broken", "broken", Broken()),))
        async with served(config) as site:
            for _ in range(5):
                assert (await site.client.ask(site.request())).status == 500
                assert site.seats == 0
        assert made.requests == []
    events = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [event["responseStatus"]["code"] for event in events] == [500] * 5


async def test_a_request_that_cannot_be_begun_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream() as made, served(configured(tmp_path, at(made))) as site:
        pool = site.worker.app.routes.upstreams[0].pool

        def fail() -> None:
            raise RuntimeError("nobody expected this")

        monkeypatch.setattr(pool, "idle", fail)
        assert (await site.client.ask(site.request())).status == 500
        assert site.seats == 0
        assert not site.worker.app.engine.busy
        assert site.worker.app.shared.authenticator.open_streams == 0
    events = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert "Panic" in [event["stage"] for event in events]


# --- the record ---


async def test_nothing_is_done_that_cannot_be_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S73, with the policy that is there when none is written, which omits the first stage."""
    async with upstream() as made:
        config = configured(tmp_path, at(made), audit={"blocking": True, "log": {"path": "audit.log"}})
        async with served(config) as site:
            assert (await site.client.ask(site.request())).status == 200
            stages = [json.loads(line)["stage"] for line in (tmp_path / "audit.log").read_text().splitlines()]
            assert stages == ["RequestReceived", "ResponseComplete"]
            made.requests.clear()
            sink: Any = site.worker.app.auditor.sinks[0]
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, sink._file)
            os.close(full)
            for _ in range(2):
                assert (await site.client.ask(site.request(method="DELETE"))).status == 500
            assert made.requests == []
            assert site.seats == 0
    refusals = [
        record
        for record in caplog.records
        if record.getMessage() == "a request was refused: its audit event cannot be stored"
    ]
    assert len(refusals) == 2
    assert "space" in refusals[0].__dict__["cause"]


# --- webhooks ---

REVIEW = json.dumps(
    {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods"}},
    }
).encode()
ASK = get("/webhooks/subject-access-review", "Authorization: Bearer caller-secret", method="POST", body=REVIEW)
HOOKS = {"subjectAccessReview": True, "callers": {"tokenFile": "callers"}}


async def test_the_token_of_a_webhooks_caller_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "callers").write_text("caller-secret")
    async with served(configured(tmp_path, "http://127.0.0.1:1", webhooks=HOOKS)) as site:
        for _ in range(3):
            assert (await site.client.ask(ASK)).status == 200
        (head,) = site.worker._http.known._heads.values()
        assert isinstance(head.known, CachedHead)
        assert (head.headers, head.known.scanned.authorization) == ([], None)
        assert (await site.client.ask(ASK.replace(b"caller-secret", b"another-one--"))).status == 401
        assert len(site.worker._http.known) == 1


class Nobody:
    """An authorization provider for whom everybody is too many."""

    def decide(self, attributes: Attributes) -> Decision:
        return Decision(Verdict.DENY, "nobody may")

    async def authorize(self, attributes: Attributes) -> Decision:
        return self.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


async def test_a_refused_review_can_be_explained_from_the_record(tmp_path: Path) -> None:
    """S54: the reason is for the operator, and outlives the gateway."""
    (tmp_path / "callers").write_text("caller-secret")
    config = configured(tmp_path, "http://127.0.0.1:1", webhooks=HOOKS)
    config = replace(config, authorization=AuthorizationSettings((Authorization("no", "no", Nobody()),)))
    async with served(config) as site:
        told = json.loads((await site.client.ask(ASK)).body)["status"]
    assert told["allowed"] is False
    found = recorded.find([tmp_path / "audit.log"], told["reason"].rpartition(" ")[2])
    assert isinstance(found, recorded.RecordedRequest)
    assert (found.attributes.user.username, found.attributes.request.resource) == ("ann", "pods")
    assert found.decision.reason == "nobody may"


class Held:
    """An authorization provider that answers when it is told to, or fails."""

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def authorize(self, attributes: Attributes) -> Decision:
        self.asked.set()
        await self.go_on.wait()
        return Decision(Verdict.ALLOW)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


async def test_a_caller_who_hangs_up_is_counted_once(tmp_path: Path) -> None:
    (tmp_path / "callers").write_text("caller-secret")
    held = Held()
    config = configured(tmp_path, "http://127.0.0.1:1", webhooks=HOOKS)
    config = replace(config, authorization=AuthorizationSettings((Authorization("held", "held", held),)))
    async with served(config) as site:
        async with connected(site.port) as caller:
            caller.send(ASK)
            await held.asked.wait()
        await until(lambda: len(site.worker._http.connections) == 1)
        held.go_on.set()
        await turn()
        total = site.worker.snapshot()["ostiary_gateway_requests_total"]["series"]
        assert sum(count for _, count in total if not isinstance(count, list)) == 1


# --- ends ---


async def test_who_says_goodbye_with_the_request_still_gets_the_answer(tmp_path: Path) -> None:
    """A TLS client that has no more to say may write its request and close_notify together."""
    ca = trustme.CA()
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    trust = ssl.create_default_context()
    ca.configure_trust(trust)
    tls = {"certificate": "server.pem", "key": "server.pem"}
    async with upstream() as made:
        config = configured(tmp_path, at(made), listen={"address": "127.0.0.1:0", "tls": tls})
        with bind(config.listen.address) as listener:
            worker = Worker(config, listener)
            await worker.start()
            port = listener.getsockname()[1]
            answer = await asyncio.to_thread(_ask_and_close, port, get("/x"), trust)
            await worker.close(drain=0.0)
    assert answer.startswith(b"HTTP/1.1 401 ")


def _ask_and_close(port: int, data: bytes, trust: ssl.SSLContext) -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as end:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                end.sendall(outgoing.read())
                incoming.write(end.recv(65536))
        # The rest of the handshake by itself: else it would be one read with what follows.
        end.sendall(outgoing.read())
        incoming.write(end.recv(65536))
        tls.write(data)
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        end.sendall(outgoing.read())
        while received := end.recv(65536):
            incoming.write(received)
    return tls.read(65536)


async def test_a_large_body_that_came_at_once_does_not_end_reading(tmp_path: Path) -> None:
    async with upstream() as made, served(configured(tmp_path, at(made))) as site:
        (connection,) = site.worker._http.connections
        data = site.request(method="POST", body=b"x" * 200_000)
        for _ in range(4):
            # As one read: what the socket makes of it depends on the machine.
            connection.data_received(data)
            assert (await site.client.answer()).status == 200
            assert connection.transport.is_reading()
        assert len(site.worker._http.known) == 1


# --- a whole URL in the place of a path ---


@pytest.mark.parametrize("path", ["/auth", "/auth/methods", "/auth?x=1", "/webhooks/token-review"])
async def test_what_is_ours_is_ours_also_in_the_form_of_a_whole_url(tmp_path: Path, path: str) -> None:
    (tmp_path / "callers").write_text("caller-secret")
    hooks = {"tokenReview": True, "callers": {"tokenFile": "callers"}}
    async with upstream() as made, served(configured(tmp_path, at(made), webhooks=hooks)) as site:
        for lines in ((), (f"Authorization: Bearer {site.token}",)):
            whole = await site.client.ask(get(f"http://gateway.test{path}", *lines))
            plain = await site.client.ask(get(path, *lines))
            assert whole.status == plain.status
        assert made.requests == []


# --- stopping ---


async def test_a_client_that_is_answered_and_still_sends_does_not_hold_a_stop(tmp_path: Path) -> None:
    async with upstream() as made, served(configured(tmp_path, at(made))) as site:
        site.client.send(get("/x", "Content-Length: 1000", method="POST") + b"half")
        assert (await site.client.answer()).status == 401
        (connection,) = site.worker._connections
        assert connection.busy
        await site.worker.close(drain=60.0)
        assert await site.client.closed()


async def test_a_request_on_an_idle_connection_is_answered_while_the_stop_begins(tmp_path: Path) -> None:
    """And the answer says that it was the last one."""
    async with upstream() as made, served(configured(tmp_path, at(made))) as site:
        assert (await site.client.ask(site.request())).one("Connection") is None
        stopping = asyncio.create_task(site.worker.close(drain=60.0))
        await until(lambda: site.worker._draining)
        answer = await site.client.ask(site.request())
        assert (answer.status, answer.one("Connection")) == (200, b"close")
        await stopping
