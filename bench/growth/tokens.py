"""What a token store takes with a thousand tokens and with millions: each call by itself, on SQLite and PostgreSQL.

Every figure is the lower quartile of calls, one after the other, by a store that was just opened: neighbours on the
machine and its disk only ever add. The gateway and the command ``ostiary-gateway sessions`` are asked as people ask
them.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx

from bench.growth.curve import growth_plot, growth_row, powers_of_ten
from bench.growth.filled_stores import Fill, FilledStore, has_postgresql, postgresql, sqlite
from bench.growth.population import EVERYBODY, SESSIONS_PER_USER, Population, population, team_of, user_of
from bench.pace import pace
from bench.peers import MEASURED_CORE
from bench.stores_gateways import GatewaySite, sign_in
from bench.table import Row
from ostiary.model import UserInfo
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.store_capabilities import PagesSessions
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, SessionKind, TokenStore
from ostiary_gateway.sessions import Tokens

SIZES = powers_of_ten(3, pace(7, quick=4))
FINDS, SIGN_INS, REVOCATIONS, PAGES, COMMANDS = 1000, 60, 8, 7, 5
EXPIRED = 5_000
PAGE = 100
SESSIONS_PATH = "/apis/ostiary.dev/v1/sessions"

# For each figure its values, one for each size.
Figures = dict[str, list[float]]


def run() -> Iterator[Row]:
    disk: dict[str, list[tuple[float, float]]] = {}
    for name, kind in (("SQLite", sqlite), ("PostgreSQL 15", postgresql)):
        if kind is postgresql and not has_postgresql():
            yield Row(f"{name} with many tokens", "not measured: postgresql-15 is not installed")
            continue
        with tempfile.TemporaryDirectory() as folder, kind() as fill:
            figures = measure(fill, Path(folder))
        for what, unit, at_most in FIGURES:
            yield growth_row(f"{name}: {what}; tokens", SIZES, figures[what], unit, at_most=at_most)
        disk[name] = list(zip(SIZES, figures[DISK], strict=True))
        _draw(name, figures)
    growth_plot("growth-tokens-disk", "On the disk", "tokens", "bytes a token", disk)


def _draw(name: str, figures: Figures) -> None:
    scales = {"us": 1e-3, "ms": 1.0}
    lines = {
        what: [(size, value * scales[unit]) for size, value in zip(SIZES, figures[what], strict=True)]
        for what, unit, _ in FIGURES
        if what in DRAWN
    }
    plot = f"growth-tokens-{name.split()[0].lower()}"
    growth_plot(plot, f"{name}: time of a call", "tokens in the store", "ms", lines, log_y=True)


# What is measured, in which unit, and how many times the smallest size's figure the largest size's may be.
FIND, SIGN_IN, REVOKE = "finding one that is not in memory", "a sign-in", "revoking a user"
FIRST_PAGE, MIDDLE_PAGE = f"{PAGE} sessions, the newest", f"{PAGE} sessions, from the middle on"
OF_USER, OF_TEAM, OF_ALL = "the sessions of a user", "those of a group of 100", f"{PAGE} of a group that all are in"
OF_KIND = f"up to {PAGE} sessions of API tokens, one in a thousand"
SWEEP, HELD_UP = "sweeping 1,000 that expired", "the slowest sign-in during a sweep"
API, COMMAND, DISK = "GET sessions at the gateway, 1,000", "ostiary-gateway sessions list, 1,000", "on the disk, each"
FIGURES = (
    (FIND, "us", 3.0),
    (SIGN_IN, "ms", 3.0),
    (REVOKE, "ms", 5.0),
    (FIRST_PAGE, "ms", 3.0),
    (MIDDLE_PAGE, "ms", 3.0),
    (OF_USER, "ms", 3.0),
    (OF_TEAM, "ms", 3.0),
    (OF_ALL, "ms", 3.0),
    (OF_KIND, "ms", 0.0),
    (SWEEP, "ms", 0.0),
    (HELD_UP, "ms", 0.0),
    (API, "ms", 0.0),
    (COMMAND, "ms", 0.0),
    (DISK, "bytes", 0.0),
)
DRAWN = (FIND, SIGN_IN, REVOKE, FIRST_PAGE, OF_ALL, OF_KIND, SWEEP, HELD_UP)


def measure(fill: Fill, folder: Path) -> Figures:
    """Each size in a store of its own, one after the other: of two, the disk holds one."""
    figures: Figures = {what: [] for what, _, _ in FIGURES}
    site = GatewaySite(folder, 9)
    for size in SIZES:
        people = population(size, min(EXPIRED, size // 2))
        began = time.perf_counter()
        with fill(people) as filled:
            print(f"    {size:,} tokens, filled in {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
            for what, value in asyncio.run(_call(filled, people)).items():
                figures[what].append(value)
            figures[DISK].append(filled.disk_bytes / size)
            for what, value in _ask_gateway(site, filled, folder / f"gateway-{size}").items():
                figures[what].append(value)
    return figures


# --- calls of the store ---


async def _call(filled: FilledStore, people: Population) -> dict[str, float]:
    store = filled.open()
    try:
        return {
            **await _reads(store, people),
            **await _changes(store, people),
            **await _sweep(store),
        }
    finally:
        await store.close()


async def _reads(store: TokenStore, people: Population) -> dict[str, float]:
    paging = ability(store, PagesSessions)
    assert paging is not None
    number = people.expired_sessions + (people.sessions - people.expired_sessions) // 2
    middle = (await paging.page_sessions(username=user_of(number)))[0].place
    chosen = [random.randrange(people.expired_sessions, people.sessions) for _ in range(FINDS)]
    digests = iter([people.digest(session, 0) for session in chosen])

    async def find() -> None:
        assert await store.find(next(digests)) is not None

    async def page(limit: int = PAGE, **search: object) -> None:
        assert await paging.page_sessions(limit=limit, **search) or "kind" in search  # type: ignore[arg-type]

    return {
        FIND: await _seconds_of(find, FINDS) * 1e6,
        FIRST_PAGE: await _seconds_of(page, PAGES) * 1e3,
        MIDDLE_PAGE: await _seconds_of(lambda: page(after=middle), PAGES) * 1e3,
        OF_USER: await _seconds_of(lambda: page(username=user_of(number)), PAGES) * 1e3,
        OF_TEAM: await _seconds_of(lambda: page(group=team_of(number)), PAGES) * 1e3,
        OF_ALL: await _seconds_of(lambda: page(group=EVERYBODY), PAGES) * 1e3,
        OF_KIND: await _seconds_of(lambda: page(kind=SessionKind.API_TOKEN), PAGES) * 1e3,
    }


async def _changes(store: TokenStore, people: Population) -> dict[str, float]:
    tokens = Tokens(store)
    # All of these have living sessions only, and no two are of one user.
    step = (people.sessions - people.expired_sessions) // REVOCATIONS // SESSIONS_PER_USER * SESSIONS_PER_USER
    numbers = iter(range(people.expired_sessions, people.sessions, step))

    async def issue() -> None:
        await tokens.issue(UserInfo("newcomer", groups=(EVERYBODY, "team-new")), provider="staff")

    async def revoke() -> None:
        assert await store.revoke(Revocation(RevocationKind.USER, user_of(next(numbers)))) > 0

    return {SIGN_IN: await _seconds_of(issue, SIGN_INS) * 1e3, REVOKE: await _seconds_of(revoke, REVOCATIONS) * 1e3}


async def _sweep(store: TokenStore) -> dict[str, float]:
    """What has expired, while people sign in."""
    sweeping = asyncio.ensure_future(_timed_sweep(store))
    tokens, waits = Tokens(store), []
    while not sweeping.done():
        began = time.perf_counter()
        await tokens.issue(UserInfo("newcomer", groups=(EVERYBODY,)), provider="staff")
        waits.append(time.perf_counter() - began)
    return {SWEEP: await sweeping * 1e3, HELD_UP: max(waits) * 1e3}


async def _timed_sweep(store: TokenStore) -> float:
    """Seconds for a thousand."""
    began = time.perf_counter()
    swept = await store.sweep()
    assert swept, "something has expired"
    return (time.perf_counter() - began) / swept * 1000


async def _seconds_of(call: Callable[[], Awaitable[None]], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        took.append(time.perf_counter() - began)
    return statistics.quantiles(took, n=4)[0]


# --- as people ask ---


def _ask_gateway(site: GatewaySite, filled: FilledStore, home: Path) -> dict[str, float]:
    with site.gateway("gateway", filled.section, core=MEASURED_CORE, home=home) as gateway:
        token, _ = sign_in(gateway, "root")
        url = f"http://127.0.0.1:{gateway.port}{SESSIONS_PATH}"
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(headers=headers, trust_env=False, timeout=120) as client:
            api = _seconds_for(lambda: client.get(url).raise_for_status(), PAGES)
    command = [sys.executable, "-m", "ostiary_gateway", "sessions", "list", "--config", str(home / "gateway.yaml")]
    listed = _seconds_for(lambda: subprocess.run(command, check=True, capture_output=True), COMMANDS)
    return {API: api * 1e3, COMMAND: listed * 1e3}


def _seconds_for(call: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.quantiles(took, n=4)[0]
