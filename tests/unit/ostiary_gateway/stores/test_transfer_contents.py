"""What a token store holds, counted."""

from __future__ import annotations

from pathlib import Path

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, TokenKind
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.stores.sqlite.token_store import SqliteTokenStore
from ostiary_gateway.stores.transfer import ContentCounts, count_contents
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import make_session, make_token
from ostiary_gateway.testing.token_store.transfer import fill


async def test_sessions_tokens_and_revocations_are_counted(tmp_path: Path) -> None:
    clock = FakeClock()
    store = SqliteTokenStore(tmp_path / "tokens.db", clock=clock)
    await fill(store, clock)
    empty = make_session(clock, "without tokens")
    await store.add(empty, [make_token(empty, minutes=0)])
    contents = await count_contents(store, store)
    head = (await store.revocations_after(None)).head
    kinds = {
        TokenKind.ACCESS: 5,
        TokenKind.RENEWAL: 4,
        TokenKind.SPENT: 1,
        TokenKind.BROWSER: 4,
        TokenKind.APPLICATION: 4,
    }
    # Of the session that began last, the short one is an access token that lives for a minute more.
    assert (contents.sessions, contents.sessions_without_tokens, contents.tokens) == (6, 1, kinds)
    assert (contents.head, contents.marks, contents.forgotten) == (head, 5, 1)
    assert contents.unswept == contents.kept - 18
    await store.close()


async def test_a_store_that_cannot_be_read_as_a_whole_says_less() -> None:
    store, clock = MemoryTokenStore(), FakeClock()
    await store.add(make_session(clock), [make_token(make_session(clock))])
    await store.revoke(Revocation(RevocationKind.USER, "bob"))
    contents = await count_contents(store, None)
    assert contents == ContentCounts(head=1, marks=1, kept=1)
    assert contents.unswept is None
