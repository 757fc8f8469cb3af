"""Somebody else's package: one object that is an identity, a group and an authorization provider, with its own storage.

`install` declares it as a package of its own, as ``pip install`` would.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest

from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect

HERE = "tests.unit.ostiary_gateway.acme"
ENTRY_POINTS = f"""
[ostiary.identity]
acme = {HERE}:Acme
acme-broken = {HERE}:Broken
acme-incomplete = {HERE}:Incomplete
[ostiary.group]
acme = {HERE}:Acme
[ostiary.authorization]
acme = {HERE}:Acme
[ostiary.attributes]
acme = {HERE}:AcmeMapper
"""


def install(
    directory: Path, monkeypatch: pytest.MonkeyPatch, entry_points: str = ENTRY_POINTS, *, package: str = "acme"
) -> None:
    info = directory / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    monkeypatch.syspath_prepend(directory)


class Acme:
    """Users stand in a database that only this plugin knows."""

    def __init__(self, *, path: Path) -> None:
        self.path = path
        self.opened = 0

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Acme:
        path = fields.string("database")
        if path == "":
            fields.problem("it is missing", "database")
        return cls(path=context.path(path))

    async def handle_client(self, request: LoginRequest) -> UserInfo | Redirect:
        badge = request.header("x-badge")
        if badge is None:
            return Redirect(f"https://login.acme.test/?state=s1&back={request.callback_url}")
        return self._user(badge)

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        badge = dict(request.query).get("badge")
        if badge is None:
            raise LoginRefused("no badge was shown")
        return self._user(badge)

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        rows = self._rows("SELECT team FROM users WHERE name = ?", user.username)
        return tuple(Membership(team) for (team,) in rows)

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        raise LoginRefused("nobody was sent elsewhere")

    async def authorize(self, attributes: Attributes) -> Decision:
        return Decision(Verdict.ALLOW)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset(team for (team,) in self._rows("SELECT team FROM users WHERE name != ?", ""))

    def _user(self, badge: str) -> UserInfo:
        rows = self._rows("SELECT name FROM users WHERE badge = ?", badge)
        if not rows:
            raise LoginRefused("this badge is unknown")
        return UserInfo(rows[0][0])

    def _rows(self, query: str, argument: str) -> list[Any]:
        self.opened += 1
        database = sqlite3.connect(self.path)
        try:
            return database.execute(query, (argument,)).fetchall()
        finally:
            database.close()


def write_database(path: Path, *users: tuple[str, str, str]) -> None:
    """Users as (badge, name, team)."""
    database = sqlite3.connect(path)
    with database:
        database.execute("CREATE TABLE users (badge TEXT, name TEXT, team TEXT)")
        database.executemany("INSERT INTO users VALUES (?, ?, ?)", users)
    database.close()


class Broken:
    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Broken:
        fields.ignore(*fields)
        raise RuntimeError("marked-secret")


class Incomplete:
    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Incomplete:
        return cls()

    async def handle_client(self, request: LoginRequest) -> UserInfo:
        return UserInfo("a")


class AcmeMapper:
    """Every path is what it is."""

    def __init__(self, *, root: str = "") -> None:
        self.root = root

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> AcmeMapper:
        return cls(root=fields.string("root"))

    def request_info(self, line: RequestLine) -> RequestInfo:
        return RequestInfo(verb=line.method.lower(), method=line.method, path=self.root + line.path)

    def long_running(self, info: RequestInfo) -> bool:
        return False
