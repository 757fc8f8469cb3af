"""Two stores hold the same only if nothing but a moment differs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ostiary_gateway.interfaces.token_store import SessionKind, TokenKind
from ostiary_gateway.stores.transfer import same_session, same_token
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.testing.token_store import make_session, make_token

MOMENT, LONGER = timedelta(seconds=1), timedelta(seconds=3)


@pytest.mark.parametrize(
    "change", [{"delegation": "less"}, {"kind": TokenKind.BROWSER}, {"session_id": "s2"}, {"digest": b"other"}]
)
def test_a_token_that_means_something_else_is_another(clock: FakeClock, change: dict[str, object]) -> None:
    token = make_token(make_session(clock))
    assert not same_token(token, replace(token, **change))  # type: ignore[arg-type]
    assert same_token(token, replace(token, expires_at=token.expires_at + MOMENT))
    assert not same_token(token, replace(token, expires_at=token.expires_at + LONGER))


@pytest.mark.parametrize(
    "change", [{"kind": SessionKind.EXCHANGE}, {"name": "deploy"}, {"sequence": 7}, {"client": "another"}]
)
def test_a_session_that_means_something_else_is_another(clock: FakeClock, change: dict[str, object]) -> None:
    session = make_session(clock, sequence=1)
    assert not same_session(session, replace(session, **change))  # type: ignore[arg-type]


def test_the_last_use_is_compared_too(clock: FakeClock) -> None:
    session = make_session(clock, last_used_at=clock.now())
    assert same_session(session, replace(session, last_used_at=clock.now() + MOMENT))
    assert not same_session(session, replace(session, last_used_at=clock.now() + LONGER))
    assert not same_session(session, replace(session, last_used_at=None))
