"""A target that differs from an earlier one only in a name or a number is not read again, and goes the same way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ostiary.model import Attributes, Decision, Verdict
from ostiary_gateway.proxy import plan_templates as alike_targets
from ostiary_gateway.proxy.plan_templates import AlikeTarget, AlikeTargets
from tests.support.http1 import Upstream, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    ALLOW,
    Gateway,
    ImmediatePolicy,
    NamelessPolicy,
    at,
    configured,
    kubernetes,
    serving,
)

PODS = "/api/v1/namespaces/shop/pods"


@asynccontextmanager
async def site(
    folder: Path, policy: ImmediatePolicy | None = None, **sections: Any
) -> AsyncIterator[tuple[Gateway, Upstream]]:
    async with upstream() as made:
        sections = {"upstreams": kubernetes(at(made)), **sections}
        async with serving(configured(folder, at(made), policy or NamelessPolicy(), **sections)) as gateway:
            yield gateway, made


def remembered(gateway: Gateway) -> AlikeTargets:
    return gateway.worker.app.engine._object_plans._alike


def shapes(gateway: Gateway) -> dict[bytes, AlikeTarget | None]:
    return {shape: alike for (_, shape), alike in remembered(gateway)._kept.items()}


async def ask_all(gateway: Gateway, *targets: str) -> list[int]:
    return [(await gateway.ask(target)).status for target in targets]


async def test_names_and_numbers_are_left_out_of_what_is_remembered(tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, made):
        targets = [f"{PODS}/web-{number}" for number in range(5)]
        targets += [f"{PODS}?limit=500&resourceVersion={number}" for number in range(5)]
        targets += [f"{PODS}/web-1?timeoutSeconds={number}" for number in range(5)]
        assert await ask_all(gateway, *targets) == [200] * 15
        kept = shapes(gateway)
        assert list(kept) == [
            PODS.encode(),
            f"{PODS}?limit=#&resourceVersion=#".encode(),
            f"{PODS}/web-1?timeoutSeconds=#".encode(),
        ]
        assert None not in kept.values()
        assert [request.target.decode() for request in made.requests] == targets
        events = await gateway.events()
        assert [event["requestURI"] for event in events] == targets
        assert [event["objectRef"].get("name") for event in events] == [
            *(f"web-{number}" for number in range(5)),
            *([None] * 5),
            *(["web-1"] * 5),
        ]


async def test_an_upstream_among_the_names_keeps_its_path(tmp_path: Path) -> None:
    async with upstream() as special:
        async with upstream() as made:
            upstreams = [
                *kubernetes(at(made)),
                {"name": "own", "server": at(special), "prefix": f"{PODS}/web-3", "attributes": "http"},
            ]
            config = configured(tmp_path, at(made), NamelessPolicy(), upstreams=upstreams)
            async with serving(config) as gateway:
                assert await ask_all(gateway, *(f"{PODS}/web-{number}" for number in range(6))) == [200] * 6
                assert shapes(gateway) == {PODS.encode(): None}
        assert len(made.requests) == 5
        assert [request.target for request in special.requests] == [f"{PODS}/web-3".encode()]


@pytest.mark.parametrize("parameter", ["labelSelector", "unknown"])
async def test_a_number_that_may_matter_is_read_each_time(tmp_path: Path, parameter: str) -> None:
    def rule(asked: Attributes) -> Decision:
        selected = [requirement.key for requirement in asked.request.label_selector or ()]
        return Decision(Verdict.DENY, "no") if "6" in selected else ALLOW

    async with site(tmp_path, NamelessPolicy(rule)) as (gateway, _):
        targets = [f"{PODS}?{parameter}={value}&limit={limit}" for limit, value in enumerate((5, 5, 5, 6, 7))]
        status = 403 if parameter == "labelSelector" else 200
        assert await ask_all(gateway, *targets) == [200, 200, 200, status, 200]
        assert shapes(gateway) == {f"{PODS}?{parameter}=#&limit=#".encode(): None}


async def test_what_is_no_usual_name_or_number_is_never_like_another(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        *(f"{PODS}/Web", f"{PODS}/-web", f"{PODS}/web-", f"{PODS}/w%20b", f"{PODS}/{'x' * 254}", f"{PODS}/a:b"),
        *(f"{PODS}?limit={'9' * 19}", f"{PODS}?limit=5x", f"{PODS}?limit=", f"{PODS}/web/log", "/version"),
    ]
    for target in cases:
        with subtests.test(target=target):
            tmp_path = tmp_path_factory.mktemp("case")
            async with site(tmp_path) as (gateway, made):
                assert (
                    await ask_all(gateway, f"{PODS}/web-1", f"{PODS}/web-2", f"{PODS}?limit=1", f"{PODS}?limit=2")
                    == [200] * 4
                )
                before = shapes(gateway)
                assert await ask_all(gateway, target, target) == [200, 200]
                assert {shape for shape, alike in shapes(gateway).items() if alike is not None} == set(before)
                assert [request.target.decode() for request in made.requests[4:]] == [target] * 2


async def test_a_host_has_targets_of_its_own(tmp_path: Path) -> None:
    async with upstream() as other, upstream() as made:
        upstreams = [
            *kubernetes(at(made)),
            {**kubernetes(at(other))[0], "name": "other", "hosts": ["other.test"]},
        ]
        async with serving(configured(tmp_path, at(made), NamelessPolicy(), upstreams=upstreams)) as gateway:
            for number in range(4):
                assert (await gateway.ask(f"{PODS}/web-{number}")).status == 200
                request = gateway.request(f"{PODS}/web-{number}").replace(b"gateway.test", b"other.test")
                assert (await gateway.client.ask(request)).status == 200
        assert len(made.requests) == len(other.requests) == 4


async def test_they_are_bounded_for_each_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike_targets, "ALIKE_BYTES_PER_USER", 8_000)
    async with site(tmp_path) as (gateway, _):
        for number in range(40):
            assert (
                await ask_all(gateway, *(f"/api/v1/namespaces/n{number}/pods/web-{each}" for each in (1, 2)))
                == [200] * 2
            )
        assert 1 <= len(remembered(gateway)) < 20


async def test_they_are_forgotten_with_the_plans(tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, _):
        assert await ask_all(gateway, f"{PODS}/web-1", f"{PODS}/web-2") == [200] * 2
        gateway.worker.app.engine.forget_plans()
        assert len(remembered(gateway)) == 0
