"""The same policy at every door: one suite of requests through the built-in proxy and through every other proxy.

Each proxy is a real one, and runs exactly what ``ostiary-gateway door`` prints. They carry requests to one upstream,
which says what it got. For the Gateway API, which is no program, Envoy runs what an implementation makes of the printed
route.
"""

from __future__ import annotations

import re
import shutil
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from ostiary.core.scopes import narrow, parse_scope
from ostiary.model import UserInfo
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Authorization, Provider
from ostiary_gateway.config.upstream import IdentityMode
from ostiary_gateway.interfaces.admission import AdmissionProvider
from ostiary_gateway.interfaces.token_store import RevocationKind
from tests.support.backend import CALLER, WEBHOOKS, prepare
from tests.support.door_cases import DOORS, NORMALISES, PROXIES, REASONS, Case
from tests.support.door_suite import SUITE, http2, kubernetes
from tests.support.door_suite.drivers import CarryingDoor, arrival
from tests.support.door_suite.judge import EXCUSES, Judge, ambiguity
from tests.support.door_suite.middleware import AUTHORIZATION, middleware_doors
from tests.support.door_suite.mistakes import FAIL_OPEN, MISTAKES, Mistake, changed
from tests.support.door_suite.outcome import Outcome, SuiteDoor
from tests.support.door_suite.policy import ADMIN, ATTRIBUTES, EXTRA, USERS, Rooms, Rules
from tests.support.door_suite.webhooks import WebhookDoor
from tests.support.doors import (
    HOST,
    TOKEN_HASH_MODULES,
    Client,
    EchoUpstream,
    FakeGateway,
    printed,
    printed_haproxy,
    running,
)
from tests.support.gateway import InProcessGateway, Site
from tests.support.gateway_api import envoy_for_routes
from tests.support.ports import free_port
from tests.support.tiers import missing

pytestmark = [pytest.mark.needs("nginx", "haproxy"), pytest.mark.timeout(240)]

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "ask-from-another-proxy.md"
SECRET = "the-secret-of-this-door"


@dataclass(frozen=True)
class Doors:
    """A gateway with all doors, the tokens of its users, and a client for each way to the upstream."""

    site: Site
    gateway: InProcessGateway
    rules: Rules
    echo: EchoUpstream
    echoes: dict[str, EchoUpstream]
    tokens: dict[str, str]
    clients: dict[str, Client]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    site = Site(folder / "gateway", trustme.CA())
    (site.folder / "secret").write_text(SECRET + "\n")
    prepare(site)
    rules = Rules()
    with ExitStack() as stack:
        echoes = {name: stack.enter_context(EchoUpstream()) for name in ATTRIBUTES}
        echo, sections = echoes["shop"], _sections(echoes)
        gateway = stack.enter_context(site.in_process(lambda config: _scripted(config, rules), **sections))
        config = site.write_config(**sections)
        clients = {"built-in": Client(gateway.port, _trust(site))}
        for proxy in PROXIES:
            port = free_port()
            text = _printed(proxy, config, *_options(site, gateway, echo, port, proxy))
            if proxy == "gateway-api":
                text = envoy_for_routes(text, port, site.folder / "ca.pem")
            clients[proxy] = stack.enter_context(running(proxy, folder / proxy, text, port))
        yield Doors(site, gateway, rules, echo, echoes, _tokens(gateway), clients)


def _sections(echoes: dict[str, EchoUpstream]) -> dict[str, Any]:
    where: dict[str, dict[str, Any]] = {
        "shop": {"hosts": [HOST]},
        "cluster": {"hosts": [kubernetes.HOST]},
        "admin": {"hosts": [HOST], "prefix": ADMIN},
    }
    servers = {name: f"http://127.0.0.1:{echo.port}" for name, echo in echoes.items()}
    return {
        "upstreams": [
            {"name": name, "server": servers[name], "attributes": ATTRIBUTES[name], **place}
            for name, place in where.items()
        ],
        "doors": [_door(proxy) for proxy in PROXIES],
        "authorization": AUTHORIZATION,
        # The suite has more bad tokens than anybody may try.
        "limits": {"failuresPerMinute": 0},
        "webhooks": {**WEBHOOKS, "tokenReview": True},
        "listen": {"grpc": {"address": "127.0.0.1:0"}},
    }


def _door(proxy: str) -> dict[str, Any]:
    agent = {"agent": {"address": f"127.0.0.1:{free_port()}"}} if proxy == "haproxy" else {}
    return {"name": proxy, "proxy": proxy, "callers": {"tokenFile": "secret"}, "extra": [EXTRA], **agent}


def _scripted(config: GatewayConfig, rules: Rules) -> GatewayConfig:
    # Our own proxy tells an upstream the user only over TLS; here it may do so in the clear, as the others do.
    upstreams = tuple(replace(each, identity=IdentityMode.REQUEST_HEADER) for each in config.upstreams)
    chain = (Authorization("rules", "rules", rules),)
    admission = cast("AdmissionProvider", Rooms())
    return replace(
        config,
        upstreams=upstreams,
        authorization=replace(config.authorization, chain=chain),
        admission=(Provider("rooms", "rooms", admission),),
    )


def _options(site: Site, gateway: InProcessGateway, echo: EchoUpstream, port: int, proxy: str = "") -> tuple[str, ...]:
    url = f"https://localhost:{gateway.grpc_port}" if proxy == "envoy-grpc" else gateway.url()
    # HAProxy asks where its door says.
    where = () if proxy == "haproxy" else ("--gateway", url, "--ca", str(site.folder / "ca.pem"))
    return ("--listen", f"127.0.0.1:{port}", "--backend", f"shop=http://127.0.0.1:{echo.port}", *where)


def _printed(proxy: str, config: Path, *options: str) -> str:
    return printed_haproxy(config, *options) if proxy == "haproxy" else printed(proxy, config, *options)


def _trust(site: Site) -> ssl.SSLContext:
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    site.ca.configure_trust(trust)
    return trust


def _tokens(gateway: InProcessGateway) -> dict[str, str]:
    tokens = gateway.worker.app.shared.tokens

    async def issue(user: UserInfo) -> str:
        return (await tokens.issue(user, provider="staff")).token.reveal()

    async def less(user: UserInfo, scope: str) -> str:
        session = (await tokens.issue(user, provider="staff")).session
        delegation = narrow(None, parse_scope(scope), "").encode()
        return (await tokens.mint(session, lifetime=timedelta(minutes=10), delegation=delegation)).token.reveal()

    async def revoked(user: UserInfo) -> str:
        issued = await tokens.issue(user, provider="staff")
        await tokens.revoke(RevocationKind.SESSION, issued.session.id)
        return issued.token.reveal()

    made = {name: gateway.call(lambda user=user: issue(user)) for name, user in USERS.items()}  # type: ignore[misc]
    made["narrowed"] = gateway.call(lambda: less(USERS["alice"], "get /narrow/*,/denied"))
    made["reader"] = gateway.call(lambda: less(USERS["alice"], "get,list pods -n x,hidden"))
    made["clerk"] = gateway.call(lambda: less(USERS["alice"], "get carts -n x"))
    made["revoked"] = gateway.call(lambda: revoked(USERS["alice"]))
    made["unknown"] = made["alice"][:-2] + ("aa" if made["alice"][-2:] != "aa" else "bb")
    return made


# --- the suite ---


@pytest.fixture(scope="module")
def suite(doors: Doors) -> Iterator[dict[str, SuiteDoor]]:
    """Every way by which a request can be decided on. A further one is an entry here."""
    carrying = [CarryingDoor(name, client, doors.echoes, doors.tokens) for name, client in doors.clients.items()]
    with doors.gateway.http(CALLER) as http, middleware_doors(doors.gateway, doors.rules, doors.tokens) as middlewares:
        every: list[SuiteDoor] = [*carrying, WebhookDoor(http, doors.tokens), *middlewares]
        yield {door.name: door for door in every}


@pytest.mark.parametrize("name", DOORS)
def test_every_door_answers_as_the_built_in_proxy(
    doors: Doors, suite: dict[str, SuiteDoor], judge: Judge, name: str
) -> None:
    failures, observed = [], set()
    for case in SUITE:
        outcome = suite[name].send(case)
        mistake = judge.mistake(name, case, outcome)
        if mistake:
            failures.append(f"{case.name}: {mistake}")
        elif name in case.differs and judge.differs(name, case, outcome):
            observed.add(case.differs[name])
    assert not failures, "\n".join(failures)
    assert "smuggled" not in {name for echo in doors.echoes.values() for name in echo.seen}
    stale = {case.differs[name] for case in SUITE if name in case.differs} - observed
    assert not stale, "it does not differ for these reasons"


def test_every_reason_to_differ_is_used_and_documented() -> None:
    used = {reason for case in SUITE for reason in case.differs.values()}
    assert used == set(REASONS) == set(EXCUSES)
    _, _, section = GUIDE.read_text().partition("## Where the doors differ\n")
    rows = [row.split("|")[1].strip() for row in section.splitlines() if row.startswith("|")]
    assert rows[2:] == sorted(set(rows[2:]), key=rows.index), "twice in the table"
    assert set(rows[2:]) == used


def test_the_suite_has_as_many_requests_as_the_guide_says() -> None:
    (figure,) = re.findall(r"One suite of more than (\d+) requests", GUIDE.read_text())
    assert len(SUITE) > int(figure)
    assert len({case.name for case in SUITE}) == len(SUITE)
    assert {door for case in SUITE for door in case.differs} <= set(DOORS)


@pytest.fixture(scope="module")
def judge(doors: Doors, suite: dict[str, SuiteDoor]) -> Judge:
    replies = {case.name: suite["built-in"].send(case).reply for case in SUITE if "built-in" not in case.differs}
    examples = {name: reply for name, reply in replies.items() if reply is not None}
    return Judge(doors.rules, (SECRET, CALLER, *doors.tokens.values()), examples)


# --- over HTTP/2 ---


@pytest.mark.parametrize("proxy", [proxy for proxy in PROXIES if proxy != "gateway-api"])
def test_nothing_hostile_arrives_over_http2(doors: Doors, judge: Judge, tmp_path: Path, proxy: str) -> None:
    with ExitStack() as stack:
        client = doors.clients[proxy]
        if proxy == "nginx":
            # The printed configuration is for HTTP/1.1. People add HTTP/2 to their listeners.
            port, client = free_port(), Client(free_port())
            listen = f"listen 127.0.0.1:{port};\n    listen 127.0.0.1:{client.port} http2;"
            options = _options(doors.site, doors.gateway, doors.echo, port)
            text = printed("nginx", doors.site.folder / "gateway.yaml", *options)
            text = changed(text, ((f"listen 127.0.0.1:{port};", listen),))
            stack.enter_context(running("nginx", tmp_path / "nginx", text, port))
        door = http2.Http2Door(proxy, client, doors.echoes, doors.tokens)
        # Envoy takes a second to end a connection that violates HTTP/2.
        with ThreadPoolExecutor(16) as pool:
            outcomes = list(zip(http2.CASES, pool.map(door.send, http2.CASES), strict=True))
        mistakes = {case.name: judge.mistake(proxy, case, outcome) for case, outcome in outcomes}
        assert not judge.mistake(proxy, http2.PLAIN, door.send(http2.PLAIN)), "nothing arrives any more"
    assert not any(mistakes.values()), {name: mistake for name, mistake in mistakes.items() if mistake}
    assert "smuggled" not in doors.echo.seen


# --- mistakes that the suite detects ---


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_a_configuration_is_detected(doors: Doors, judge: Judge, tmp_path: Path, mistake: Mistake) -> None:
    port, cases = free_port(), {case.name: case for case in (*SUITE, *http2.CASES)}
    options = _options(doors.site, doors.gateway, doors.echo, port, mistake.proxy)
    text = changed(_printed(mistake.proxy, doors.site.folder / "gateway.yaml", *options), mistake.changes)
    with running(mistake.proxy, tmp_path / mistake.proxy, text, port) as client:
        door = CarryingDoor(mistake.proxy, client, doors.echoes, doors.tokens)
        http2_door = http2.Http2Door(mistake.proxy, client, doors.echoes, doors.tokens)
        outcomes = {
            name: (http2_door if cases[name] in http2.CASES else door).send(cases[name]) for name in mistake.detected_by
        }
    missed = [name for name in outcomes if not judge.mistake(mistake.proxy, cases[name], outcomes[name])]
    assert not missed


def test_ambiguous_framing_that_arrives_is_detected() -> None:
    cases = [case for case in SUITE if case.name.startswith("hidden request: ")]
    with EchoUpstream() as echo:
        # As behind a proxy that forwards bytes without reading them.
        door = CarryingDoor("nothing", Client(echo.port), {"shop": echo}, {"alice": "x"})
        arrived = {case.name: door.send(case).arrived for case in cases}
    assert [name for name, request in arrived.items() if request is None or not ambiguity(request.headers)] == []
    assert "smuggled" in echo.seen


# --- closed ---

BROKEN = {
    "garbage": b"\x00\x01\x02 this is not HTTP\r\n\r\n",
    "nothing": b"",
    "half an answer": b"HTTP/1.1 200 OK\r\nX-Remote-User: al",
    "500": b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n",
    "503": b"HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n",
    "302": b"HTTP/1.1 302 X\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
    "400": b"HTTP/1.1 400 X\r\nContent-Length: 0\r\n\r\n",
}


# For the others see tests/e2e/test_grpc_door.py and test_haproxy.py.
@pytest.mark.parametrize("proxy", [proxy for proxy in PROXIES if proxy in ("nginx", "traefik", "caddy", "envoy")])
def test_nobody_is_let_in_while_the_gateway_cannot_be_asked(doors: Doors, proxy: str, tmp_path: Path) -> None:
    port = free_port()
    with FakeGateway() as gateway:
        text = _asking(doors, proxy, gateway, port)
        with running(proxy, tmp_path / proxy, text, port) as client:
            for name, answer in BROKEN.items():
                gateway.answer = answer
                _expect_closed(doors, client, name)
            gateway.answer = None
            gateway.asked.clear()
            with ThreadPoolExecutor() as pool:
                slow = pool.submit(_expect_closed, doors, client, "slow")
                assert gateway.asked.wait(30)
                assert "slow" not in doors.echo.seen
                gateway.go_on.set()
                slow.result(30)
            gateway.stop()
            _expect_closed(doors, client, "down")


@pytest.mark.parametrize("proxy", FAIL_OPEN)
def test_a_configuration_that_fails_open_is_detected(doors: Doors, proxy: str, tmp_path: Path) -> None:
    port = free_port()
    with FakeGateway() as gateway:
        text = changed(_asking(doors, proxy, gateway, port), FAIL_OPEN[proxy])
        with running(proxy, tmp_path / proxy, text, port) as client:
            gateway.stop()
            with pytest.raises(AssertionError):
                _expect_closed(doors, client, f"{proxy} fails open")
    assert f"{proxy} fails open" in doors.echo.seen


def _asking(doors: Doors, proxy: str, gateway: FakeGateway, port: int) -> str:
    where = ("--gateway", f"http://127.0.0.1:{gateway.port}", "--backend", f"shop=http://127.0.0.1:{doors.echo.port}")
    return printed(proxy, doors.site.folder / "gateway.yaml", "--listen", f"127.0.0.1:{port}", *where)


def _expect_closed(doors: Doors, client: Client, name: str) -> None:
    reply = client.send(Case(name, "/closed").request(doors.tokens["alice"]))
    assert reply.status >= 300, name
    assert name not in doors.echo.seen


def test_a_door_answers_nobody_but_its_proxy(doors: Doors) -> None:
    client = Client(doors.gateway.port, _trust(doors.site))
    questions = {
        "no secret": ("/doors/nginx/shop", ()),
        "a wrong secret": ("/doors/nginx/shop", (("X-Ostiary-Door", "wrong"),)),
        "two secrets": ("/doors/nginx/shop", (("X-Ostiary-Door", SECRET), ("X-Ostiary-Door", SECRET))),
        "an unknown door": ("/doors/other/shop", (("X-Ostiary-Door", SECRET),)),
        "an unknown upstream": ("/doors/nginx/other", (("X-Ostiary-Door", SECRET),)),
        "no upstream": ("/doors/nginx", (("X-Ostiary-Door", SECRET),)),
        "nothing but the secret": ("/doors/nginx/shop", (("X-Ostiary-Door", SECRET),)),
    }
    original = (
        ("X-Original-Method", "GET"),
        ("X-Original-URI", "/x"),
        ("X-Original-Host", HOST),
        ("X-Forwarded-For", "192.0.2.1"),
    )
    answers = set()
    for name, (path, headers) in questions.items():
        more = () if name == "nothing but the secret" else original
        reply = client.send(Case(name, path, headers=(*headers, *more)).request(doors.tokens["alice"]))
        answers.add((reply.status, reply.body))
        assert reply.header("X-Remote-User") is None, name
    assert len(answers) == 1, "they can be told apart"
    assert answers.pop()[0] == 503


def test_a_revoked_token_is_refused_at_every_door_at_once(doors: Doors) -> None:
    tokens = doors.gateway.worker.app.shared.tokens
    issued = doors.gateway.call(lambda: tokens.issue(USERS["alice"], provider="staff"))
    request = Case("before and after").request(issued.token.reveal())
    for client in doors.clients.values():
        # Twice: the second time the answer is remembered.
        assert [client.send(request).status for _ in range(3)] == [200, 200, 200]
    doors.gateway.call(lambda: tokens.revoke(RevocationKind.SESSION, issued.session.id))
    assert {name: client.send(request).status for name, client in doors.clients.items()} == dict.fromkeys(
        doors.clients, 401
    )


def test_every_decision_at_a_door_is_recorded(doors: Doors) -> None:
    name = "/recorded/by/all"
    for client in doors.clients.values():
        client.send(Case("recorded", f"{name}?q=1").request(doors.tokens["alice"]))
        client.send(Case("recorded", "/denied/recorded").request(doors.tokens["alice"]))
    doors.gateway.call(doors.gateway.worker.app.auditor.flush)
    events = [event for event in doors.site.events() if event["stage"] == "ResponseComplete"]
    for uri, code in ((f"{name}?q=1", 200), ("/denied/recorded", 403)):
        matching = [event for event in events if event["requestURI"] == uri]
        assert len(matching) == len(doors.clients)
        assert {event["user"]["username"] for event in matching} == {"alice"}
        assert {event["responseStatus"]["code"] for event in matching} == {code}
        # The address of the proxy's client, as each proxy tells it, and never that of a question.
        assert all(event["sourceIPs"] for event in matching)


# --- nginx with a cache ---


@pytest.mark.parametrize("token_hash", TOKEN_HASH_MODULES)
def test_nginx_uses_an_answer_again_only_for_the_same_token_and_keeps_no_token(
    doors: Doors, judge: Judge, tmp_path: Path, request: pytest.FixtureRequest, token_hash: str
) -> None:
    for module in TOKEN_HASH_MODULES[token_hash]:
        if not module.exists():
            missing(f"the module {module.name} of nginx")
    port = free_port()
    options = (*_options(doors.site, doors.gateway, doors.echo, port), "--cache", "60s", "--token-hash", token_hash)
    text = printed("nginx", doors.site.folder / "gateway.yaml", *options)
    # A directory of this test, where nginx finds it as another user, too.
    cache = Path(f"/dev/shm/ostiary-test-{port}")
    text = text.replace("/dev/shm/ostiary-nginx", str(cache))
    request.addfinalizer(lambda: shutil.rmtree(cache, ignore_errors=True))
    questions = doors.gateway.worker.app.shared.metrics.door_questions
    with running("nginx", tmp_path / "nginx", text, port) as client:
        before = questions.values.get(("nginx", "asked"), 0)
        # The gateway is asked about the first two only, and so never sees the claims of the others.
        claim = (("X-Remote-Extra-Evil", "evil"), ("X-Remote-User", "evil"))
        for user, claims in (("alice", ()), ("bob", ()), ("alice", claim), ("alice", ()), ("bob", claim)):
            case = Case("cached", "/cached", user=user, headers=claims)
            reply = client.send(case.request(doors.tokens[user]))
            assert reply.status == 200
            outcome = Outcome(reply.status, arrival("nginx", "shop", reply.json()), reply)
            assert not judge.mistake("nginx", case, outcome)
        assert questions.values["nginx", "asked"] - before == 2
        for target, status in (("/denied", 403), ("/cached?other", 200), ("/hidden/x", 404)):
            assert client.send(Case("other", target).request(doors.tokens["alice"])).status == status
        assert client.send(Case("nobody", "/cached").request(None)).status == 401
        # nginx takes the host of a whole URL, and what it kept is for the upstream of the other host.
        crossing = Case("crossing", f"http://{kubernetes.HOST}/cached")
        assert client.send(crossing.request(doors.tokens["alice"])).status == 404
        # Whatever of the suite arrives, with or without a question to the gateway, was allowed and has no claims.
        door = CarryingDoor("nginx", client, doors.echoes, doors.tokens)
        carried = [replace(case, differs={"nginx": NORMALISES}) for case in SUITE if not case.told]
        mistakes = {case.name: judge.mistake("nginx", case, door.send(case)) for case in carried}
        assert not any(mistakes.values()), {name: mistake for name, mistake in mistakes.items() if mistake}
        kept = b"".join(file.read_bytes() for file in cache.rglob("*") if file.is_file())
    assert b"/cached" in kept
    assert not any(token.encode() in kept for token in doors.tokens.values())


# --- switching protocols ---

WEBSOCKET = (
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
)


CARRY_WEBSOCKETS = pytest.mark.parametrize("proxy", ["nginx", "traefik", "caddy", "envoy", "envoy-grpc", "haproxy"])


@CARRY_WEBSOCKETS
def test_a_websocket_is_decided_on_and_passes(doors: Doors, proxy: str) -> None:
    client = Client(doors.clients[proxy].port)
    for target, status in (("/socket", 200), ("/denied", 403), ("/socket/without-a-token", 401)):
        case = Case(f"websocket {proxy} {target}", target, headers=WEBSOCKET)
        # The upstream of these tests does not switch: it says what it was asked.
        assert client.send(case.request(None if status == 401 else doors.tokens["alice"])).status == status
        client.close()
    seen = {name.lower(): value for name, value in doors.echo.seen[f"websocket {proxy} /socket"]["headers"]}
    assert (seen["upgrade"].lower(), seen["connection"].lower()) == ("websocket", "upgrade")


@CARRY_WEBSOCKETS
def test_a_token_that_the_upstream_would_see_is_refused(doors: Doors, proxy: str) -> None:
    protocols = ("Sec-WebSocket-Protocol", "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.b3N0")
    case = Case(f"websocket token {proxy}", "/socket", headers=(*WEBSOCKET, protocols))
    assert Client(doors.clients[proxy].port).send(case.request(None)).status == 400
    assert case.name not in doors.echo.seen


def test_where_the_gateway_is_not_told_no_connection_switches(doors: Doors) -> None:
    case = Case("websocket gateway-api", "/socket", headers=WEBSOCKET)
    assert Client(doors.clients["gateway-api"].port).send(case.request(doors.tokens["alice"])).status >= 400
    assert case.name not in doors.echo.seen


@CARRY_WEBSOCKETS
@pytest.mark.parametrize("upgrades", [("h2c",), ("h2c", "websocket"), ("websocket", "h2c"), ("websocket, h2c",)])
def test_another_protocol_than_websocket_never_reaches_the_upstream(
    doors: Doors, proxy: str, upgrades: tuple[str, ...]
) -> None:
    connection = (("Connection", "Upgrade, HTTP2-Settings"), ("HTTP2-Settings", "AAMAAABkAAQAAP__"))
    headers = (*connection, *(("Upgrade", upgrade) for upgrade in upgrades))
    case = Case(f"h2c {proxy} {upgrades}", "/socket", headers=headers)
    Client(doors.clients[proxy].port).send(case.request(doors.tokens["alice"]))
    seen = doors.echo.seen.get(case.name, {"headers": []})
    assert {value.lower() for name, value in seen["headers"] if name.lower() == "upgrade"} <= {"websocket"}


@CARRY_WEBSOCKETS
def test_a_client_cannot_make_a_websocket_of_a_plain_request_to_the_gateway_alone(doors: Doors, proxy: str) -> None:
    """Nor the other way round: what is decided on is what is forwarded."""
    plain = Case(f"claimed {proxy}", "/plain", headers=(("X-Original-Upgrade", "h2c"),))
    client = Client(doors.clients[proxy].port)
    assert client.send(plain.request(doors.tokens["alice"])).status == 200
    client.close()
    hidden = Case(f"hidden {proxy}", "/hidden/socket", headers=(*WEBSOCKET, ("X-Original-Upgrade", "")))
    assert client.send(hidden.request(doors.tokens["alice"])).status == 404
    for case in (plain, hidden):
        names = {name.lower() for name, _ in doors.echo.seen.get(case.name, {"headers": []})["headers"]}
        assert "x-original-upgrade" not in names or proxy in ("nginx", "caddy", "haproxy")
