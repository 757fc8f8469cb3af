"""HAProxy that is told decisions: the same answers, no question for what was allowed, and no pass that outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Authorization
from ostiary_gateway.config.upstream import IdentityMode
from ostiary_gateway.extauth.haproxy import spop
from ostiary_gateway.extauth.haproxy.handler import refusal_actions
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from tests.e2e import test_doors as suite
from tests.support.door_cases import CASES, Case
from tests.support.door_suite.drivers import CarryingDoor
from tests.support.door_suite.judge import Judge
from tests.support.door_suite.policy import ADMIN, ATTRIBUTES, EXTRA, USERS, Rules
from tests.support.doors import HOST, Client, EchoUpstream, printed_haproxy, running
from tests.support.gateway import SECONDS, InProcessGateway, Site
from tests.support.ports import free_port
from tests.support.socket_server import SocketServer
from tests.support.waiting import until

pytestmark = [pytest.mark.needs("haproxy"), pytest.mark.timeout(120)]

SECRET = "the-secret-of-this-door"
DOOR = "edge"
# There is no admission here: with it, each request is asked about.
REPEATED_CASES = [case for case in CASES if case.target not in ("/limited", "/full") and ADMIN not in case.target]
ALICE = Case("carried", "/carried")


def runtime(path: Path, command: str) -> str:
    """What HAProxy says to a command on its runtime socket."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(SECONDS)
        connection.connect(str(path))
        connection.sendall(command.encode() + b"\n")
        output = b""
        while data := connection.recv(65536):
            output += data
    return output.decode()


class FakeAgent(SocketServer):
    """An agent of HAProxy that greets as it should, and then does to every question what *answer* says.

    *answer* gets the numbers of a question, and gives the bytes that are sent; None: nothing is.
    """

    def __init__(self, answer: Callable[[int, int], bytes | None]) -> None:
        super().__init__()
        self.answer = answer
        self.asked = threading.Event()

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader, suppress(OSError):
            while len(head := reader.read(4)) == 4:
                frame = reader.read(int.from_bytes(head, "big"))
                if frame[0] == spop.HAPROXY_HELLO:
                    connection.sendall(_hello())
                elif frame[0] == spop.NOTIFY:
                    stream, at = spop.read_number(frame, 5)
                    number, _ = spop.read_number(frame, at)
                    self.asked.set()
                    answer = self.answer(stream, number)
                    if answer == b"":
                        return
                    if answer is not None:
                        connection.sendall(answer)


def _hello() -> bytes:
    said = {
        b"version": spop.string(b"2.0"),
        b"max-frame-size": spop.uint32(16000),
        b"capabilities": spop.string(b"pipelining"),
    }
    return spop.frame(spop.AGENT_HELLO, 0, 0, spop.pairs(said))


def _sections(echo: EchoUpstream, **door: Any) -> dict[str, Any]:
    upstream = {"name": "shop", "server": f"http://127.0.0.1:{echo.port}", "attributes": ATTRIBUTES["shop"]}
    upstream |= {"hosts": [HOST]}
    edge = {"name": DOOR, "proxy": "haproxy", "callers": {"tokenFile": "secret"}, "extra": [EXTRA]}
    edge |= {"decisions": {"socket": "runtime"}}
    agent = {"agent": {"address": f"127.0.0.1:{free_port()}"}}
    return {
        "upstreams": [upstream],
        "doors": [edge | agent | door],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}], "hideDenied": True},
        "limits": {"failuresPerMinute": 0},
    }


def _scripted(config: GatewayConfig, rules: Rules) -> GatewayConfig:
    upstreams = tuple(replace(each, identity=IdentityMode.REQUEST_HEADER) for each in config.upstreams)
    chain = (Authorization("rules", "rules", rules),)
    return replace(config, upstreams=upstreams, authorization=replace(config.authorization, chain=chain))


def _site(folder: Path) -> Site:
    site = Site(folder / "gateway", trustme.CA())
    (site.folder / "secret").write_text(SECRET + "\n")
    return site


def _text(config: Path, port: int, *options: str) -> str:
    return printed_haproxy(config, "--listen", f"127.0.0.1:{port}", *options)


@dataclass(frozen=True)
class Carrier:
    """HAProxy before a gateway of this process."""

    doors: suite.Doors
    port: int
    text: str

    @property
    def gateway(self) -> InProcessGateway:
        return self.doors.gateway

    def suite_door(self, tokens: dict[str, str] | None = None) -> CarryingDoor:
        return CarryingDoor("haproxy", self.doors.clients["haproxy"], self.doors.echoes, tokens or self.doors.tokens)

    def judge(self) -> Judge:
        return Judge(self.doors.rules, (SECRET, *self.doors.tokens.values()), {})

    def asked(self) -> float:
        return self.gateway.worker.app.shared.metrics.door_questions.values.get((DOOR, "asked"), 0.0)

    def pushed(self) -> int:
        (pusher,) = self.gateway.worker.app.doors.pushers.values()
        return len(pusher.held)

    def passes(self) -> list[str]:
        output = runtime(self.doors.site.folder / "runtime", "show map /dev/null")
        return [line.split()[2] for line in output.splitlines() if line.strip()]

    def issue(self, user: str = "alice") -> tuple[str, str]:
        """A new token, and the id of its session."""
        tokens = self.gateway.worker.app.shared.tokens
        issued = self.gateway.call(lambda: tokens.issue(USERS[user], provider="staff"))
        return issued.token.reveal(), issued.session.id

    def carry(self, client: Client, token: str, case: Case = ALICE) -> None:
        """Send the request until HAProxy no longer asks about it."""

        def is_carried() -> bool:
            before = self.asked()
            assert client.send(case.request(token)).status == 200
            return self.asked() == before

        until(is_carried, what="HAProxy uses a decision again")


@pytest.fixture(scope="module")
def carrier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carrier]:
    folder = tmp_path_factory.mktemp("haproxy")
    site, rules = _site(folder), Rules()
    with ExitStack() as stack:
        echo = stack.enter_context(EchoUpstream())
        sections = _sections(echo)
        gateway = stack.enter_context(site.in_process(lambda config: _scripted(config, rules), **sections))
        port = free_port()
        text = _text(site.write_config(**sections), port)
        client = stack.enter_context(running("haproxy", folder / "haproxy", text, port))
        doors = suite.Doors(site, gateway, rules, echo, {"shop": echo}, suite._tokens(gateway), {"haproxy": client})
        until(lambda: bool(runtime(site.folder / "runtime", "show map /dev/./null").strip()), what="there is a lease")
        yield Carrier(doors, port, text)


# --- decisions ---


def test_with_decisions_every_request_is_answered_as_by_the_built_in_proxy(carrier: Carrier) -> None:
    doors, questions = carrier.doors, []
    door, judge = carrier.suite_door(), carrier.judge()
    for _ in range(2):
        before, failures = carrier.asked(), []
        for case in REPEATED_CASES:
            if mistake := judge.mistake("haproxy", case, door.send(case)):
                failures.append(f"{case.name}: {mistake}")
        assert not failures, "\n".join(failures)
        questions.append(carrier.asked() - before)
        until(lambda: len(carrier.passes()) >= carrier.pushed(), what="all passes are in the map")
    assert questions[1] < questions[0] / 1.5, questions
    assert not any(token in text for text in carrier.passes() for token in doors.tokens.values())


def test_a_revoked_token_is_refused_though_haproxy_had_a_pass(carrier: Carrier) -> None:
    client = carrier.doors.clients["haproxy"]
    token, session = carrier.issue()
    other, _ = carrier.issue()
    carrier.carry(client, token)
    carrier.carry(client, other)
    tokens = carrier.gateway.worker.app.shared.tokens
    carrier.gateway.call(lambda: tokens.revoke(RevocationKind.SESSION, session))
    until(lambda: client.send(ALICE.request(token)).status == 401, what="the token is refused")
    before = carrier.asked()
    assert client.send(ALICE.request(other)).status == 200
    assert carrier.asked() == before, "the pass of another token is gone, too"


def test_what_differs_in_any_part_of_the_key_is_asked_about(carrier: Carrier) -> None:
    client = carrier.doors.clients["haproxy"]
    token, _ = carrier.issue()
    carrier.carry(client, token)
    others = [
        Case("another target", "/carried?x"),
        Case("another method", "/carried", "DELETE"),
        Case("another host", "/carried", host=f"{HOST}:81"),
        Case("in another's name", "/carried", headers=(("Impersonate-User", "bob"),)),
        Case("switching", "/carried", headers=suite.WEBSOCKET),
    ]
    for case in others:
        before = carrier.asked()
        assert client.send(case.request(token)).status == 200
        assert carrier.asked() == before + 1, case.name
        client.close()
    two = Case("two tokens", "/carried", headers=(("Authorization", f"Bearer {token}"),))
    assert client.send(two.request(token)).status == 400


def test_a_claim_is_taken_out_though_nobody_is_asked(carrier: Carrier) -> None:
    client = carrier.doors.clients["haproxy"]
    token, _ = carrier.issue()
    carrier.carry(client, token)
    before = carrier.asked()
    claims = (("X_Remote_User", "evil"), ("X-Remote-Extra-Any", "evil"), ("Connection", "X-Remote-User, close-evil"))
    case = Case("claims", "/carried", headers=claims)
    outcome = carrier.suite_door({"alice": token}).send(case)
    assert carrier.asked() == before
    assert not carrier.judge().mistake("haproxy", case, outcome)


def test_a_whole_url_is_decided_on_by_its_path_and_must_name_the_host(carrier: Carrier) -> None:
    client, token = carrier.doors.clients["haproxy"], carrier.doors.tokens["alice"]
    for target, status in (
        (f"http://{HOST}/whole", 200),
        (f"http://{HOST}/denied", 403),
        ("http://other.example/whole", 400),
        (f"http://{HOST}/a/../denied", 400),
    ):
        case = Case(f"whole {target}", target)
        # Twice: the second time, HAProxy may have a pass.
        assert [client.send(case.request(token)).status for _ in range(2)] == [status, status], target
        client.close()
        seen = carrier.doors.echo.seen.get(case.name)
        assert (seen is not None) == (status == 200)
        assert seen is None or seen["target"].removeprefix(f"http://{HOST}") == "/whole"


def test_after_a_reload_nothing_that_was_allowed_before_is_believed(carrier: Carrier) -> None:
    client, gateway = carrier.doors.clients["haproxy"], carrier.gateway
    token, _ = carrier.issue()
    carrier.carry(client, token)
    config = gateway.worker.app.config
    before = carrier.asked()
    gateway.call(lambda: gateway.worker.reload(config))
    assert client.send(ALICE.request(token)).status == 200
    assert carrier.asked() == before + 1
    carrier.carry(client, token)


def test_a_new_haproxy_begins_with_nothing_and_is_told_again(carrier: Carrier, tmp_path: Path) -> None:
    doors, port = carrier.doors, free_port()
    token, _ = carrier.issue()
    text = carrier.text.replace(f"127.0.0.1:{carrier.port}", f"127.0.0.1:{port}")
    # It takes the runtime socket over, as one does that was restarted.
    with running("haproxy", tmp_path / "new", text, port) as client:
        before = carrier.asked()
        assert client.send(ALICE.request(token)).status == 200
        assert carrier.asked() == before + 1
        carrier.carry(client, token)
    assert doors.clients["haproxy"].send(ALICE.request(token)).status == 200


# --- closed ---


def _answers() -> dict[str, Any]:
    allow = spop.set_variable(b"status", spop.uint32(200))

    def acknowledge(actions: bytes) -> Any:
        return lambda stream, frame: spop.frame(spop.ACK, stream, frame, actions)

    return {
        "nothing set": acknowledge(b""),
        "a status without a pass": acknowledge(allow),
        "an unknown status": acknowledge(refusal_actions(299, [], b"{}")),
        "broken actions": acknowledge(b"\x01\x03\x02\xff\xff\xff"),
        "another stream": lambda stream, frame: spop.frame(spop.ACK, stream + 77, frame, b""),
        "garbage": lambda stream, frame: b"\x00\x00\x00\x09garbage!!",
        "a frame without an end": lambda stream, frame: b"\x00\x00\xff\x00" + b"x" * 100,
        "a hang-up": lambda stream, frame: b"",
        "silence": lambda stream, frame: None,
    }


def test_nobody_is_let_in_while_the_agent_does_not_answer_as_it_should(carrier: Carrier, tmp_path: Path) -> None:
    doors, port = carrier.doors, free_port()
    unauthorized = refusal_actions(401, [(b"WWW-Authenticate", b"Bearer")], b"{}")
    with FakeAgent(lambda stream, frame: spop.frame(spop.ACK, stream, frame, unauthorized)) as agent:
        where = ("--gateway", f"http://127.0.0.1:{agent.port}")
        text = _text(doors.site.folder / "gateway.yaml", port, *where)
        text = text.replace("timeout processing 15s", "timeout processing 500ms").replace("/runtime", "/other-runtime")
        with running("haproxy", tmp_path / "haproxy", text, port) as client:
            for name, answer in _answers().items():
                agent.answer = answer
                agent.asked.clear()
                assert client.send(Case(name, "/closed").request(doors.tokens["alice"])).status == 503, name
                assert agent.asked.is_set()
            agent.stop()
            assert client.send(Case("down", "/closed").request(doors.tokens["alice"])).status == 503
    assert not {"down", *_answers()} & doors.echo.seen.keys()


@pytest.mark.parametrize("wrong", ["secret=str(another) ", ""])
def test_a_haproxy_without_the_secret_gets_no_answer(carrier: Carrier, tmp_path: Path, wrong: str) -> None:
    doors, port = carrier.doors, free_port()
    text = _text(doors.site.folder / "gateway.yaml", port).replace(f"secret=str({SECRET}) ", wrong)
    text = text.replace("/runtime", "/other-runtime")
    unknown = carrier.gateway.worker.app.shared.metrics.door_questions
    before = unknown.values.get((DOOR, "unknown_caller"), 0)
    with running("haproxy", tmp_path / "haproxy", text, port, ready=503) as client:
        assert client.send(ALICE.request(doors.tokens["alice"])).status == 503
    assert unknown.values[DOOR, "unknown_caller"] > before


def test_http2_clients_are_decided_on_like_others(carrier: Carrier, tmp_path: Path) -> None:
    doors, port = carrier.doors, free_port()
    leaf = doors.site.ca.issue_cert(HOST)
    pem = tmp_path / "haproxy.pem"
    leaf.private_key_and_cert_chain_pem.write_to_path(str(pem))
    text = _text(doors.site.folder / "gateway.yaml", port, "--listen-certificate", str(pem))
    text = text.replace("/runtime", "/h2-runtime")
    # The first line is for the test that waits in plain HTTP; the other is what is tried.
    plain = free_port()
    text = text.replace(f"    bind 127.0.0.1:{port} ssl", f"    bind 127.0.0.1:{plain}\n    bind 127.0.0.1:{port} ssl")
    with running("haproxy", tmp_path / "haproxy", text, plain):
        for target, token, status in (
            ("/h2", "alice", "200"),
            ("/h2?q=1", "alice", "200"),
            ("/denied", "alice", "403"),
            ("/a//b", "alice", "400"),
            ("/h2", "revoked", "401"),
        ):
            url = f"https://{HOST}:{port}{target}"
            command = ["curl", "-s", "--http2", "--path-as-is", "--cacert", str(doors.site.folder / "ca.pem")]
            command += ["--resolve", f"{HOST}:{port}:127.0.0.1", "-o", str(tmp_path / "body")]
            command += ["-w", "%{http_version} %{http_code}", "-H", f"Authorization: Bearer {doors.tokens[token]}", url]
            command += ["-H", "X-Remote-User: evil", "-H", "X-Case: h2"]
            shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
            assert shown == f"2 {status}", target
            if status == "200":
                assert doors.echo.seen["h2"]["target"] == target
                users = [value for name, value in doors.echo.seen["h2"]["headers"] if name.lower() == "x-remote-user"]
                assert users == ["alice"]


def test_haproxy_may_prove_itself_by_a_certificate(tmp_path: Path) -> None:
    site, port = _site(tmp_path), free_port()
    leaf = site.ca.issue_cert(common_name="carrier")
    leaf.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "carrier.pem"))
    listen = {"tls": {"certificate": "server.pem", "key": "server.key", "clientCA": "ca.pem"}}
    with ExitStack() as stack:
        echo = stack.enter_context(EchoUpstream())
        sections = {**_sections(echo, callers={"names": ["carrier"]}), "listen": listen}
        rules = Rules()
        gateway = stack.enter_context(site.in_process(lambda config: _scripted(config, rules), **sections))
        certificate = ("--ca", str(site.folder / "ca.pem"), "--certificate", str(tmp_path / "carrier.pem"))
        config = site.write_config(**sections)
        agent = sections["doors"][0]["agent"]["address"].rpartition(":")[2]
        text = _text(config, port, "--gateway", f"https://localhost:{agent}", *certificate)
        client = stack.enter_context(running("haproxy", tmp_path / "haproxy", text, port))
        tokens = suite._tokens(gateway)
        assert client.send(ALICE.request(tokens["alice"])).status == 200
        stranger, other = text.replace(f" crt {tmp_path / 'carrier.pem'}", ""), free_port()
        stranger = stranger.replace(f"127.0.0.1:{port}", f"127.0.0.1:{other}").replace("/runtime", "/other-runtime")
        with running("haproxy", tmp_path / "x", stranger, other, ready=503) as client:
            assert client.send(ALICE.request(tokens["alice"])).status == 503


def test_each_request_goes_where_the_gateway_would_send_it(tmp_path: Path) -> None:
    site, port, rules = _site(tmp_path), free_port(), Rules()
    with ExitStack() as stack:
        shop, api, rest = (stack.enter_context(EchoUpstream()) for _ in range(3))
        sections = _sections(shop)
        sections["upstreams"] += [
            {"name": "api", "server": f"http://127.0.0.1:{api.port}", "attributes": "http", "hosts": [HOST]},
            {"name": "rest", "server": f"http://127.0.0.1:{rest.port}", "attributes": "http", "prefix": "/rest.x"},
        ]
        sections["upstreams"][1]["prefix"] = "/api"
        gateway = stack.enter_context(site.in_process(lambda config: _scripted(config, rules), **sections))
        text = _text(site.write_config(**sections), port)
        client = stack.enter_context(running("haproxy", tmp_path / "haproxy", text, port))
        token = suite._tokens(gateway)["alice"]
        expected = (
            ("/", HOST, shop),
            ("/api", HOST, api),
            ("/api?x", HOST, api),
            ("/api/x", HOST, api),
            ("/apix", HOST, shop),
            ("/rest.x/y", HOST, shop),
            ("/rest.x/y", "other.example", rest),
            ("/restyx/y", "other.example", None),
            ("/x", "other.example", None),
        )
        for number, (target, host, upstream) in enumerate(expected):
            # Twice: the second time, HAProxy may have a pass.
            for _ in range(2):
                case = Case(f"route {number}", target, host=host)
                status = client.send(case.request(token)).status
                assert status == (404 if upstream is None else 200), (target, host)
            reached = [each for each in (shop, api, rest) if case.name in each.seen]
            assert reached == ([] if upstream is None else [upstream]), (target, host)


# --- reload ---


def _connects(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(SECONDS)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_reload_opens_and_closes_the_addresses_of_doors_and_keeps_the_others(tmp_path: Path) -> None:
    site = _site(tmp_path)
    site.users("alice")
    with ExitStack() as stack:
        echo = stack.enter_context(EchoUpstream())
        sections, port, new = _sections(echo), free_port(), free_port()
        gateway = stack.enter_context(site.serving(**sections))
        old = int(sections["doors"][0]["agent"]["address"].rpartition(":")[2])
        text = _text(site.folder / "gateway.yaml", port)
        client = stack.enter_context(running("haproxy", tmp_path / "haproxy", text, port))
        request = ALICE.request(gateway.login("alice").token)
        second = {**sections["doors"][0], "name": "second", "agent": {"address": f"127.0.0.1:{new}"}}
        second.pop("decisions")

        def reload(*doors: dict[str, Any]) -> None:
            site.write_config(**{**sections, "doors": list(doors)})
            gateway.signal(signal.SIGHUP)

        reload(*sections["doors"], second)
        until(lambda: _connects(new), what="the second address is open")
        assert client.send(request).status == 200
        reload(*sections["doors"])
        until(lambda: not _connects(new), what="the second address is closed")
        assert _connects(old)
        assert client.send(request).status == 200


def test_several_workers_cannot_begin_to_listen_at_another_address(tmp_path: Path) -> None:
    site = _site(tmp_path)
    with ExitStack() as stack:
        echo = stack.enter_context(EchoUpstream())
        sections = {**_sections(echo), "listen": {"workers": 2}}
        gateway = stack.enter_context(site.serving(**sections))
        moved = {**sections["doors"][0], "agent": {"address": f"127.0.0.1:{free_port()}"}}
        site.write_config(**{**sections, "doors": [moved]})
        gateway.signal(signal.SIGHUP)
        assert "several workers cannot begin to listen there" in gateway.line("the configuration was not reloaded")


# --- a gateway that dies or hangs ---


def _revoke(site: Site, session: str) -> None:
    async def revoke() -> None:
        tokens = Tokens(SqliteTokenStore(site.folder / "tokens.db"))
        await tokens.revoke(RevocationKind.SESSION, session)
        await tokens.store.close()

    asyncio.run(revoke())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_passes_end_with_the_lease_of_a_gateway_that_hangs_or_dies(tmp_path: Path, workers: int) -> None:
    site, port = _site(tmp_path), free_port()
    site.users("alice")
    with ExitStack() as stack:
        echo = stack.enter_context(EchoUpstream())
        sections = {**_sections(echo), "listen": {"workers": workers}}
        gateway = stack.enter_context(site.serving(**sections))
        text = _text(site.folder / "gateway.yaml", port)
        text = text.replace("timeout processing 15s", "timeout processing 1s")
        client = stack.enter_context(running("haproxy", tmp_path / "haproxy", text, port))
        login = gateway.login("alice")
        request = Case("carried", "/carried").request(login.token)
        pushed = site.folder / "runtime"

        def status() -> int:
            return client.send(request).status

        def is_carried() -> bool:
            # While a gateway begins again, a question may get no answer.
            return status() == 200 and "|" in runtime(pushed, "show map /dev/null")

        until(is_carried, what="HAProxy has a pass")
        processes = gateway.workers() if workers > 1 else {gateway.pid}
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        # Whatever is revoked now, nobody can tell HAProxy. It still has the pass.
        until(lambda: status() == 503, what="the lease has ended")
        _revoke(site, login.session)
        for process in processes:
            os.kill(process, signal.SIGCONT)
        until(lambda: status() == 401, what="the revocation is in force")
        request = Case("carried", "/carried").request(gateway.login("alice").token)
        until(is_carried, what="HAProxy has a pass")
        for process in (gateway.pid, *processes):
            os.kill(process, signal.SIGKILL)
        until(lambda: status() == 503, what="the lease has ended")
        echo.seen.clear()
        assert status() == 503
        assert not echo.seen
