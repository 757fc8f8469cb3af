"""Logins under way: any worker can finish them, once, in the browser that began; and nobody can fill the store."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import LoginRefused
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect
from ostiary_gateway.interfaces.token_store import MOST_RECORDS
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import AWAY, Gateway, Make, SaysGroups, body, cookie_of, members, sends_away


async def test_the_provider_gets_back_what_it_asked_to_remember(make: Make) -> None:
    """S29, L1, L2."""
    says = sends_away()
    gateway = make(says)
    away = await gateway.get()
    assert says.asked[-1][1].remembered == ()
    await gateway.get("/auth/provider?state=abc&code=1", cookie=cookie_of(away))
    assert says.asked[-1][1].remembered == AWAY.remember


@pytest.mark.parametrize(
    ("target", "cookie"),
    [
        ("/auth/provider?state=abc", ""),
        ("/auth/provider?state=other", None),
        ("/auth/provider", None),
        ("/auth/provider?state=abc&state=abc", None),
    ],
)
async def test_a_return_that_is_not_the_one_expected_comes_with_no_memory(
    make: Make, target: str, cookie: str | None
) -> None:
    """S30, S61, L1: the provider is asked all the same, and can tell."""
    says = sends_away(back=LoginRefused("no"))
    gateway = make(says)
    away = await gateway.get()
    await gateway.get(target, cookie=cookie_of(away) if cookie is None else cookie)
    assert says.asked[-1] == ("provider", says.asked[-1][1])
    assert says.asked[-1][1].remembered == ()


async def test_one_providers_memory_is_not_given_to_another(make: Make) -> None:
    """L1."""
    one, two = sends_away(), sends_away(back=LoginRefused("no"))
    gateway = make(one, two)
    away = await gateway.get("/auth/idp1")
    await gateway.get("/auth/idp2/provider?state=abc", cookie=cookie_of(away))
    assert two.asked[-1][1].remembered == ()


async def test_a_group_provider_has_a_memory_of_its_own(make: Make) -> None:
    """S33."""
    groups = SaysGroups(Redirect("https://g.test/?state=g", remember=(("nonce", "of groups"),)), members("developers"))
    gateway = make(sends_away(), groups=[groups])
    away = await gateway.get()
    again = await gateway.get("/auth/provider?state=abc", cookie=cookie_of(away))
    assert not groups.asked[-1][2].remembered
    told = await gateway.get("/auth/groups/provider?state=g", cookie=cookie_of(again))
    assert body(told)["groups"] == ["developers"]
    assert groups.asked[-1][2].remembered == (("nonce", "of groups"),)


@pytest.mark.parametrize("remember", [None, "text", (("a",),), ((1, 2),), {"a": "b"}])
async def test_what_cannot_be_remembered_is_the_providers_mistake(make: Make, remember: Any) -> None:
    """S26."""
    gateway = make(sends_away(Redirect("https://idp.test/", remember=remember)))
    assert (await gateway.get()).status == 500
    assert [event.kind for event in gateway.events] == [LoginEventKind.CONTRACT_BROKEN]


async def test_any_worker_finishes_a_login_and_one_of_them_does(clock: FakeClock, tmp_path: Path) -> None:
    """L1, S29."""
    stores = [SqliteTokenStore(tmp_path / "tokens.db", clock=clock) for _ in range(2)]
    workers = [Gateway([Identity("idp1", "test", sends_away())], clock, store=store) for store in stores]
    away = await workers[0].get()
    returns = [worker.get("/auth/provider?state=abc", cookie=cookie_of(away)) for worker in workers * 5]
    assert sorted(answer.status for answer in await asyncio.gather(*returns)) == [200] + [403] * 9
    for store in stores:
        await store.close()


async def test_the_store_can_read_nothing_of_a_login_under_way(clock: FakeClock, tmp_path: Path) -> None:
    """L6: not even the one who steals the file."""
    store = SqliteTokenStore(tmp_path / "tokens.db", clock=clock)
    gateway = Gateway([Identity("idp1", "test", sends_away())], clock, store=store)
    key = cookie_of(await gateway.get()).partition("=")[2]
    await store.close()
    with closing(sqlite3.connect(tmp_path / "tokens.db")) as file:
        dump = "\n".join(file.iterdump())
    assert "CREATE TABLE records" in dump
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for secret in (b"marked-verifier", key.encode(), b"verifier", b"idp1"):
        assert secret not in everything


async def test_ten_thousand_logins_that_nobody_finishes_stop_nobody(make: Make) -> None:
    """L1: bounded, and whoever comes next signs in."""
    gateway = make(sends_away())
    for number in range(MOST_RECORDS + 10):
        gateway.address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        if number == 0:
            first = await gateway.get()
        else:
            assert (await gateway.get()).status == 302
    assert len(gateway.store._records) == MOST_RECORDS  # type: ignore[attr-defined]
    assert (await gateway.get("/auth/provider?state=abc", cookie=cookie_of(first))).status == 403, "it made room"
    away = await gateway.get()
    assert (await gateway.get("/auth/provider?state=abc", cookie=cookie_of(away))).status == 200


async def test_one_address_begins_so_many_logins_a_minute(make: Make, clock: FakeClock) -> None:
    """L1, S73."""
    gateway = make(sends_away(), starts_per_minute=6)
    assert [(await gateway.get()).status for _ in range(7)] == [302] * 6 + [429]
    device = await gateway.post("/auth/device")
    assert (device.status, device.header("Retry-After")) == (429, "10")
    gateway.address = "192.0.2.2"
    assert (await gateway.get()).status == 302
    gateway.address = "192.0.2.1"
    clock.advance(10)
    assert (await gateway.get()).status == 302


def test_a_request_does_not_show_what_is_remembered() -> None:
    """L6."""
    assert "marked" not in repr(AWAY) + repr(LoginRequest("GET", "/auth", remembered=AWAY.remember))
