"""What a revocation ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.tokens import (
    Tokens,
    ends_token,
)
from ostiary.interfaces.token_store import Revocation, RevocationKind
from ostiary.model import UserInfo
from ostiary.plugins.memory.token_store import MemoryTokenStore
from ostiary.testing import FakeClock


@given(
    kind=st.sampled_from(list(RevocationKind)),
    value=st.sampled_from(["ann", "dev", "ann,dev", "", "s1", "s2"]),
    seconds=st.integers(-2, 2),
)
@settings(max_examples=100)
def test_what_a_revocation_means_is_the_same_to_a_cache_and_to_a_store(
    kind: RevocationKind, value: str, seconds: int
) -> None:
    """T3."""

    async def both() -> None:
        clock = FakeClock()
        tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
        issued = await tokens.issue(UserInfo("ann", groups=("dev", "ops")), provider="staff")
        found = await tokens.find(issued.token.reveal())
        assert found is not None
        names = {"s1": issued.session.id}
        text = found.token.digest.hex() if kind is RevocationKind.TOKEN else names.get(value, value)
        revocation = Revocation(kind, text, clock.now() + timedelta(seconds=seconds))
        await tokens.store.revoke(revocation)
        gone = await tokens.find(issued.token.reveal()) is None
        assert ends_token(revocation, found.token.digest, found.session) is gone

    asyncio.run(both())


@pytest.mark.parametrize("kind", [RevocationKind.USER, RevocationKind.GROUP, RevocationKind.BEFORE])
async def test_an_unsaved_revocation_is_not_replaced_by_one_that_ends_less(kind: RevocationKind) -> None:
    clock = FakeClock()
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
    issued = await tokens.issue(UserInfo("ann", groups=("dev",)), provider="staff")
    value = {RevocationKind.USER: "ann", RevocationKind.GROUP: "dev"}.get(kind, "")
    everything = Revocation(kind, value, clock.now())
    tokens.unsaved.add(everything)
    tokens.unsaved.add(Revocation(kind, value, clock.now() - timedelta(days=1)))
    assert await tokens.find(issued.token.reveal()) is None
    assert list(tokens.unsaved) == [everything], "it is what is written down, too"
    clock.advance(seconds=1)
    tokens.unsaved.add(later := Revocation(kind, value, clock.now()))
    assert list(tokens.unsaved) == [later]
