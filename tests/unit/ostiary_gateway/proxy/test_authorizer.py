"""After a reload the new configuration decides on what waits: whether it may, and whether it would still go there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.config.gateway_config import GatewayConfig
from tests.support.http1 import Client, Upstream, Upstreamed, connected, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import Gateway, Policy, at, configured, kubernetes, serving

ONE_SEAT = {"concurrency": 1, "concurrencyPerUser": 1}


async def held(connection: Upstreamed) -> None:
    """Answers when the body is complete."""
    while True:
        connection.upstream.requests.append(await connection.request())
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@asynccontextmanager
async def waiting(site: Gateway) -> AsyncIterator[tuple[Client, Client]]:
    """A request that has the only seat, for its body has not come, and one that waits for it."""
    async with connected(site.port) as first, connected(site.port) as second:
        first.send(site.request("/first", method="POST", body=b"12")[:-1])
        await until(lambda: site.seats == 1)
        second.send(site.request("/second"))
        seats = site.worker.app.shared.limits.seats
        await until(lambda: seats.queued == 1)
        yield first, second


def reloaded(folder: Path, made: Upstream, other: Upstream, change: str) -> GatewayConfig:
    settings: dict[str, Any] = {"name": "api", "server": at(made), "identity": "none", "attributes": "http"}
    if change == "another server":
        settings["server"] = at(other)
    elif change == "another name":
        settings["name"] = "renamed"
    elif change == "another path":
        settings["prefix"] = "/elsewhere"
    return configured(folder, at(made), Policy(), limits=ONE_SEAT, upstreams=[settings])


@pytest.mark.parametrize(
    ("change", "status"),
    [("nothing", 200), ("another name", 200), ("another server", 404), ("another path", 404)],
)
async def test_what_waited_is_sent_only_where_it_would_go_now(tmp_path: Path, change: str, status: int) -> None:
    """What has the seat is cut where the configuration no longer has it, and makes room for the other."""
    async with upstream(held) as made, upstream(held) as other:
        first_config = configured(tmp_path, at(made), Policy(), limits=ONE_SEAT)
        async with serving(first_config) as site, waiting(site) as (first, second):
            config = reloaded(tmp_path, made, other, change)
            await site.worker.reload(replace(config, store=site.worker.app.config.store))
            if status == 200:
                first.send(b"2")
                assert (await first.answer()).status == 200
            assert (await second.answer()).status == status
            await until(lambda: site.seats == 0)
        assert [request.target for request in made.requests] == ([b"/first", b"/second"] if status == 200 else [])
        assert other.requests == []


async def test_without_a_reload_what_waited_is_not_asked_about_again(tmp_path: Path) -> None:
    policy = Policy()
    async with upstream(held) as made:
        config = configured(tmp_path, at(made), policy, limits=ONE_SEAT)
        async with serving(config) as site, waiting(site) as (first, second):
            asked = len(policy.asked)
            first.send(b"2")
            assert (await first.answer()).status == 200
            assert (await second.answer()).status == 200
            assert len(policy.asked) == asked


REVOCATIONS = "/apis/ostiary.dev/v1/revocations"


@pytest.mark.parametrize("change", ["nothing", "another server"])
async def test_a_call_of_our_own_api_goes_nowhere_else_after_a_reload(tmp_path: Path, change: str) -> None:
    body = b'{"type": "user", "value": "bob"}'
    async with upstream() as made, upstream() as other:
        async with serving(configured(tmp_path, at(made), Policy())) as site, connected(site.port) as client:
            client.send(site.request(REVOCATIONS, "Content-Type: application/json", method="POST", body=body)[:-1])
            await until(lambda: site.seats == 1)
            config = configured(tmp_path, at(made if change == "nothing" else other), Policy())
            await site.worker.reload(replace(config, store=site.worker.app.config.store))
            client.send(body[-1:])
            assert (await client.answer()).status == 201
        assert (made.requests, other.requests) == ([], [])


@pytest.mark.parametrize(("attributes", "status"), [("kubernetes", 201), ("http", 404)])
async def test_a_review_that_the_gateway_would_no_longer_answer_itself_is_not_answered(
    tmp_path: Path, attributes: str, status: int
) -> None:
    body = b'{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}'
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    async with upstream() as made:
        config = configured(tmp_path, at(made), Policy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site, connected(site.port) as client:
            client.send(site.request(path, "Content-Type: application/json", method="POST", body=body)[:-1])
            await until(lambda: site.seats == 1)
            changed = [{**kubernetes(at(made))[0], "attributes": attributes}]
            config = configured(tmp_path, at(made), Policy(), upstreams=changed)
            await site.worker.reload(replace(config, store=site.worker.app.config.store))
            client.send(body[-1:])
            assert (await client.answer()).status == status
        assert made.requests == []
