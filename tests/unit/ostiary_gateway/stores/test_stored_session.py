"""Sessions, tokens and times as columns: what goes in comes out, and rows of an earlier version can be read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, SessionKind, TokenKind, TokenRecord
from ostiary_gateway.stores.stored_session import (
    KINDS,
    NARROWED,
    SESSION_KINDS,
    decode_kind,
    decode_session,
    decode_token,
    encode_body,
    encode_kind,
    index_names,
    index_names_in,
    kind_number,
    micros,
    moment_of,
)
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import make_session


def test_a_time_is_kept_to_the_microsecond(subtests: pytest.Subtests) -> None:
    cases: list[datetime] = [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=UTC),
    ]
    for moment in cases:
        with subtests.test(moment=moment):
            assert moment_of(micros(moment)) == moment


def test_a_session_is_read_as_it_was_written(clock: FakeClock) -> None:
    session = make_session(clock, sequence=7, sealed="sealed", kind=SessionKind.API_TOKEN, name="deploy")
    session = replace(session, origins=("0" * 64,), sealed_hint="hint")
    body = encode_body(session)
    times = micros(session.created_at), micros(session.expires_at)
    used_at = micros(clock.now())
    row = decode_session(session.id, session.user.username, *times, body, 7, SESSION_KINDS[session.kind], used_at)
    assert (row, row.sequence, row.last_used_at) == (session, 7, clock.now())
    assert index_names_in(body) == index_names(session)
    assert index_names(session) == [*session.user.groups, f"ostiary.dev/sign-in:{'0' * 64}"]


def test_an_origin_is_revoked_as_a_group_that_nobody_is_in() -> None:
    """So a version that knows of no origins can follow the same log."""
    origin = Revocation(RevocationKind.ORIGIN, "0" * 64)
    kind, value = encode_kind(origin)
    assert kind is RevocationKind.GROUP
    assert decode_kind(kind.value, value) == (origin.kind, origin.value)
    for name in ("ops", "ostiary.dev/sign-in:", f"ostiary.dev/sign-in:{'0' * 63}", f"{value}\n"):
        assert decode_kind("group", name) == (RevocationKind.GROUP, name)
    assert decode_kind("user", value) == (RevocationKind.USER, value)


@pytest.mark.parametrize(("rest", "sealed"), [("", ""), (',"sealed"', "sealed")])
def test_a_session_of_an_earlier_version_can_be_read(rest: str, sealed: str) -> None:
    session = decode_session("s1", "ann", 0, 1, f'["u-1",["dev"],[],"staff",[],""{rest}]', 3, 0, None)
    assert (session.user.groups, session.sealed, session.name) == (("dev",), sealed, "")
    assert (session.kind, session.last_used_at) == (SessionKind.SIGN_IN, None)
    assert (session.origins, session.sealed_hint) == ((), "")


@pytest.mark.parametrize("kind", list(TokenKind))
def test_a_token_of_every_kind_is_read_as_it_was_written(kind: TokenKind, clock: FakeClock) -> None:
    token = TokenRecord(b"digest", "s1", clock.now(), clock.now(), kind)
    assert decode_token(b"digest", "s1", KINDS[kind], micros(clock.now()), micros(clock.now()), "") == token


def test_a_token_with_a_delegation_has_a_kind_that_earlier_versions_do_not_know(clock: FakeClock) -> None:
    """They would take it for all that its session may do."""
    token = TokenRecord(b"digest", "s1", clock.now(), clock.now(), delegation="less")
    assert kind_number(token) == NARROWED
    assert NARROWED not in KINDS.values()
    times = micros(clock.now()), micros(clock.now())
    assert decode_token(b"digest", "s1", NARROWED, *times, "less") == token


@pytest.mark.parametrize(("kind", "delegation"), [(NARROWED, ""), (KINDS[TokenKind.ACCESS], "less"), (9, "")])
def test_a_token_that_has_lost_its_delegation_is_not_understood(kind: int, delegation: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        decode_token(b"digest", "s1", kind, 0, 1, delegation)
