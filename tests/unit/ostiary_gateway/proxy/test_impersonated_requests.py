"""``kubectl --as`` on its way through the gateway: who must be allowed what, and what the upstream is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ostiary.model import Attributes, Decision
from tests.support.http1 import connected, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    ALLOW,
    DENY,
    ImmediatePolicy,
    Policy,
    at,
    configured,
    cut,
    endless,
    is_cut,
    kubernetes,
    opened,
    serving,
)

AS_BOB = (
    "Impersonate-User: bob",
    "Impersonate-Uid: 9",
    "Impersonate-Group: ops",
    "Impersonate-Extra-Scopes: view",
)
PERMISSIONS = [
    ("alice", "impersonate", "users", "bob"),
    ("alice", "impersonate", "groups", "ops"),
    ("alice", "impersonate", "uids", "9"),
    ("alice", "impersonate", "userextras", "view"),
]


def summary(attributes: Attributes) -> tuple[str, str, str, str]:
    request = attributes.request
    return attributes.user.username, request.verb, request.resource or request.path, request.name


async def test_every_part_of_the_other_identity_is_asked_about_and_then_the_request_itself(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        assert (await site.ask("/x", *AS_BOB)).status == 200
        assert [summary(asked) for asked in policy.asked] == [*PERMISSIONS, ("bob", "get", "/x", "")]
        assert {asked.upstream for asked in policy.asked} == {"api"}
        bob = policy.asked[-1].user
        assert (bob.uid, bob.extra) == ("9", (("scopes", ("view",)),))
        assert set(bob.groups) == {"ops", "system:authenticated"}


async def test_the_upstream_hears_of_the_other_and_never_of_the_clients_own_headers(tmp_path: Path) -> None:
    async with upstream() as made:
        (tmp_path / "token").write_text("gateway-token")
        upstreams = [{**kubernetes(at(made))[0], "identity": "impersonation", "tokenFile": "token"}]
        async with serving(configured(tmp_path, at(made), upstreams=upstreams)) as site:
            assert (await site.ask("/api", *AS_BOB)).status == 200
            (request,) = made.requests
            assert request.all("Impersonate-User") == [b"bob"]
            assert b"ops" in request.all("Impersonate-Group")
            assert request.all("Impersonate-Uid") == [b"9"]
            assert request.all("Authorization") == [b"Bearer gateway-token"]


@pytest.mark.parametrize("missing", [permission[2] for permission in PERMISSIONS])
async def test_one_part_that_is_not_allowed_refuses_the_whole_and_names_that_part(tmp_path: Path, missing: str) -> None:
    def rule(attributes: Attributes) -> Decision:
        return replace(DENY, hidden=True) if attributes.request.resource == missing else ALLOW

    policy = Policy(rule)
    async with upstream() as made:
        config = configured(tmp_path, at(made), policy)
        config = replace(config, authorization=replace(config.authorization, hide_denied=True))
        async with serving(config) as site:
            answer = await site.ask("/x", *AS_BOB)
            assert answer.status == 403, "never hidden: it names nothing but what the user wrote"
            assert b'User \\"alice\\" cannot impersonate resource \\"' + missing.encode() in answer.body
            assert ("bob", "get", "/x", "") not in [summary(asked) for asked in policy.asked]
            (event,) = await site.events()
            assert (event["user"]["username"], event["verb"]) == ("alice", "impersonate")
            assert "impersonatedUser" not in event
            audit_id = (answer.one("Audit-Id") or b"").decode()
            refusal = site.worker.app.authorizer.recall(audit_id)
            assert refusal is not None
            assert (refusal.attributes.user.username, refusal.attributes.request.resource) == ("alice", missing)
            assert site.seats == 0
        assert made.requests == []


async def test_who_may_be_the_other_may_still_not_do_what_the_other_may_not(tmp_path: Path) -> None:
    policy = Policy(lambda attributes: DENY if attributes.user.username == "bob" else ALLOW)
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        answer = await site.ask("/x", "Impersonate-User: bob")
        assert answer.status == 403
        assert b'User \\"bob\\" cannot get path' in answer.body
        (event,) = await site.events()
        assert event["user"]["username"] == "alice"
        assert event["impersonatedUser"]["username"] == "bob"
        assert made.requests == []


async def test_the_record_names_both(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made), Policy())) as site:
        assert (await site.ask("/x", "Impersonate-User: bob")).status == 200
        assert (await site.ask("/x", "Impersonate-User: alice", "Impersonate-Group: ops")).status == 200
        assert (await site.ask("/x")).status == 200
        first, second, third = await site.events()
        assert (first["user"]["username"], first["impersonatedUser"]["username"]) == ("alice", "bob")
        assert second["impersonatedUser"]["groups"][0] == "ops"
        assert "impersonatedUser" not in third


async def test_a_request_for_another_is_never_taken_for_one_of_ones_own(tmp_path: Path) -> None:
    """Neither what is remembered by the request line nor by the bytes of the head is used across the two."""
    policy = ImmediatePolicy(lambda attributes: DENY if attributes.user.username == "bob" else ALLOW)
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        for _ in range(3):
            assert (await site.ask("/x")).status == 200
            assert (await site.ask("/x", "Impersonate-User: bob")).status == 403
        assert len(made.requests) == 3


async def test_when_nobody_can_say_whether_one_may_be_the_other_the_request_fails(tmp_path: Path) -> None:
    policy = Policy()
    policy.fails = True
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        answer = await site.ask("/x", "Impersonate-User: bob")
        assert answer.status == 500
        (event,) = await site.events()
        assert (event["user"]["username"], event["verb"]) == ("alice", "get")
        assert made.requests == []


@pytest.mark.parametrize("header", [b"Impersonate-User: \xff", b"Impersonate-Nobody: x"])
async def test_headers_that_name_nobody_are_a_bad_request(tmp_path: Path, header: bytes) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made), Policy())) as site:
        data = site.request("/x", "X: y").replace(b"X: y", header)
        assert (await site.client.ask(data)).status == 400
        assert made.requests == []


async def test_a_client_that_hangs_up_while_it_is_decided_leaves_nothing_behind(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        policy.gate.clear()
        async with connected(site.port) as client:
            client.send(site.request("/x", "Impersonate-User: bob"))
            await policy.reached.wait()
        policy.gate.set()
        assert (await site.ask()).status == 200
        assert len(made.requests) == 1
        assert site.seats == 0


@pytest.mark.parametrize("lost", ["the right to be the other", "the other's right"])
async def test_a_stream_in_the_name_of_another_ends_when_either_right_is_withdrawn(tmp_path: Path, lost: str) -> None:
    policy = ImmediatePolicy()
    loser = "alice" if lost == "the right to be the other" else "bob"
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), policy)
        async with serving(config) as site, opened(site, "/x", "Impersonate-User: bob") as client:
            await site.tick(25)
            assert not is_cut(client)
            policy.rule = lambda attributes: DENY if attributes.user.username == loser else ALLOW
            policy.revision += 1
            await site.tick(1)
            await cut(client)
