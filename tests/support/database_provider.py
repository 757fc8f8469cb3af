"""Somebody else's package: one object for all three steps, with a database of its own as storage and as policy.

Tables: ``users (badge, name)``, ``members (name, team)``, ``grants (team, verb, resource)``. `grants_api` is its REST
resource, served by a program of its own: whoever posts to it changes the policy.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, ClassVar

from ostiary.core.yaml import ConfigSection
from ostiary.errors import LoginRefused
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.group import Membership
from ostiary_gateway.interfaces.identity import LoginRequest
from tests.support.http_server import HttpServer, Request, Response

HERE = "tests.support.database_provider"
ENTRY_POINTS = f"[ostiary.identity]\ndatabase = {HERE}:DatabaseProvider\n"


class Database:
    def __init__(self, path: Path) -> None:
        self._path = path

    def create(self) -> None:
        self.change("CREATE TABLE users (badge TEXT, name TEXT)")
        self.change("CREATE TABLE members (name TEXT, team TEXT)")
        self.change("CREATE TABLE grants (team TEXT, verb TEXT, resource TEXT)")

    def add_user(self, badge: str, name: str, *teams: str) -> None:
        self.change("INSERT INTO users VALUES (?, ?)", badge, name)
        for team in teams:
            self.change("INSERT INTO members VALUES (?, ?)", name, team)

    def grant(self, team: str, verb: str, resource: str) -> None:
        self.change("INSERT INTO grants VALUES (?, ?, ?)", team, verb, resource)

    def change(self, statement: str, *values: str) -> None:
        database = sqlite3.connect(self._path)
        with database:
            database.execute(statement, values)
        database.close()

    def rows(self, query: str, *values: str) -> list[Any]:
        database = sqlite3.connect(self._path)
        try:
            return database.execute(query, values).fetchall()
        finally:
            database.close()


class DatabaseProvider:
    built: ClassVar[int] = 0
    """How many there have been."""

    def __init__(self, *, path: Path) -> None:
        self._database = Database(path)
        DatabaseProvider.built += 1

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> DatabaseProvider:
        return cls(path=context.path(fields.string("path")))

    async def handle_client(self, request: LoginRequest) -> UserInfo:
        found = self._database.rows("SELECT name FROM users WHERE badge = ?", request.header("x-badge") or "")
        if not found:
            raise LoginRefused("this badge is unknown")
        return UserInfo(found[0][0])

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused("nobody was sent elsewhere")

    async def groups_of(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        rows = self._database.rows("SELECT team FROM members WHERE name = ?", user.username)
        return tuple(Membership(team) for (team,) in rows)

    async def groups_from_provider(
        self, user: UserInfo, relevant: AbstractSet[str], request: LoginRequest
    ) -> tuple[Membership, ...]:
        raise LoginRefused("nobody was sent elsewhere")

    async def authorize(self, attributes: Attributes) -> Decision:
        info = attributes.request
        rows = self._database.rows("SELECT team FROM grants WHERE verb = ? AND resource = ?", info.verb, info.resource)
        granted = {team for (team,) in rows}
        return Decision(Verdict.ALLOW if granted.intersection(attributes.user.groups) else Verdict.NO_OPINION)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset(team for (team,) in self._database.rows("SELECT team FROM grants"))


def grants_api(database: Database) -> HttpServer:
    """``POST /apis/acme.example/v1/grants`` adds one. It knows nothing of who may: the gateway has decided that."""

    def add(request: Request) -> Response:
        grant = request.json
        database.grant(grant["team"], grant["verb"], grant["resource"])
        return Response(201)

    return HttpServer(add)
