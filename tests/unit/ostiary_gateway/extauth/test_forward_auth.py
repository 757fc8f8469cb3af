"""Questions at the doors of a real worker: who is answered, what is told, what is recorded."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import Decision, Verdict
from ostiary_gateway.authentication.callers import CALLERS_SECONDS
from tests.support.http1 import Message, get
from tests.unit.ostiary_gateway.proxy.gateways import ALLOW, DENY, Gateway, ImmediatePolicy, Policy, configured, serving

SECRET = "s3cret-0f-this-d00r"
KINDS = ("nginx", "traefik", "caddy", "envoy", "gateway-api")
UPSTREAMS = [
    {"name": "shop", "attributes": "http", "hosts": ["shop.example"]},
    {"name": "other", "attributes": "http", "hosts": ["other.example"]},
]


@asynccontextmanager
async def doors(folder: Path, policy: Policy | None = None, **sections: Any) -> AsyncIterator[Gateway]:
    (folder / "secret").write_text(SECRET)
    entries = [{"name": kind, "proxy": kind, "callers": {"tokenFile": "secret"}} for kind in KINDS]
    sections = {"upstreams": UPSTREAMS, "doors": entries, **sections}
    async with serving(configured(folder, "", policy or ImmediatePolicy(), **sections)) as site:
        yield site


def question(site: Gateway, uri: str = "/x", *lines: str, **more: str) -> bytes:
    """What nginx asks."""
    told = {
        "X-Ostiary-Door": SECRET,
        "X-Original-Method": "GET",
        "X-Original-URI": uri,
        "X-Original-Host": "shop.example",
        "X-Forwarded-For": "192.0.2.7",
        "Authorization": f"Bearer {site.token}",
    } | {name.replace("_", "-"): value for name, value in more.items()}
    path = told.pop("path", "/doors/nginx/shop")
    return get(path, *(f"{name}: {value}" for name, value in told.items() if value), *lines)


async def ask(site: Gateway, uri: str = "/x", *lines: str, **more: str) -> Message:
    return await site.client.ask(question(site, uri, *lines, **more))


def headers(message: Message) -> dict[str, str]:
    return {name.lower().decode(): value.decode() for name, value in message.headers}


async def test_an_allowing_answer_is_empty_and_holds_the_identity_and_nothing_else(tmp_path: Path) -> None:
    async with doors(tmp_path) as site:
        for _ in range(4):  # from the third on it is a remembered one
            answer = await ask(site)
            assert (answer.status, answer.body) == (200, b"")
            assert headers(answer) == {
                "x-remote-user": "alice",
                "x-remote-uid": "7",
                "x-remote-group": "dev",
                "content-length": "0",
            }


async def test_the_policy_is_asked_about_the_carried_request_at_its_upstream(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with doors(tmp_path, policy) as site:
        await ask(site, "/a/b?q=1", X_Original_Method="POST")
    asked = policy.asked[-1].request
    assert (asked.verb, asked.path, asked.upstream) == ("post", "/a/b", "shop")


@pytest.mark.parametrize(
    ("decision", "status", "told"),
    [(DENY, 403, "403"), (Decision(Verdict.DENY, "hidden", hidden=True), 403, "404")],
)
async def test_nginx_is_told_403_and_the_status_in_a_header(
    tmp_path: Path, decision: Decision, status: int, told: str
) -> None:
    async with doors(tmp_path, ImmediatePolicy(decision), authorization=HIDING) as site:
        answer = await ask(site)
        assert (answer.status, answer.body) == (status, b"")
        assert headers(answer)["x-ostiary-status"] == told
        assert json.loads(headers(answer)["x-ostiary-body"])["code"] == int(told)


HIDING = {"chain": [{"name": "all", "type": "allow_all"}], "hideDenied": True}


async def test_a_401_is_a_401_with_its_challenge_everywhere(tmp_path: Path) -> None:
    async with doors(tmp_path) as site:
        answer = await ask(site, Authorization="")
        assert (answer.status, headers(answer)["www-authenticate"]) == (401, 'Bearer realm="ostiary"')


async def test_envoy_gets_the_answer_as_it_is_and_asks_with_the_path_itself(tmp_path: Path) -> None:
    policy = ImmediatePolicy(DENY)
    async with doors(tmp_path, policy, upstreams=[{"name": "shop", "attributes": "http"}]) as site:
        lines = (f"Authorization: Bearer {site.token}", f"X-Ostiary-Door: {SECRET}", "X-Original-Address: 192.0.2.7")
        asked = get("/doors/envoy/shop/a/b?q=1", *lines, method="DELETE")
        answer = await site.client.ask(asked, "DELETE")
    assert (answer.status, json.loads(answer.body)["reason"]) == (403, "Forbidden")
    assert (policy.asked[-1].request.verb, policy.asked[-1].request.path) == ("delete", "/a/b")


async def test_whatever_is_no_question_of_the_proxy_gets_the_same_503_and_is_told_the_operator(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests, caplog: pytest.LogCaptureFixture
) -> None:
    cases: list[dict[str, str]] = [
        {"X_Ostiary_Door": ""},
        {"X_Ostiary_Door": "wrong"},
        {"path": "/doors/unknown/shop"},
        {"path": "/doors/nginx/unknown"},
        {"path": "/doors/nginx"},
        {"path": "/doors/"},
        {"X_Original_URI": ""},
        {"X_Forwarded_For": "rubbish"},
    ]
    for change in cases:
        with subtests.test(change=change):
            tmp_path = tmp_path_factory.mktemp("case")
            caplog.clear()
            policy = ImmediatePolicy()
            async with doors(tmp_path, policy) as site:
                with caplog.at_level(logging.WARNING, "ostiary.gateway"):
                    answer = await ask(site, **change)
                    await ask(site, **change)
                counted = site.worker.app.shared.metrics.door_questions.values
            assert answer.status == 503
            assert json.loads(answer.body)["message"] == "the permission cannot be asked for here"
            assert policy.asked == []
            (record,) = [record for record in caplog.records if record.message == "a door was asked in vain"]
            assert SECRET not in str(record.__dict__)
            assert sum(counted.values()) == 2
            assert ("nginx", "asked") not in counted


async def test_a_host_of_another_upstream_has_no_route_though_the_proxy_would_forward_it(tmp_path: Path) -> None:
    async with doors(tmp_path) as site:
        answer = await ask(site, X_Original_Host="other.example")
        assert headers(answer)["x-ostiary-status"] == "404"
        assert (await ask(site, X_Original_Host="other.example", path="/doors/nginx/other")).status == 200


async def test_a_changed_secret_shuts_out_a_remembered_question(tmp_path: Path) -> None:
    async with doors(tmp_path) as site:
        for _ in range(4):
            assert (await ask(site)).status == 200
        (tmp_path / "secret").write_text("another")
        site.clock.advance(seconds=CALLERS_SECONDS)
        assert (await ask(site)).status == 503


async def test_a_refusal_of_a_remembered_question_is_noticed_at_once(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with doors(tmp_path, policy) as site:
        for _ in range(4):
            assert (await ask(site)).status == 200
        policy.rule = DENY
        policy.revision += 1
        site.clock.advance(seconds=1)
        assert (await ask(site)).status == 403


async def test_a_decision_that_must_be_waited_for_is_the_same(tmp_path: Path) -> None:
    async with doors(tmp_path, Policy(ALLOW)) as site:
        assert (await ask(site)).status == 200
        assert (await ask(site, "/y")).status == 200


async def test_a_policy_that_cannot_be_asked_is_no_refusal(tmp_path: Path) -> None:
    policy = Policy(ALLOW)
    policy.fails = True
    async with doors(tmp_path, policy) as site:
        answer = await ask(site)
        assert (answer.status, headers(answer)["x-ostiary-status"]) == (403, "500")


@pytest.mark.parametrize(("method", "status"), [("FOO", "400"), ("TRACE", "405"), ("CONNECT", "405")])
async def test_methods_that_are_not_served_are_refused(tmp_path: Path, method: str, status: str) -> None:
    async with doors(tmp_path) as site:
        answer = await ask(site, X_Original_Method=method)
        assert (answer.status, headers(answer)["x-ostiary-status"]) == (403, status)
        assert headers(answer)["audit-id"]


async def test_a_path_with_two_readings_is_refused(tmp_path: Path) -> None:
    async with doors(tmp_path) as site:
        for uri in ("/a/../b", "//x", "/a%2fb", "/a;b"):
            assert headers(await ask(site, uri))["x-ostiary-status"] == "400"


async def test_the_event_has_the_users_request_and_the_clients_address(tmp_path: Path) -> None:
    async with doors(tmp_path) as site:
        await ask(site, "/recorded?q=1", "User-Agent: kubectl")
        await site.worker.app.auditor.flush()
        (event,) = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert (event["requestURI"], event["user"]["username"]) == ("/recorded?q=1", "alice")
    assert (event["sourceIPs"], event["userAgent"]) == (["192.0.2.7"], "kubectl")
    assert event["responseStatus"]["code"] == 200


async def test_what_is_not_below_doors_goes_its_usual_way(tmp_path: Path) -> None:
    async with doors(tmp_path) as site:
        assert (await site.ask("/doorsteps")).status == 404
        assert (await site.ask("/x")).status == 404, "no upstream has a server"
