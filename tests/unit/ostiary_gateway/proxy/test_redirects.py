"""Which requests are redirected, and where to. S69."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.config.upstream import RedirectSettings
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.proxy.redirects import Redirects
from ostiary_gateway.wire.action_token import LONGEST_URL, PARAMETER, AllowedAction

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SESSION = Session("s", UserInfo("ann"), "people", NOW, NOW + timedelta(hours=1))


def redirects(proof: str = "p") -> Redirects:
    def sign(session: Session, action: AllowedAction, *, audience: str, lifetime: timedelta, ends_at: datetime) -> str:
        assert (audience, lifetime) == ("https://files.example", timedelta(seconds=60))
        return proof

    return Redirects(RedirectSettings(to="https://files.example", paths=("/report", "/download/")), sign)


def test_reads_of_listed_paths_are_redirected(subtests: pytest.Subtests) -> None:
    """S69."""
    cases = [
        ("GET", "/report", True),
        ("HEAD", "/download/a/b", True),
        ("GET", "/report/", False),
        ("GET", "/download", False),
        ("GET", "/downloads/a", False),
        ("POST", "/report", False),
        ("OPTIONS", "/report", False),
        ("get", "/report", False),
    ]
    for method, path, covered in cases:
        with subtests.test(method=method, path=path, covered=covered):
            assert redirects().cover(method, path) is covered


def test_the_proof_stands_behind_the_url() -> None:
    """S69."""
    of = redirects()
    action = AllowedAction("id", "GET", of.url(b"/download/a?x=1"), UserInfo("ann"), "ab")
    location = of.location(SESSION, action, NOW)
    assert location == f"https://files.example/download/a?x=1&{PARAMETER}=p".encode()


def test_a_url_that_is_too_long_is_none() -> None:
    """S69: it is not made shorter."""
    action = AllowedAction("id", "GET", b"https://files.example/download/a", UserInfo("ann"), "ab")
    room = LONGEST_URL - len(action.url) - len(PARAMETER) - 2
    assert redirects("p" * room).location(SESSION, action, NOW) is not None
    assert redirects("p" * (room + 1)).location(SESSION, action, NOW) is None
