"""Sessions, tokens and unusual names for the suites of token stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256

from ostiary.model import UserInfo
from ostiary.testing import FakeClock
from ostiary_gateway.interfaces.token_store import (
    RevocationBatch,
    RevocationKind,
    Session,
    TokenKind,
    TokenRecord,
    TokenStore,
)

# Names from real directories, and unusual ones: all must be returned unchanged.
ODD_NAMES = (
    "a,b",
    "a|b",
    "a:b",
    "CN=Ann\\, Dr.,OU=x",
    " lead",
    "trail ",
    "\u0130stanbul",
    "ISTANBUL",
    "\u00e9",
    "e\u0301",
    "'; --",
    "%",
    "\U0001d518",
    "",
)
# Exceeded only if the store does not wake its waiters, however slow the machine.
TIME_LIMIT_SECONDS = 30.0

Sweep = Callable[[], Awaitable[int]]


def digest_of(name: str) -> bytes:
    return sha256(name.encode()).digest()


def make_session(clock: FakeClock, session_id: str = "s1", /, **changes: object) -> Session:
    now = clock.now()
    user = UserInfo("ann", "u-1", ("dev", "ops"), (("team", ("red", "blue")),))
    session = Session(
        session_id, user, "staff", now, now + timedelta(hours=24), (("dev", "file"),), "kubectl on laptop"
    )
    return replace(session, **changes)  # type: ignore[arg-type]


def make_token(
    session: Session, name: str = "t1", *, minutes: float = 15, kind: TokenKind = TokenKind.ACCESS
) -> TokenRecord:
    start = session.created_at
    return TokenRecord(digest_of(name), session.id, start, start + timedelta(minutes=minutes), kind)


def of_user(session: Session, username: str, *groups: str) -> Session:
    return replace(session, user=UserInfo(username, groups=groups))


async def renewable_session(store: TokenStore, clock: FakeClock) -> Session:
    session = make_session(clock)
    renewal = make_token(session, "r1", minutes=24 * 60, kind=TokenKind.RENEWAL)
    await store.add(session, [make_token(session, "t1"), renewal])
    return session


def in_minutes(clock: FakeClock, minutes: float) -> datetime:
    return clock.now() + timedelta(minutes=minutes)


@contextmanager
def case(*values: object) -> Iterator[None]:
    """Add *values* to any error raised inside."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"with {', '.join(map(repr, values))}")
        raise


async def follow(store: TokenStore, after: int) -> RevocationBatch:
    """Return the batch after number *after*, as soon as there is one."""
    async with asyncio.timeout(TIME_LIMIT_SECONDS):
        while True:
            batch = await store.revocations_after(after)
            if batch.head != after:
                return batch
            await store.wait_for_revocations(after, TIME_LIMIT_SECONDS)


async def head(store: TokenStore) -> int:
    return (await store.revocations_after(None)).head


def contents(batch: RevocationBatch) -> list[tuple[RevocationKind, str, datetime | None, str]]:
    return [(each.kind, each.value, each.at, each.by) for each in batch.revocations]
