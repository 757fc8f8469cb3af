"""Somebody else's package: one provider for all three steps that takes its time, and writes down each time it is asked.

`install` declares it as a package of its own, as ``pip install`` would; a gateway finds it by its entry points.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from pathlib import Path

from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest

SECONDS = 0.2
ROOT = Path(__file__).parents[2]
ENTRY_POINTS = "".join(
    f"[ostiary.{kind}]\nslow = tests.support.slow_provider:Slow\n" for kind in ("identity", "group", "authorization")
)


def install(directory: Path) -> dict[str, str]:
    """Declare it in *directory*; returns the environment of a process that is to find it."""
    info = directory / "slow-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return {"PYTHONPATH": f"{directory}:{ROOT}"}


class Slow:
    def __init__(self, *, journal: Path) -> None:
        self._journal = journal

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Slow:
        return cls(journal=context.path(fields.string("journal")))

    async def handle_client(self, request: LoginRequest) -> UserInfo:
        await self._take_time("identity")
        return UserInfo(request.header("x-badge") or "nobody")

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused("nobody was sent elsewhere")

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        await self._take_time("groups")
        return (Membership("dev"),)

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        raise LoginRefused("nobody was sent elsewhere")

    async def authorize(self, attributes: Attributes) -> Decision:
        await self._take_time("decision")
        return Decision(Verdict.ALLOW)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset({"dev"})

    async def close(self) -> None:
        with self._journal.with_name("closed").open("a") as closed:
            closed.write("closed\n")

    async def _take_time(self, what: str) -> None:
        with self._journal.open("a") as journal:
            journal.write(f"{what}\n")
        await asyncio.sleep(SECONDS)
