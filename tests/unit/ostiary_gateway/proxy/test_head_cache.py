"""Heads that differ in trace ids, or in the request line, share what is remembered of the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.http1.headers import TRACES
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.proxy.head_cache import MOST_HEADERS, CachedHeaders
from ostiary_gateway.sessions import digest
from tests.support.http1 import Upstream, get, upstream
from tests.unit.ostiary_gateway.proxy.gateways import Gateway, ImmediatePolicy, at, configured, serving


@asynccontextmanager
async def site(folder: Path, **sections: Any) -> AsyncIterator[tuple[Gateway, Upstream]]:
    async with upstream() as made, serving(configured(folder, at(made), ImmediatePolicy(), **sections)) as gateway:
        yield gateway, made


async def test_heads_that_differ_in_trace_ids_are_one(tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, made):
        for number in range(6):
            answer = await gateway.ask("/x", f"Traceparent: 00-{number}", "X-Own: y", f"X-Request-ID: {number}")
            assert answer.status == 200
        assert len(gateway.worker._http.known) == 1
        assert [request.one("Traceparent") for request in made.requests] == [b"00-%d" % number for number in range(6)]
        assert [request.one("X-Request-ID") for request in made.requests] == [b"%d" % number for number in range(6)]
        assert (await gateway.ask("/x", "X-Own: y")).status == 200
        assert made.requests[-1].one("Traceparent") is None, "another request's is not sent on"


async def test_every_trace_id_goes_on_behind_the_other_lines(tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, made):
        for name in sorted(TRACES):
            made.requests.clear()
            for _ in range(4):
                await gateway.ask("/x", f"{name.decode()}: 7", "X-Own: y")
            (order,) = {tuple(sent for sent, _ in request.headers) for request in made.requests}
            assert order.index(b"X-Own") < order.index(name)


async def test_a_trace_id_that_is_dropped_stays_dropped(tmp_path: Path) -> None:
    listen = {"address": "127.0.0.1:0", "dropHeaders": ["Traceparent"]}
    async with site(tmp_path, listen=listen) as (gateway, made):
        for lines in ((), (), (), ("Traceparent: 1",), ("X-Request-Id: 1",), ("X-Request-Id: 1", "Traceparent: 2")):
            assert (await gateway.ask("/x", *lines)).status == 200
        assert [request.one("Traceparent") for request in made.requests] == [None] * 6
        assert made.requests[-1].one("X-Request-Id") == b"1"


async def test_trace_ids_count_as_headers(tmp_path: Path) -> None:
    listen = {"address": "127.0.0.1:0", "limits": {"headers": 10}}
    # Beside these there are Host and Authorization.
    lines = [f"X-{number}: y" for number in range(7)]
    async with site(tmp_path, listen=listen) as (gateway, _):
        for target in ("/x", "/x", "/x", "/x", "/y"):
            assert (await gateway.ask(target, "Traceparent: 1", *lines)).status == 200
        for target in ("/x", "/z"):
            assert (await gateway.ask_once(target, "Traceparent: 1", *lines, "Tracestate: a=b")).status == 431


async def test_header_lines_are_known_with_another_request_line(tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, made):
        for number in range(5):
            assert (await gateway.ask(f"/x/{number}", "X-Own: y")).status == 200
        assert len(gateway.worker._http.heads.blocks) == 1
        assert [request.target for request in made.requests] == [b"/x/%d" % number for number in range(5)]
        assert {request.one("X-Own") for request in made.requests} == {b"y"}


async def test_so_are_those_of_many_commands_of_kubectl_in_turn(tmp_path: Path) -> None:
    """Each command has headers of its own, and each call of it a session."""
    async with site(tmp_path) as (gateway, made):
        commands = [f"Kubectl-Command: kubectl {number}" for number in range(MOST_HEADERS)]
        for turn in range(3):
            for number, command in enumerate(commands):
                lines = (command, f"Kubectl-Session: {turn}-{number}")
                assert (await gateway.ask(f"/x/{turn}-{number}", *lines)).status == 200
        assert len(gateway.worker._http.heads.blocks) == MOST_HEADERS
        assert made.requests[-1].one("Kubectl-Session") == b"2-%d" % (MOST_HEADERS - 1)


async def test_known_header_lines_hold_no_token(tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, _):
        for number in range(4):
            await gateway.ask(f"/x/{number}", "Traceparent: 1")
        (block,) = gateway.worker._http.heads.blocks._blocks.values()
        known = block.known
        assert isinstance(known, CachedHeaders)
        assert known.scanned.authorization is None
        assert known.scanned.digest == digest(gateway.token.encode())
        assert b"Traceparent" not in known.scanned.lines


async def test_known_header_lines_of_a_revoked_token_are_refused(tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, made):
        for number in range(4):
            await gateway.ask(f"/x/{number}")
        shared = gateway.worker.app.shared
        found = await shared.tokens.find(gateway.token)
        assert found is not None
        await shared.tokens.revoke(RevocationKind.SESSION, found.session.id)
        await shared.authenticator.feed.confirm()
        assert (await gateway.ask("/x/5")).status == 401
        assert (await gateway.ask("/x/1")).status == 401
        assert len(made.requests) == 4


async def test_a_browsers_head_gets_the_same_401_whether_it_is_remembered_or_not(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    """Only a browser without a token is led from ``/`` to sign-in, so that the dropped headers do not matter."""
    for end in ["expired", "revoked"]:
        for case, times in [("new", 0), ("seen", 1), ("remembered", 4)]:
            with subtests.test(case, end=end):
                tmp_path = tmp_path_factory.mktemp("case")
                html = "Accept: text/html,*/*;q=0.8"
                async with site(tmp_path) as (gateway, _):
                    for _ in range(times):
                        assert (await gateway.ask("/", html)).status == 200
                    assert len(gateway.worker._http.known) == (1 if times == 4 else 0)
                    if end == "expired":
                        gateway.clock.advance(minutes=15)
                    else:
                        shared = gateway.worker.app.shared
                        await shared.tokens.revoke(RevocationKind.USER, "alice")
                        await shared.authenticator.feed.confirm()
                    answer = await gateway.ask("/", html)
                    assert (answer.status, answer.one("Location")) == (401, None)
                    assert answer.one("WWW-Authenticate") == b'Bearer realm="ostiary", error="invalid_token"'
                    led = await gateway.client.ask(get("/", html))
                    assert (led.status, led.one("Location")) == (303, b"/auth")


async def test_known_header_lines_lead_nobody_past_an_open_path(tmp_path: Path) -> None:
    async with site(tmp_path) as (gateway, made):
        for number in range(4):
            await gateway.ask(f"/x/{number}")
        assert (await gateway.ask("/auth/nowhere")).status == 404
        assert (await gateway.ask("/x/../y")).status == 400
        assert len(made.requests) == 4


async def test_without_shortcuts_nothing_is_remembered(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), policy := ImmediatePolicy())
        async with serving(config, shortcuts=False) as gateway:
            for _ in range(4):
                assert (await gateway.ask("/x", "Traceparent: 1")).status == 200
            http = gateway.worker._http
            assert (len(http.known), len(http.heads.blocks), len(gateway.worker.app.engine._plans)) == (0, 0, 0)
            assert len(policy.asked) == 1, "decisions are no shortcut: how long they live is configured"
