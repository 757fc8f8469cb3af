"""What was planned for one object is used for another where names do not matter, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ostiary.model import Decision, RequestInfo, Requirement, UserInfo, Verdict
from ostiary_gateway.audit.auditor import Auditor
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.proxy import plan_templates as object_plans
from ostiary_gateway.proxy.context import GroupRoute
from ostiary_gateway.proxy.plan_templates import MOST_TARGETS, OBJECT_PLAN_BYTES_PER_USER, named
from ostiary_gateway.proxy.upstreams import Upstream as Place
from ostiary_gateway.wire.audit_policy import AuditLevel, AuditRule, GroupResources, Policy, Stage
from tests.support.http1 import Upstream, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    ALLOW,
    Gateway,
    ImmediatePolicy,
    NamelessPolicy,
    another_token,
    at,
    configured,
    kubernetes,
    serving,
)

PODS = "/api/v1/namespaces/shop/pods"


@asynccontextmanager
async def site(folder: Path, policy: ImmediatePolicy, **sections: Any) -> AsyncIterator[tuple[Gateway, Upstream]]:
    async with upstream() as made:
        config = configured(folder, at(made), policy, **{"upstreams": kubernetes(at(made)), **sections})
        async with serving(config) as gateway:
            yield gateway, made


def names(policy: ImmediatePolicy) -> list[str]:
    return [attributes.request.name for attributes in policy.asked]


async def test_an_object_of_a_known_kind_needs_no_decision(tmp_path: Path) -> None:
    policy = NamelessPolicy()
    async with site(tmp_path, policy) as (gateway, made):
        for number in range(5):
            assert (await gateway.ask(f"{PODS}/web-{number}")).status == 200
        assert names(policy) == ["web-0"]
        assert [request.target for request in made.requests] == [f"{PODS}/web-{number}".encode() for number in range(5)]
        events = await gateway.events()
        assert [event["objectRef"]["name"] for event in events] == [f"web-{number}" for number in range(5)]
        assert [event["requestURI"] for event in events] == [f"{PODS}/web-{number}" for number in range(5)]


async def test_so_does_a_list_with_another_version(tmp_path: Path) -> None:
    policy = NamelessPolicy()
    async with site(tmp_path, policy) as (gateway, made):
        for number in range(5):
            assert (await gateway.ask(f"{PODS}?limit=500&resourceVersion={number}")).status == 200
        assert len(policy.asked) == 1
        assert made.requests[4].target == f"{PODS}?limit=500&resourceVersion=4".encode()
        assert (await gateway.ask(f"{PODS}/web-1?limit=500&resourceVersion=4")).status == 200
        assert names(policy) == ["", "web-1"], "one object is something else than all of them"


async def test_who_cannot_tell_is_asked_about_each_name(tmp_path: Path) -> None:
    policy = ImmediatePolicy(lambda asked: ALLOW if asked.request.name != "web-2" else Decision(Verdict.DENY, "no"))
    async with site(tmp_path, policy) as (gateway, _):
        assert [(await gateway.ask(f"{PODS}/web-{number}")).status for number in range(4)] == [200, 200, 403, 200]
        assert names(policy) == ["web-0", "web-1", "web-2", "web-3"]


async def test_names_that_come_to_matter_are_asked_about(tmp_path: Path) -> None:
    policy = NamelessPolicy()
    async with site(tmp_path, policy) as (gateway, _):
        assert (await gateway.ask(f"{PODS}/web-0")).status == 200
        policy.matters, policy.revision = True, 2
        policy.rule = lambda asked: ALLOW if asked.request.name == "web-0" else Decision(Verdict.DENY, "no")
        gateway.clock.advance(0.1)
        assert (await gateway.ask(f"{PODS}/web-1")).status == 403
        assert (await gateway.ask(f"{PODS}/web-0")).status == 200


async def test_also_if_the_first_of_them_is_still_allowed(tmp_path: Path) -> None:
    """Its own plan is renewed then, which says nothing about the others."""
    policy = NamelessPolicy()
    async with site(tmp_path, policy) as (gateway, made):
        assert (await gateway.ask(f"{PODS}/web-0")).status == 200
        policy.matters, policy.revision = True, 2
        policy.rule = lambda asked: ALLOW if asked.request.name == "web-0" else Decision(Verdict.DENY, "no")
        gateway.clock.advance(0.1)
        assert (await gateway.ask(f"{PODS}/web-0")).status == 200
        assert (await gateway.ask(f"{PODS}/web-1")).status == 403
        assert [request.target for request in made.requests] == [f"{PODS}/web-0".encode()] * 2


async def test_also_if_only_the_time_of_the_first_is_up(tmp_path: Path) -> None:
    """A provider need not tell that its policy has changed."""
    policy = NamelessPolicy()
    async with site(tmp_path, policy) as (gateway, _):
        assert (await gateway.ask(f"{PODS}/web-0")).status == 200
        policy.matters = True
        policy.rule = lambda asked: ALLOW if asked.request.name == "web-0" else Decision(Verdict.DENY, "no")
        gateway.clock.advance(gateway.worker.app.authorizer.cache_seconds + 0.1)
        assert (await gateway.ask(f"{PODS}/web-0")).status == 200
        assert (await gateway.ask(f"{PODS}/web-1")).status == 403


async def test_a_decision_for_all_names_lives_no_longer_than_another(tmp_path: Path) -> None:
    policy = NamelessPolicy()
    async with site(tmp_path, policy) as (gateway, _):
        await gateway.ask(f"{PODS}/web-0")
        policy.rule = Decision(Verdict.DENY, "no")
        gateway.clock.advance(gateway.worker.app.authorizer.cache_seconds - 0.1)
        assert (await gateway.ask(f"{PODS}/web-1")).status == 200
        gateway.clock.advance(0.1)
        assert (await gateway.ask(f"{PODS}/web-2")).status == 403


async def test_a_plan_whose_time_is_up_is_confirmed_and_not_made_anew(tmp_path: Path) -> None:
    """Plans that were made together end together: to make them all anew would hold up everybody."""
    policy = NamelessPolicy()
    async with site(tmp_path, policy) as (gateway, _):
        assert (await gateway.ask(f"{PODS}/web-0")).status == 200
        plans = gateway.worker.app.engine._object_plans
        (with_gaps,) = plans._kept.values()
        for number in range(1, 4):
            gateway.clock.advance(61)
            assert (await gateway.ask(f"{PODS}/web-{number}")).status == 200
        assert list(plans._kept.values()) == [with_gaps]
        assert names(policy) == ["web-0"] * 4, "what is asked again is the question of the plan"


async def test_a_plan_is_not_confirmed_for_all_names_once_they_matter(tmp_path: Path) -> None:
    policy = NamelessPolicy()
    async with site(tmp_path, policy) as (gateway, made):
        assert (await gateway.ask(f"{PODS}/web-0")).status == 200
        # The question of the plan has the same answer as before.
        policy.matters = True
        policy.rule = lambda asked: ALLOW if asked.request.name == "web-0" else Decision(Verdict.DENY, "no")
        gateway.clock.advance(61)
        assert [(await gateway.ask(f"{PODS}/web-{number}")).status for number in (1, 1, 2)] == [403] * 3
        assert len(made.requests) == 1
        assert len(gateway.worker.app.engine._object_plans) == 0


async def test_another_user_is_decided_on_alone(tmp_path: Path) -> None:
    policy = NamelessPolicy(lambda asked: ALLOW if asked.user.username == "alice" else Decision(Verdict.DENY, "no"))
    async with site(tmp_path, policy) as (gateway, _):
        await gateway.ask(f"{PODS}/web-0")
        bob = await another_token(gateway, UserInfo("bob"))
        answer = await gateway.client.ask(
            gateway.request(f"{PODS}/web-1").replace(gateway.token.encode(), bob.encode())
        )
        assert answer.status == 403


class Files:
    """A mapper of an API that is not Kubernetes, whose objects are files."""

    def request_info(self, line: RequestLine) -> RequestInfo:
        name = line.path.removeprefix("/files/")
        return RequestInfo("get", line.method, line.path, is_resource=True, resource="files", name=name)

    def long_running(self, info: RequestInfo) -> bool:
        return False

    def split_name(self, path: str, query: str) -> tuple[str, str, str]:
        return "/files/", path.removeprefix("/files/"), query


async def test_where_a_path_may_be_public_names_matter(tmp_path: Path) -> None:
    async with upstream() as made:
        entry = {"name": "f", "server": at(made), "identity": "none", "attributes": "http"}
        for public in ((), ("/files/logo",)):
            policy = NamelessPolicy()
            config = configured(tmp_path, at(made), policy, upstreams=[{**entry, "public": list(public)}])
            (settings,) = config.upstreams
            mapper = replace(settings.attributes, instance=Files())
            config = replace(config, upstreams=(replace(settings, attributes=mapper),))
            async with serving(config) as gateway:
                for name in ("a", "b", "logo"):
                    assert (await gateway.ask(f"/files/{name}")).status == 200
                assert names(policy) == (["a", "b"] if public else ["a"])


class GroupsElsewhere:
    """All paths of an API group go to another upstream."""

    def __init__(self, group: str, place: Place) -> None:
        self._group, self._route = group, GroupRoute(place)

    def __bool__(self) -> bool:
        return True

    def find(self, upstream: Place, method: str, path: str) -> GroupRoute | None:
        return self._route if path.startswith(f"/apis/{self._group}/") else None


async def test_what_goes_to_an_api_plugin_is_planned_for_each_object(tmp_path: Path) -> None:
    policy = NamelessPolicy()
    async with site(tmp_path, policy) as (gateway, made), upstream() as plugin:
        (settings,) = configured(tmp_path, at(plugin), upstreams=kubernetes(at(plugin))).upstreams
        place = Place(settings, asyncio.get_running_loop(), gateway.clock)
        engine = gateway.worker.app.engine
        engine._questions._api_groups = GroupsElsewhere("builds.example.com", place)
        for path in ("/apis/builds.example.com/v1/namespaces/shop/builds", PODS):
            for number in range(3):
                assert (await gateway.ask(f"{path}/web-{number}")).status == 200
        assert names(policy) == ["web-0", "web-1", "web-2", "web-0"]
        assert (len(plugin.requests), len(made.requests)) == (3, 3)
        place.pool.close()


async def test_a_refusal_is_for_one_name(tmp_path: Path) -> None:
    policy = NamelessPolicy(Decision(Verdict.DENY, "no"))
    async with site(tmp_path, policy) as (gateway, _):
        for number in range(3):
            answer = await gateway.ask(f"{PODS}/web-{number}")
            assert f'pods \\"web-{number}\\" is forbidden'.encode() in answer.body


async def test_an_audit_policy_with_names_is_asked_about_each(tmp_path: Path, monkeypatch: Any) -> None:
    quiet = AuditRule(AuditLevel.NONE, resources=(GroupResources("", ("pods",), frozenset({"web-1"})),))
    async with site(tmp_path, NamelessPolicy()) as (gateway, _):
        policy = Policy((quiet, AuditRule(AuditLevel.METADATA)), frozenset({Stage.RECEIVED}))
        monkeypatch.setattr(gateway.worker.app.auditor, "policy", policy)
        for number in (1, 0, 2, 1):
            await gateway.ask(f"{PODS}/web-{number}")
        assert [event["objectRef"]["name"] for event in await gateway.events()] == ["web-0", "web-2"]


async def test_a_secret_in_the_line_is_in_no_event(tmp_path: Path) -> None:
    async with site(tmp_path, NamelessPolicy()) as (gateway, _):
        for number in range(3):
            await gateway.ask(f"{PODS}/web-{number}?token=canary&limit={number}")
        uris = [event["requestURI"] for event in await gateway.events()]
        assert uris == [f"{PODS}/web-{number}?token=REDACTED&limit={number}" for number in range(3)]


async def test_one_that_comes_again_has_a_plan_of_its_own(tmp_path: Path) -> None:
    async with site(tmp_path, NamelessPolicy()) as (gateway, _):
        plans = gateway.worker.app.engine._plans
        for number in range(MOST_TARGETS + 10):
            await gateway.ask(f"{PODS}/web-{number}")
        assert len(plans) == 1, "those that came once have none"
        for _ in range(3):
            await gateway.ask(f"{PODS}/web-{MOST_TARGETS + 9}")
        assert len(plans) == 2
        assert len(gateway.worker._http.known) == 1


async def test_one_user_evicts_only_their_own(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(object_plans, "OBJECT_PLAN_BYTES", 200_000)
    monkeypatch.setattr(object_plans, "OBJECT_PLAN_BYTES_PER_USER", 100_000)
    async with site(tmp_path, NamelessPolicy()) as (gateway, _):
        await gateway.ask(f"{PODS}/web-0")
        mallory = (await another_token(gateway, UserInfo("mallory"))).encode()
        for number in range(60):
            request = gateway.request(f"/api/v1/namespaces/n{number}/pods/web-0")
            await gateway.client.ask(request.replace(gateway.token.encode(), mallory))
        kept = gateway.worker.app.engine._object_plans._kept
        owners = [key[0].info.username for key in kept]
        assert owners.count("alice") == 1
        assert 0 < owners.count("mallory") < 60
        assert kept.held <= 200_000 < OBJECT_PLAN_BYTES_PER_USER


def test_another_name_changes_nothing_else() -> None:
    values = {field.name: f"some {field.name}" for field in fields(RequestInfo)}
    requirement = (Requirement("a", "In", ("b",)),)
    info = RequestInfo(**{**values, "field_selector": requirement, "label_selector": requirement})  # type: ignore[arg-type]
    assert named(info, "other", "/other") == replace(info, name="other", path="/other")


def test_a_line_with_a_gap_is_the_line_without_it() -> None:
    user = UserInfo('"objectRef":{', groups=('","name":"web-1",', "é"), extra=(("objectRef", ('{"name":"web-1"}',)),))
    info = RequestInfo("get", "GET", f"{PODS}/web-1", is_resource=True, resource="pods", namespace="name", name="web-1")
    auditor = Auditor(Policy((AuditRule(AuditLevel.METADATA),)), ())
    prepared = auditor.prepare(info, user, request_uri=f"{PODS}/web-1")
    assert prepared is not None
    gaps = prepared.for_objects(f"{PODS}/web-1", "web-1")
    assert gaps is not None
    other = auditor.prepare(replace(info, name="db-7"), user, request_uri=f"{PODS}/db-7")
    assert other is not None
    assert gaps.of(f"{PODS}/db-7", "db-7")._about == other._about
