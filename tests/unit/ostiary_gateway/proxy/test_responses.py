"""Every refusal and failure that a client gets from us: its status, its words, its headers, and what is recorded."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import Decision, Verdict
from ostiary_gateway.interfaces.token_store import RevocationKind
from tests.support.http1 import Message, connected, get, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    DENY,
    Policy,
    at,
    configured,
    endless,
    kubernetes,
    opened,
    serving,
    silent,
)

NOWHERE = "http://127.0.0.1:1"
POD = "/api/v1/namespaces/x/pods/p"


def headers_of(answer: Message) -> dict[str, str]:
    return {name.decode().lower(): value.decode() for name, value in answer.headers}


def message_of(answer: Message) -> str:
    status = json.loads(answer.body)
    assert (status["kind"], status["status"], status["code"]) == ("Status", "Failure", answer.status)
    return str(status["message"])


# --- 401 ---


async def test_who_presents_no_token_is_asked_for_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ostiary.gateway")
    async with serving(configured(tmp_path, NOWHERE)) as site:
        answer = await site.client.ask(get("/x?y=1"))
        assert (answer.status, message_of(answer)) == (401, "Unauthorized")
        headers = headers_of(answer)
        assert headers["www-authenticate"] == 'Bearer realm="ostiary"'
        assert headers["cache-control"] == "no-cache, private"
        assert headers["content-type"] == "application/json"
        assert headers["x-content-type-options"] == "nosniff"
        assert site.count("authentications_total", "absent") == 1
        assert site.count("requests_total", "401") == 1
        (event,) = await site.events()
        assert (event["auditID"], event["requestURI"], event["verb"]) == (headers["audit-id"], "/x?y=1", "get")
        assert event["responseStatus"]["code"] == 401
        assert "user" not in event or event["user"] == {}
        ended = site.ended(answer)
        assert ended is not None
        assert (ended.status, ended.method, ended.path, ended.address) == (401, "GET", "/x", "127.0.0.1")
        assert ended.reason == "Authentication failed, no credentials provided"
        assert (ended.username, ended.at) == ("", site.clock.now())
    (line,) = [record for record in caplog.records if record.getMessage() == "a request was refused"]
    assert line.__dict__["request_id"] == headers["audit-id"]
    assert line.__dict__["status"] == 401


@pytest.mark.parametrize("token", ["ost_unknown", "expired", "revoked"])
async def test_a_token_that_is_no_good_gets_the_same_answer_whatever_is_wrong_with_it(
    tmp_path: Path, token: str
) -> None:
    async with serving(configured(tmp_path, NOWHERE)) as site:
        if token == "revoked":
            await site.worker.app.shared.tokens.revoke(RevocationKind.USER, "alice")
        elif token == "expired":
            site.clock.advance(minutes=15)
        else:
            site.token = token
        answer = await site.ask()
        assert (answer.status, message_of(answer)) == (401, "Unauthorized")
        assert answer.one("WWW-Authenticate") == b'Bearer realm="ostiary", error="invalid_token"'
        assert site.count("authentications_total", "refused") == 1
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason == "Authentication failed, attempted: bearer"
        assert len(await site.events()) == 1
        lookups = 0 if token == "ost_unknown" else 1
        assert site.store.lookups == lookups, "nobody is asked about what cannot be a token of ours"


HTML = "Accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"


async def test_only_a_browser_that_opens_the_root_is_led_to_the_sign_in_page(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[str, list[str], str, int]] = [
        ("/", [HTML], "GET", 303),
        ("/?next=1", [HTML], "GET", 303),
        ("/", [HTML, "Sec-Fetch-Dest: document"], "GET", 303),
        ("/", [HTML, "Sec-Fetch-Dest: image"], "GET", 401),
        ("/", ["Accept: */*"], "GET", 401),
        ("/", [], "GET", 401),
        ("/x", [HTML], "GET", 401),
        ("/", [HTML], "POST", 401),
        ("/", [HTML, "Connection: Upgrade", "Upgrade: websocket"], "GET", 401),
        ("/", [HTML, "Authorization: Bearer ost_unknown"], "GET", 401),
    ]
    for target, lines, method, status in cases:
        with subtests.test(target=target, lines=lines, method=method, status=status):
            tmp_path = tmp_path_factory.mktemp("case")
            async with serving(configured(tmp_path, NOWHERE)) as site:
                answer = await site.client.ask(get(target, *lines, method=method))
                assert answer.status == status
                if status == 303:
                    assert (answer.one("Location"), answer.one("Vary"), answer.body) == (b"/auth", b"Accept", b"")
                    assert answer.one("WWW-Authenticate") is None
                    assert site.ended(answer) is None, "it is no refusal"
                    assert (await site.events())[0]["responseStatus"]["code"] == 303


# --- 403 and 404 ---


async def test_a_refusal_names_who_asked_for_what_and_can_be_explained_by_its_id(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), Policy(DENY), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            answer = await site.ask(POD)
            assert answer.status == 403
            assert message_of(answer) == (
                'pods "p" is forbidden: User "alice" cannot get resource "pods" in API group "" in the namespace "x"'
            )
            assert answer.one("X-Content-Type-Options") == b"nosniff"
            refusal = site.worker.app.authorizer.recall((answer.one("Audit-Id") or b"").decode())
            assert refusal is not None
            assert (refusal.decision, refusal.attributes.user.username) == (DENY, "alice")
            assert site.ended(answer) is None, "the authorizer keeps it, with the decision"
            assert site.count("decisions_total", "deny") == 1
            assert site.count("requests_total", "get", "403") == 1
            (event,) = await site.events()
            assert (event["user"]["username"], event["responseStatus"]["code"]) == ("alice", 403)
            assert event["annotations"]["authorization.k8s.io/reason"] == "never"
    assert made.requests == []


async def test_a_hidden_refusal_cannot_be_told_from_a_missing_object(tmp_path: Path) -> None:
    hidden = Decision(Verdict.DENY, "never", hidden=True)
    config = configured(tmp_path, NOWHERE, Policy(hidden), upstreams=kubernetes(NOWHERE))
    config = replace(config, authorization=replace(config.authorization, hide_denied=True))
    async with serving(config) as site:
        answer = await site.ask(POD)
        assert (answer.status, message_of(answer)) == (404, 'pods "p" not found')
        assert answer.one("X-Content-Type-Options") is None


async def test_what_nobody_serves_is_not_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    upstreams = [{"name": "api", "server": NOWHERE, "prefix": "/api", "identity": "none", "attributes": "http"}]
    async with serving(configured(tmp_path, NOWHERE, upstreams=upstreams)) as site:
        answer = await site.ask("/elsewhere")
        assert answer.status == 404
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason == "no upstream serves this host and path"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


# --- 400 and 413 ---


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["Authorization: Bearer a", "Authorization: Bearer b"], None),
        (["Impersonate-Group: g"], "impersonation needs exactly one Impersonate-User"),
    ],
)
async def test_headers_that_contradict_each_other_are_a_bad_request(
    tmp_path: Path, lines: list[str], message: str | None
) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        answer = await (site.client.ask(get("/x", *lines)) if message is None else site.ask("/x", *lines))
        assert answer.status == 400
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason == message_of(answer)
        if message is not None:
            assert message_of(answer) == message
        assert made.requests == []


async def test_a_websocket_that_presents_two_tokens_is_a_bad_request(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        protocols = ", ".join(f"base64url.bearer.authorization.k8s.io.{token}" for token in ("YQ", "Yg"))
        lines = ("Connection: Upgrade", "Upgrade: websocket", f"Sec-WebSocket-Protocol: {protocols}")
        async with connected(site.port) as client:
            answer = await client.ask(get("/x", *lines))
        assert answer.status == 400
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason == message_of(answer)
        assert made.requests == []


async def test_a_target_that_can_be_read_in_two_ways_is_a_bad_request(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        answer = await site.ask("/a/../b")
        assert (answer.status, message_of(answer)) == (400, "the path has a dot segment")
        assert site.count("requests_total", "400") == 1
        assert made.requests == []


@pytest.mark.parametrize("known", [False, True])
async def test_a_request_that_cannot_be_read_to_its_end_is_refused_with_an_id_that_leads_somewhere(
    tmp_path: Path, known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of the one the head cannot be read, of the other the body."""
    caplog.set_level(logging.INFO, "ostiary.gateway")
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site, connected(site.port) as client:
        if known:
            client.send(site.request("/x?y=1", "Transfer-Encoding: chunked", method="POST"))
            await until(lambda: site.seats == 1)
            client.send(b"broken\r\n")
        else:
            client.send(b"GET /x?y=1 HTTP/1.1\r\nno header\r\n\r\n")
        answer = await client.answer()
        assert answer.status == 400
        assert answer.one("Audit-Id")
        if known:
            await until(lambda: site.count("requests_total") == 1)
            assert [event["auditID"].encode() for event in await site.events()] == [answer.one("Audit-Id")]
        ended = site.ended(answer)
        assert ended is not None
        assert (ended.status, ended.address, ended.at) == (400, "127.0.0.1", site.clock.now())
        assert ended.path == "/x"
        assert ended.reason
    lines = [record for record in caplog.records if record.getMessage() == "a request was refused"]
    assert (answer.one("Audit-Id") or b"").decode() in [line.__dict__["request_id"] for line in lines]


# --- 429 ---


async def test_too_many_failed_attempts_from_one_address_are_refused_for_a_while(tmp_path: Path) -> None:
    async with serving(configured(tmp_path, NOWHERE, limits={"failuresPerMinute": 3})) as site:
        wrong = get("/x", "Authorization: Bearer ost_unknown")
        answers = [await site.client.ask(wrong) for _ in range(10)]
        assert {answer.status for answer in answers} == {401, 429}
        refused = answers[-1]
        assert refused.status == 429
        assert int(refused.one("Retry-After") or b"0") >= 1
        assert site.count("rate_limited_total", "failures") == sum(answer.status == 429 for answer in answers)
        ended = site.ended(refused)
        assert ended is not None
        assert ended.reason == "over the limit: failures"
        site.clock.advance(minutes=5)
        assert (await site.client.ask(wrong)).status == 401


async def test_a_user_over_their_rate_is_told_when_to_come_back(tmp_path: Path) -> None:
    limits = {"requestsPerSecond": 0.1, "burst": 2}
    async with upstream() as made, serving(configured(tmp_path, at(made), limits=limits)) as site:
        assert [(await site.ask()).status for _ in range(2)] == [200, 200]
        answer = await site.ask()
        assert answer.status == 429
        assert answer.one("Retry-After") == b"10"
        assert json.loads(answer.body)["details"]["retryAfterSeconds"] == 10
        assert site.count("rate_limited_total", "rate") == 1
        ended = site.ended(answer)
        assert ended is not None
        assert (ended.reason, ended.username) == ("over the limit: rate", "alice")
        (*_, event) = await site.events()
        assert (event["responseStatus"]["code"], event["user"]["username"]) == (429, "alice")
        site.clock.advance(10)
        assert (await site.ask()).status == 200


async def test_who_has_too_many_connections_may_try_again_a_second_later(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made), limits={"connectionsPerUser": 1})) as site:
        assert (await site.ask()).status == 200
        async with connected(site.port) as client:
            answer = await client.ask(site.request())
            assert (answer.status, answer.one("Retry-After")) == (429, b"1")
            assert await client.closed()
        assert site.count("rate_limited_total", "connections") == 1
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason == "over the limit: connections"


async def test_who_has_too_many_streams_open_gets_no_other(tmp_path: Path) -> None:
    config = configured(tmp_path, NOWHERE, limits={"streams": 1})
    async with upstream(endless) as made:
        config = replace(config, upstreams=configured(tmp_path, at(made), upstreams=kubernetes(at(made))).upstreams)
        async with serving(config) as site, opened(site, "/api/v1/pods?watch=1"):
            assert (site.streams, site.seats) == (1, 0)
            answer = await site.ask("/api/v1/pods?watch=1")
            assert (answer.status, answer.one("Retry-After")) == (429, b"1")
            assert site.count("rate_limited_total", "streams") == 1
            assert site.streams == 1


async def test_an_answer_that_turns_out_to_be_a_stream_is_refused_where_the_user_has_too_many(tmp_path: Path) -> None:
    async def events(connection: Any) -> None:
        connection.upstream.requests.append(await connection.head())
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await connection.rest()

    limits = {"streams": 1}
    async with upstream(events) as made, serving(configured(tmp_path, at(made), limits=limits)) as site, opened(site):
        assert (site.streams, site.seats) == (1, 0)
        async with connected(site.port) as client:
            answer = await client.ask(site.request())
        assert (answer.status, answer.one("Retry-After")) == (429, b"1")
        assert json.loads(answer.body)["details"]["retryAfterSeconds"] == 1
        assert site.count("rate_limited_total", "streams") == 1
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason == "over the limit: streams"
        await until(lambda: site.seats == 0)


# --- 500 and 503 ---


async def test_when_nobody_can_decide_the_request_fails_and_is_not_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ostiary.gateway")
    policy = Policy()
    policy.fails = True
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        answer = await site.ask("/x?y=1")
        assert (answer.status, message_of(answer)) == (500, "Internal error occurred")
        assert b"refused" not in answer.body
        assert site.count("provider_errors_total", "authorization") == 1
        (event,) = await site.events()
        assert (event["user"]["username"], event["responseStatus"]["code"]) == ("alice", 500)
        assert event["requestURI"] == "/x?y=1"
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason.startswith("could not be decided: ")
        assert "connection refused" in ended.reason
        assert made.requests == []
    assert "a request failed" in [record.getMessage() for record in caplog.records], "not refused"
    (line,) = [record for record in caplog.records if record.getMessage() == "a request could not be decided"]
    assert "connection refused" in line.__dict__["cause"]


async def test_when_the_token_store_is_down_strangers_wait_and_known_tokens_go_on_for_the_grace_period(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Fail closed, after the `tokens.maxStale` that is documented: five seconds."""
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        assert (await site.ask()).status == 200
        site.store.down = True
        site.clock.advance(4.9)
        assert (await site.ask()).status == 200
        site.clock.advance(0.2)
        answer = await site.ask()
        assert answer.status == 503
        assert answer.one("WWW-Authenticate") is None, "nobody throws a good token away"
        assert site.count("provider_errors_total", "token_store") == 1
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason == "the token could not be looked up"
        site.store.down = False
        assert (await site.ask()).status == 200
    (line,) = [record for record in caplog.records if record.getMessage() == "a token could not be looked up"]
    assert line.__dict__["cause"] == "no route to host"


async def test_an_upstream_that_cannot_be_reached_is_told_from_one_that_says_nothing(tmp_path: Path) -> None:
    async with serving(configured(tmp_path, NOWHERE)) as site:
        answer = await site.ask()
        assert answer.status in (502, 503)
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason == "the upstream could not be asked"
        assert site.count("upstream_errors_total", "api") == 1
        assert site.count("requests_total", str(answer.status), "api") == 1
        assert site.seats == 0


async def test_a_client_that_hangs_up_before_the_answer_is_counted_once(tmp_path: Path) -> None:
    async with upstream(silent) as made, serving(configured(tmp_path, at(made))) as site:
        async with connected(site.port) as client:
            client.send(site.request())
            await until(lambda: bool(made.requests))
            assert site.seats == 1
        await until(lambda: site.seats == 0)
        await until(lambda: site.count("requests_total") == 1)


async def test_an_answer_that_nobody_is_there_to_read_is_neither_counted_nor_recorded(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        policy.gate.clear()
        async with connected(site.port) as client:
            client.send(site.request())
            await policy.reached.wait()
        await until(lambda: len(site.worker._http.connections) == 1)
        policy.fails = True
        policy.gate.set()
        await until(lambda: not site.worker.app.engine.busy)
        assert site.count("provider_errors_total", "authorization") == 1
        assert site.count("requests_total") == 0
        assert await site.events() == []
