"""Rows of the SQLite token store hold what they were made of."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.stores.sqlite import database_file
from ostiary_gateway.stores.sqlite import database_file as schema
from ostiary_gateway.stores.sqlite import log as sqlite_log
from ostiary_gateway.stores.sqlite import transactions as changes

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@given(names=st.lists(NAMES, min_size=5, max_size=5), groups=st.lists(NAMES, max_size=4), micros=st.integers(0, 2**50))
@settings(max_examples=60)
def test_a_row_holds_a_session_exactly(names: list[str], groups: list[str], micros: int) -> None:
    """S14."""
    begun = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    username, uid, provider, client, key = names
    user = UserInfo(username, uid, tuple(groups), ((key, tuple(groups)),))
    session = Session("s", user, provider, begun, begun + timedelta(1), tuple((g, uid) for g in groups), client)
    with closing(database_file.connect(":memory:")) as db:
        database_file.prepare(db)
        assert changes.add(db, session, [], now=begun, seen=sqlite_log.Seen())
        query, arguments = schema.select_sessions(username, groups[0] if groups else None, None, now=begun, limit=9)
        assert [schema.decode_session(row) for row in db.execute(query, arguments)] == [session]
