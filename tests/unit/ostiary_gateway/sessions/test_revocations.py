"""What a revocation ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind
from ostiary_gateway.sessions import Tokens, ended_origins, ends_token, origins_of
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock


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
        origins = origins_of("staff", session_id="s1", subject="ann")
        issued = await tokens.issue(UserInfo("ann", groups=("dev", "ops")), provider="staff", origins=origins)
        found = await tokens.find(issued.token.reveal())
        assert found is not None
        names = {"s1": issued.session.id}
        text = found.token.digest.hex() if kind is RevocationKind.TOKEN else names.get(value, value)
        if kind is RevocationKind.ORIGIN:
            (text,) = ended_origins("staff", session_id=value, subject="") or ended_origins(
                "staff", session_id="", subject="ann"
            )
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


# --- where a session came from ---


def is_ended(sign_in: tuple[str, str, str], logout: tuple[str, str, str]) -> bool:
    """Each is a provider, a session id and a subject."""
    origins, ended = (
        make(provider, session_id=session_id, subject=subject)
        for make, (provider, session_id, subject) in ((origins_of, sign_in), (ended_origins, logout))
    )
    return bool({*origins} & {*ended})


@pytest.mark.parametrize(
    ("sign_in", "logout", "ends"),
    [
        (("a", "sid", "sub"), ("a", "sid", "sub"), True),
        (("a", "sid", "sub"), ("a", "sid", ""), True),
        (("a", "sid", "sub"), ("a", "", "sub"), True),
        (("a", "sid", ""), ("a", "sid", "sub"), True),
        (("a", "", "sub"), ("a", "sid", "sub"), True),
        (("a", "", "sub"), ("a", "", "sub"), True),
        (("a", "other", "sub"), ("a", "sid", "sub"), False),
        (("a", "sid", "sub"), ("b", "sid", "sub"), False),
        (("a", "sid", "sub"), ("a", "sub", "sid"), False),
        (("a", "sid", ""), ("a", "", "sid"), False),
        (("a", "", "sub"), ("a", "sid", ""), False),
        (("a", "", ""), ("a", "", ""), False),
        (("a", "1:b", "x"), ("a1:", "b", ""), False),
    ],
)
def test_a_logout_ends_the_sign_in_that_it_names(
    sign_in: tuple[str, str, str], logout: tuple[str, str, str], *, ends: bool
) -> None:
    assert is_ended(sign_in, logout) is ends


def test_an_origin_does_not_tell_the_session_id() -> None:
    origins = origins_of("staff", session_id="sid-canary", subject="sub-canary")
    assert all(len(origin) == 64 and "canary" not in origin for origin in origins)


async def test_a_logout_that_could_not_be_written_down_holds_in_this_process() -> None:
    clock = FakeClock()
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
    origins = origins_of("staff", session_id="s1", subject="")
    issued = await tokens.issue(UserInfo("ann"), provider="staff", origins=origins)
    tokens.unsaved.add(Revocation(RevocationKind.ORIGIN, origins[0], clock.now()))
    assert await tokens.find(issued.token.reveal()) is None
