"""One greedy user does not shut out another, and does not fill the memory: the whole gateway, as a process.

How quickly somebody else is served meanwhile is measured by ``python -m bench greedy``; nothing is timed here.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import trustme

from bench.greedy_load import LOGINS, Greedy
from tests.support.gateway import SECONDS, ServedGateway, Site, password, role
from tests.support.holding_upstream import HoldingUpstream

LARGEST_PROCESS = 150 * 1024 * 1024
EVERYTHING = {"nonResourceURLs": ["*"], "verbs": ["*"]}
SESSIONS = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}


@pytest.fixture
def site(tmp_path: Path, ca: trustme.CA) -> Site:
    site = Site(tmp_path / "gateway", ca)
    site.users("mallory", "jane", "root")
    site.policy(
        *(role("", EVERYTHING, User=name) for name in ("mallory", "jane")),
        role("", SESSIONS, User="root"),
    )
    return site


def memory_of(pid: int) -> int:
    """What the process has in memory, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


class Modest:
    """Somebody else, who asks one thing after the other all the while."""

    def __init__(self, gateway: ServedGateway) -> None:
        self._token = gateway.login("jane").token
        self._url = gateway.url()
        self.statuses: list[int] = []

    async def run(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}"}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=SECONDS, trust_env=False) as http:
            while True:
                self.statuses.append((await http.get("/mine")).status_code)
                await asyncio.sleep(0.01)


async def play(gateway: ServedGateway, modest: Modest) -> int:
    """The greedy user does everything while the other one asks; returns what the gateway has in memory then."""
    greedy = Greedy(gateway.port, [gateway.login("mallory").token])
    auth = ("mallory", password("mallory"))
    async with httpx.AsyncClient(base_url=gateway.url(), timeout=SECONDS, trust_env=False) as http:

        async def login() -> str:
            return str((await http.get("/auth", auth=auth)).json()["token"])

        meanwhile = [asyncio.ensure_future(modest.run()), asyncio.ensure_future(greedy.drip())]
        try:
            await greedy.sign_in(login)
            await greedy.ask_for_targets()
            await greedy.hold_uploads()
            await greedy.hold_reads()
            await greedy.send_chunks(5)
            return memory_of(gateway.pid)
        finally:
            greedy.close()
            for task in meanwhile:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*meanwhile)


@pytest.mark.slow
def test_a_greedy_user_shuts_nobody_out_and_does_not_fill_the_memory(site: Site) -> None:
    """S73, T2: slow uploads, slow reads, tiny chunks, ten thousand targets, a hundred sign-ins."""
    with HoldingUpstream() as upstream:
        api = {"name": "api", "server": upstream.url, "attributes": "http"}
        with site.serving(upstreams=[api], listen={"tls": None, "drain": "0s"}) as gateway:
            modest = Modest(gateway)
            memory = asyncio.run(play(gateway, modest))
            assert set(modest.statuses) == {200}
            assert len(modest.statuses) > 20
            assert memory < LARGEST_PROCESS
            root = gateway.login("root")
            listed = gateway.get("/apis/ostiary.dev/v1/sessions?user=mallory", root.token)
            assert listed.status_code == 200, listed.text
            assert len(listed.json()["items"]) == LOGINS
