"""What the tests of ``ostiary-gateway store`` share: they work on SQLite files in the current folder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.cli import main
from ostiary_gateway.interfaces.store_capabilities import ObjectStore
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import Issued, Tokens
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore

T = TypeVar("T")
Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["store", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def run_json(capsys: Captured, *arguments: str) -> tuple[int, Any]:
    code, out, _ = run(capsys, *arguments, "-o", "json")
    return code, json.loads(out)


def with_store(file: str, work: Callable[[Tokens], Awaitable[T]]) -> T:
    async def run() -> T:
        store = SqliteTokenStore(file)
        try:
            return await work(Tokens(store))
        finally:
            await store.close()

    return asyncio.run(run())


def sign_in(*names: str, file: str = "tokens.db") -> list[Issued]:
    async def work(tokens: Tokens) -> list[Issued]:
        return [await tokens.issue(UserInfo(name, groups=("dev",)), provider="staff") for name in names]

    return with_store(file, work)


def put_object(kind: str, name: str, data: bytes = b"data", *, file: str = "tokens.db") -> None:
    with_objects(file, lambda store: store.put_object(kind, name, data, version=None))


def objects_in(file: str) -> dict[tuple[str, str], bytes]:
    async def work(store: ObjectStore) -> dict[tuple[str, str], bytes]:
        kinds = [await store.list_objects(kind) for kind in await store.object_kinds()]
        return {(each.kind, each.name): each.data for objects in kinds for each in objects}

    return with_objects(file, work)


def with_objects(file: str, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
    return with_store(file, lambda tokens: work(cast(ObjectStore, tokens.store)))


def revoke(user: str, *, file: str = "tokens.db") -> None:
    with_store(file, lambda tokens: tokens.revoke(RevocationKind.USER, user))


def alive(issued: list[Issued], *, file: str) -> list[bool]:
    async def work(tokens: Tokens) -> list[bool]:
        return [await tokens.find(each.token.reveal()) is not None for each in issued]

    return with_store(file, work)
