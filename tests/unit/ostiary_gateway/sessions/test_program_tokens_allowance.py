"""How many a user may have is counted once in a while, and remembered for a bounded number of users."""

from __future__ import annotations

from ostiary_gateway.sessions import program_tokens as allowance
from ostiary_gateway.sessions.program_tokens import Allowance


async def test_without_a_limit_nobody_is_counted() -> None:
    async def count(username: str) -> int:
        raise AssertionError(username)

    assert await Allowance(0, count).take("ann")


async def test_a_forgotten_user_is_counted_again_and_memory_is_bounded() -> None:
    counted: list[str] = []

    async def count(username: str) -> int:
        counted.append(username)
        return 0

    limited = Allowance(1000, count)
    for number in range(allowance.MOST_REMEMBERED + 1):
        assert await limited.take(f"u{number}")
    assert await limited.take("u5")
    assert "u5" not in counted[-1:]
    assert await limited.take("u0")
    assert counted[-1] == "u0"
    assert len(limited._left) == allowance.MOST_REMEMBERED


async def test_the_last_of_the_limit_is_given_and_no_more() -> None:
    async def count(username: str) -> int:
        return 999 if username == "ann" else 1200

    limited = Allowance(1000, count)
    assert await limited.take("ann")
    assert not await limited.take("bob")
