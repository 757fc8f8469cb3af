"""Calls at the doors of a real worker: who is answered, what is told, what is recorded."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import Decision, UserInfo, Verdict
from ostiary_gateway.authentication.callers import CALLERS_SECONDS
from ostiary_gateway.extauth.ext_authz import NO_DOOR
from ostiary_gateway.extauth.grpc import PERMISSION_DENIED, framed
from ostiary_gateway.interfaces.token_store import RevocationKind
from tests.support.check_client import CheckClient, Outcome, check_client
from tests.support.envoy_messages import check_request, check_response
from tests.support.http1 import get
from tests.unit.ostiary_gateway.proxy.gateways import (
    ALLOW,
    DENY,
    Gateway,
    ImmediatePolicy,
    Policy,
    another_token,
    configured,
    serving,
)

SECRET = "s3cret-0f-this-d00r"
UPSTREAMS = [
    {"name": "shop", "attributes": "http", "hosts": ["shop.example"]},
    {"name": "other", "attributes": "http", "hosts": ["other.example"]},
]
CONTEXT = {"ostiary-door": "edge", "ostiary-upstream": "shop"}
HIDING = {"chain": [{"name": "all", "type": "allow_all"}], "hideDenied": True}


@dataclass
class Asked:
    """A gateway, and the connection of an Envoy. Each question has another port, id and time, as an Envoy's."""

    site: Gateway
    client: CheckClient
    number: int = 0

    def message(
        self,
        path: str = "/x",
        *headers: tuple[str, bytes],
        method: str = "GET",
        host: str = "shop.example",
        token: str | None = None,
        context: dict[str, str] | None = None,
        address: str = "192.0.2.7",
    ) -> bytes:
        self.number += 1
        pseudo = [(":authority", host.encode()), (":path", path.encode()), (":method", method.encode())]
        token = self.site.token if token is None else token
        bearer = [("authorization", b"Bearer " + token.encode())] if token else []
        context = CONTEXT if context is None else context
        number = self.number
        lines = [*pseudo, *bearer, *headers]
        return check_request(lines, context=context, address=address, port=30_000 + number, number=number)

    async def ask(
        self, path: str = "/x", *headers: tuple[str, bytes], secret: str | None = SECRET, **more: Any
    ) -> Outcome:
        return await self.client.check(self.message(path, *headers, **more), secret=secret)

    async def status(self, *words: Any, **more: Any) -> int:
        """The status of HTTP that the answer means to the client of the proxy: 503 where the call failed."""
        outcome = await self.ask(*words, **more)
        if outcome.status:
            return 503
        answer = check_response(outcome.message)
        return 200 if answer.status.code == 0 and answer.HasField("ok_response") else answer.denied_response.status.code

    @property
    def counted(self) -> dict[tuple[str, ...], float]:
        return dict(self.site.worker.app.shared.metrics.door_questions.values)


@asynccontextmanager
async def door(
    folder: Path, policy: Policy | None = None, user: UserInfo | None = None, **sections: Any
) -> AsyncIterator[Asked]:
    (folder / "secret").write_text(SECRET)
    entries = [
        {"name": "edge", "proxy": "envoy-grpc", "callers": {"tokenFile": "secret"}},
        {"name": "web", "proxy": "envoy", "callers": {"tokenFile": "secret"}},
    ]
    listen = {"address": "127.0.0.1:0", "grpc": {"address": "127.0.0.1:0"}}
    sections = {"upstreams": UPSTREAMS, "doors": entries, "listen": listen, **sections}
    config = configured(folder, "", policy or ImmediatePolicy(), **sections)
    users = () if user is None else (user,)
    async with serving(config, *users) as site, check_client(site.grpc_port) as client:
        yield Asked(site, client)


async def test_an_allowing_answer_overwrites_the_identity_and_takes_the_credentials_out(tmp_path: Path) -> None:
    async with door(tmp_path) as asked:
        for _ in range(4):  # from the third on it is a remembered one
            answer = check_response((await asked.ask()).message)
            assert answer.status.code == 0
            headers = {each.header.key: each.header.value for each in answer.ok_response.headers}
            assert headers == {"x-remote-user": "alice", "x-remote-uid": "7", "x-remote-group": "dev"}
            assert {each.append_action for each in answer.ok_response.headers} == {2}
            assert "authorization" in answer.ok_response.headers_to_remove


async def test_groups_of_any_form_arrive_and_every_header_is_there(tmp_path: Path) -> None:
    groups = ("a,b", "50%", "%2C", "ärzte", "all staff")
    async with door(tmp_path, user=UserInfo("jürgen", "", groups)) as asked:
        answer = check_response((await asked.ask()).message)
    headers = {each.header.key: each.header.value for each in answer.ok_response.headers}
    assert headers == {
        "x-remote-user": "jürgen",
        "x-remote-uid": "",
        "x-remote-group": "a%2Cb,50%25,%252C,%C3%A4rzte,all%20staff",
    }


async def test_the_policy_is_asked_about_the_carried_request_at_its_upstream(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with door(tmp_path, policy) as asked:
        await asked.ask("/a/b?q=1", method="POST")
    request = policy.asked[-1].request
    assert (request.verb, request.path, request.upstream) == ("post", "/a/b", "shop")


@pytest.mark.parametrize(("decision", "status"), [(DENY, 403), (Decision(Verdict.DENY, "hidden", hidden=True), 404)])
async def test_a_refusal_has_its_own_status_headers_and_body(tmp_path: Path, decision: Decision, status: int) -> None:
    async with door(tmp_path, ImmediatePolicy(decision), authorization=HIDING) as asked:
        answer = check_response((await asked.ask()).message)
    assert (answer.status.code, answer.denied_response.status.code) == (7, status)
    assert json.loads(answer.denied_response.body)["code"] == status
    headers = {each.header.key: each.header.value for each in answer.denied_response.headers}
    assert headers["content-type"] == "application/json"
    assert headers["audit-id"]


async def test_a_401_has_its_challenge(tmp_path: Path) -> None:
    async with door(tmp_path) as asked:
        answer = check_response((await asked.ask(token="")).message)
    headers = {each.header.key: each.header.value for each in answer.denied_response.headers}
    assert (answer.denied_response.status.code, headers["www-authenticate"]) == (401, 'Bearer realm="ostiary"')


async def test_whatever_is_no_question_of_the_proxy_fails_in_one_way_and_is_told_the_operator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy = ImmediatePolicy()
    async with door(tmp_path, policy) as asked:
        message = asked.message()
        questions = {
            "no secret": (message, None),
            "a wrong secret": (message, "wrong"),
            "no context": (asked.message(context={}), SECRET),
            "no door": (asked.message(context={"ostiary-upstream": "shop"}), SECRET),
            "an unknown door": (asked.message(context={**CONTEXT, "ostiary-door": "x"}), SECRET),
            "a door of HTTP": (asked.message(context={**CONTEXT, "ostiary-door": "web"}), SECRET),
            "no upstream": (asked.message(context={"ostiary-door": "edge"}), SECRET),
            "an unknown upstream": (asked.message(context={**CONTEXT, "ostiary-upstream": "x"}), SECRET),
            "garbage": (b"\xff\xff\xff", SECRET),
            "nothing": (b"", SECRET),
            "a pipe": (asked.message(address=""), SECRET),
            "no raw headers": (check_request([], context=CONTEXT), SECRET),
        }
        outcomes = set()
        with caplog.at_level(logging.WARNING, "ostiary.gateway"):
            for question, secret in questions.values():
                outcome = await asked.client.check(question, secret=secret)
                outcomes.add((outcome.status, outcome.headers["grpc-message"], outcome.data))
        counted = asked.counted
    assert outcomes == {(PERMISSION_DENIED, NO_DOOR.decode(), b"")}, "they can be told apart"
    assert policy.asked == []
    assert sum(counted.values()) == len(questions)
    assert counted["edge", "unknown_caller"] == 2
    assert not any(result == "asked" for _, result in counted)
    records = [record for record in caplog.records if record.message == "a door was asked in vain"]
    assert records
    assert SECRET not in str([record.__dict__ for record in records])
    assert asked.site.token not in str([record.__dict__ for record in records])


async def test_two_secrets_are_none(tmp_path: Path) -> None:
    async with door(tmp_path) as asked:
        stream = asked.client.begin(metadata=[("x-ostiary-door", SECRET), ("x-ostiary-door", SECRET)])
        asked.client.send(stream, framed(asked.message()))
        assert (await asked.client.outcome(stream)).status == PERMISSION_DENIED


async def test_a_door_that_is_asked_by_grpc_is_not_asked_in_another_way(tmp_path: Path) -> None:
    async with door(tmp_path) as asked:
        lines = (f"Authorization: Bearer {asked.site.token}", f"X-Ostiary-Door: {SECRET}")
        answer = await asked.site.client.ask(get("/doors/edge/shop/x", *lines), "GET")
        assert answer.status == 503


async def test_a_host_of_another_upstream_has_no_route_though_the_proxy_would_forward_it(tmp_path: Path) -> None:
    async with door(tmp_path) as asked:
        assert await asked.status(host="other.example") == 404
        assert await asked.status(host="other.example", context={**CONTEXT, "ostiary-upstream": "other"}) == 200


async def test_a_remembered_question_is_good_for_its_own_door_upstream_address_and_headers_alone(
    tmp_path: Path,
) -> None:
    policy = ImmediatePolicy()
    async with door(tmp_path, policy) as asked:
        bob = await another_token(asked.site, UserInfo("bob"))
        for _ in range(5):
            assert await asked.status() == 200
        before = asked.counted["edge", "asked"]
        answer = check_response((await asked.ask(token=bob)).message)
        assert answer.ok_response.headers[0].header.value == "bob"
        assert await asked.status(context={**CONTEXT, "ostiary-upstream": "other"}) == 404
        assert await asked.status("/y") == 200
        assert await asked.status(token="") == 401
        policy.rule = DENY
        policy.revision += 1
        asked.site.clock.advance(seconds=1)
        assert await asked.status() == 403
        assert asked.counted["edge", "asked"] == before + 5


async def test_a_revoked_token_and_a_changed_secret_shut_out_a_remembered_question(tmp_path: Path) -> None:
    async with door(tmp_path) as asked:
        tokens = asked.site.worker.app.shared.tokens
        for _ in range(4):
            assert await asked.status() == 200
        found = await tokens.find(asked.site.token)
        assert found is not None
        await tokens.revoke(RevocationKind.SESSION, found.session.id)
        assert await asked.status() == 401
        (tmp_path / "secret").write_text("another")
        asked.site.clock.advance(seconds=CALLERS_SECONDS)
        assert await asked.status() == 503


async def test_a_decision_that_must_be_waited_for_is_the_same(tmp_path: Path) -> None:
    async with door(tmp_path, Policy(ALLOW)) as asked:
        assert await asked.status() == 200
        assert await asked.status("/y") == 200


async def test_a_stop_answers_what_was_begun(tmp_path: Path) -> None:
    policy = Policy(ALLOW)
    policy.gate.clear()
    async with door(tmp_path, policy) as asked:
        asked.client.goes_on = True
        stream = asked.client.begin(secret=SECRET)
        asked.client.send(stream, framed(asked.message()))
        await policy.reached.wait()
        closing = asyncio.ensure_future(asked.site.worker.close(drain=30.0))
        while asked.client.goodbye is None:
            await asked.client.read()
        policy.gate.set()
        outcome = await asked.client.outcome(stream)
        assert check_response(outcome.message).HasField("ok_response")
        await closing


async def test_a_policy_that_cannot_be_asked_is_no_refusal(tmp_path: Path) -> None:
    policy = Policy(ALLOW)
    policy.fails = True
    async with door(tmp_path, policy) as asked:
        assert await asked.status() == 500


@pytest.mark.parametrize(("method", "status"), [("FOO", 400), ("TRACE", 405), ("CONNECT", 405)])
async def test_methods_that_are_not_served_are_refused_and_recorded(tmp_path: Path, method: str, status: int) -> None:
    async with door(tmp_path) as asked:
        assert await asked.status(method=method) == status
        assert asked.counted["edge", "refused"] == 1


async def test_a_path_with_two_readings_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as asked:
        for path in ("/a/../b", "//x", "/a%2fb", "/a;b", "/ä", "/a b"):
            assert await asked.status(path) == 400, path


async def test_headers_that_are_no_utf_8_are_read_as_they_are(tmp_path: Path) -> None:
    async with door(tmp_path) as asked:
        assert await asked.status("/x", ("user-agent", b"\xff\xfe")) == 200
        assert await asked.status("/x", ("impersonate-user", b"\xff\xfe")) == 400
        assert await asked.status("/x", ("authorization", b"Bearer two")) == 400


async def test_a_huge_head_is_the_clients_mistake(tmp_path: Path) -> None:
    async with door(tmp_path) as asked:
        assert await asked.status("/" + "x" * 30_000) == 200
        assert await asked.status("/" + "x" * 66_000) == 431
        assert (await asked.ask("/" + "x" * 200_000)).status == 8


async def test_the_event_has_the_users_request_and_the_clients_address(tmp_path: Path) -> None:
    async with door(tmp_path) as asked:
        await asked.ask("/recorded?q=1", ("user-agent", b"kubectl"))
        await asked.site.worker.app.auditor.flush()
        (event,) = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert (event["requestURI"], event["user"]["username"]) == ("/recorded?q=1", "alice")
    assert (event["sourceIPs"], event["userAgent"]) == (["192.0.2.7"], "kubectl")
    assert event["responseStatus"]["code"] == 200


async def test_a_reload_is_in_force_on_a_connection_that_stays(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with door(tmp_path, policy) as asked:
        for _ in range(4):
            assert await asked.status() == 200
        config = asked.site.worker.app.config
        fewer = tuple(each for each in config.doors if each.name != "edge")
        await asked.site.worker.reload(replace(config, doors=fewer))
        assert await asked.status() == 503
        await asked.site.worker.reload(config)
        assert await asked.status() == 200
        assert not asked.client.closed
