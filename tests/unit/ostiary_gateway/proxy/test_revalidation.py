"""A right that is withdrawn while a request waits: in the queue for a seat, or for the rest of its own body."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.limits.settings import LimitSettings
from tests.support.http1 import Client, Upstream, Upstreamed, connected, turn, until, upstream
from tests.unit.ostiary_gateway.proxy.test_engine import at, configured
from tests.unit.ostiary_gateway.proxy.test_reauthorize_streams import Judged, Remote, deciding, judged

REVOCATIONS = "/apis/ostiary.dev/v1/revocations"
TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
REVOCATION = json.dumps({"type": "user", "value": "bob"}).encode()


async def answers_when_complete(connection: Upstreamed) -> None:
    while True:
        connection.upstream.requests.append(await connection.request())
        connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")


@asynccontextmanager
async def narrow(folder: Path, remote: Remote, **more: Any) -> AsyncIterator[tuple[Judged, Upstream]]:
    """A gateway with one seat."""
    async with upstream(answers_when_complete) as made:
        config = replace(deciding(folder, at(made), remote, **more), limits=LimitSettings(concurrency=1))
        async with judged(config) as site:
            yield site, made


def begun(site: Judged, path: str, body: bytes, *, sent: int = 1) -> bytes:
    """A request with the first bytes of its body."""
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    return site.request(path, *lines).replace(b"GET ", b"POST ", 1) + body[:sent]


async def withdraw(site: Judged, remote: Remote, how: str, verb: str) -> int:
    """Returns the status that is due afterwards."""
    if how == "policy":
        remote.refused.add(("alice", verb))
        await site.after(0)
        site.clock.advance(60)
        return 403
    if how == "reload":
        refusing = Remote()
        refusing.refused.add(("alice", verb))
        chain = (replace(site.worker.app.config.authorization.chain[0], instance=refusing),)
        authorization = replace(site.worker.app.config.authorization, chain=chain)
        await site.worker.reload(replace(site.worker.app.config, authorization=authorization))
        return 403
    tokens = site.worker.app.shared.tokens
    await tokens.revoke(RevocationKind.USER, "alice", by="test")
    live = site.worker.app.shared.authenticator
    await until(lambda: not live.size)
    return 401


@pytest.mark.parametrize("how", ["policy", "reload", "token"])
async def test_a_request_that_waits_for_a_seat_is_not_sent_after_the_right_to_it_is_gone(
    tmp_path: Path, how: str
) -> None:
    remote = Remote()
    async with narrow(tmp_path, remote) as (site, made), connected(site.port) as first, connected(site.port) as second:
        first.send(begun(site, "/file", b"body"))
        limits = site.worker.app.shared.limits
        await until(lambda: limits.seats.in_flight == 1)
        second.send(site.request("/x").replace(b"GET ", b"DELETE ", 1))
        await until(lambda: limits.seats.queued == 1)
        status = await withdraw(site, remote, how, "delete")
        if how != "token":
            first.send(b"ody")
            assert (await first.answer()).status == 200
        answer = await second.answer()
        assert answer.status == status
        assert (answer.one("WWW-Authenticate") or b"").endswith(b'error="invalid_token"') == (how == "token")
        assert not [request for request in made.requests if request.start.startswith(b"DELETE")]
        await until(lambda: limits.seats.in_flight == 0 and limits.seats.queued == 0)


async def test_a_request_that_waits_for_a_seat_is_not_sent_when_nobody_can_decide_any_more(
    tmp_path: Path,
) -> None:
    remote = Remote()
    async with narrow(tmp_path, remote) as (site, made), connected(site.port) as first, connected(site.port) as second:
        first.send(begun(site, "/file", b"body"))
        limits = site.worker.app.shared.limits
        await until(lambda: limits.seats.in_flight == 1)
        second.send(site.request("/x").replace(b"GET ", b"DELETE ", 1))
        await until(lambda: limits.seats.queued == 1)
        remote.fails = True
        site.clock.advance(60)
        first.send(b"ody")
        assert (await first.answer()).status == 200
        assert (await second.answer()).status == 500
        await until(lambda: not site.worker.app.engine.busy)
        assert [request.target for request in made.requests] == [b"/file"]


async def half_sent(site: Judged, client: Client, path: str, body: bytes) -> None:
    client.send(begun(site, path, body))
    await until(lambda: site.worker.app.shared.limits.seats.in_flight == 1)
    await turn()


@pytest.mark.parametrize("how", ["policy", "reload", "token"])
async def test_a_call_of_our_own_api_that_is_half_sent_does_nothing_after_the_right_to_it_is_gone(
    tmp_path: Path, how: str
) -> None:
    remote = Remote()
    async with narrow(tmp_path, remote) as (site, _), connected(site.port) as client:
        await half_sent(site, client, REVOCATIONS, REVOCATION)
        status = await withdraw(site, remote, how, "create")
        client.send(REVOCATION[1:])
        assert (await client.answer()).status == status
        store = site.worker.app.shared.tokens.store
        marks = (await store.revocations_after(0)).revocations
        assert "bob" not in [mark.value for mark in marks]
        assert site.worker.app.shared.limits.seats.in_flight == 0


async def test_a_call_that_nobody_can_decide_on_any_more_does_nothing_and_gives_its_seat_back(tmp_path: Path) -> None:
    remote = Remote()
    async with narrow(tmp_path, remote) as (site, _), connected(site.port) as client:
        await half_sent(site, client, REVOCATIONS, REVOCATION)
        remote.fails = True
        site.clock.advance(60)
        client.send(REVOCATION[1:])
        assert (await client.answer()).status == 500
        await until(lambda: site.worker.app.shared.limits.seats.in_flight == 0)
        await turn(20)
        marks = (await site.worker.app.shared.tokens.store.revocations_after(0)).revocations
        assert "bob" not in [mark.value for mark in marks]


async def test_a_call_of_our_own_api_that_comes_slowly_is_answered(tmp_path: Path) -> None:
    async with narrow(tmp_path, Remote()) as (site, _), connected(site.port) as client:
        await half_sent(site, client, REVOCATIONS, REVOCATION)
        client.send(REVOCATION[1:])
        assert (await client.answer()).status == 201
        assert (await client.ask(site.request(REVOCATIONS))).status == 200
        assert site.worker.app.shared.limits.seats.in_flight == 0


async def test_a_token_that_was_revoked_while_its_review_came_in_is_not_vouched_for(tmp_path: Path) -> None:
    async with upstream(answers_when_complete) as made:
        kubernetes = [{"name": "k", "server": at(made), "attributes": "kubernetes", "identity": "none"}]
        async with judged(configured(tmp_path, at(made), upstreams=kubernetes)) as site, connected(site.port) as client:
            review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": site.token}}
            body = json.dumps(review).encode()
            await half_sent(site, client, TOKEN_REVIEWS, body)
            await withdraw(site, Remote(), "token", "")
            client.send(body[1:])
            assert (await client.answer()).status == 401
            assert made.requests == []
