"""A renewal whose answer was lost is answered again, by any replica, for a moment and to nobody else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.login.session_api import TOPIC, RenewedPairs
from ostiary_gateway.sessions import REUSE_LEEWAY
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.token_format import ACCESS_PREFIX, new_token
from tests.support.noting_store import NotingStore
from tests.unit.ostiary_gateway.signing_in import Gateway, Revalidating, body


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[NotingStore]:
    store = NotingStore(str(tmp_path / "tokens.db"), clock=clock)
    yield store
    await store.close()


@pytest.fixture
def replicas(store: NotingStore, clock: FakeClock) -> list[Gateway]:
    identity = Identity("staff", "says", Revalidating(UserInfo("alice")))
    return [Gateway([identity], clock, store=store) for _ in range(2)]


async def test_another_replica_answers_the_same_renewal_with_the_same_pair(
    replicas: list[Gateway], clock: FakeClock
) -> None:
    one, other = replicas
    first = body(await one.get())
    renewed = body(await one.post("/auth/renew", renewal_token=first["renewal_token"]))
    clock.advance(5)
    again = await other.post("/auth/renew", renewal_token=first["renewal_token"])
    assert (again.status, body(again)) == (200, renewed)
    assert await other.tokens.find(renewed["token"]) is not None
    assert LoginEventKind.RENEWED not in [event.kind for event in other.events], "it was renewed once"


async def test_later_than_that_the_session_ends(replicas: list[Gateway], clock: FakeClock) -> None:
    one, other = replicas
    first = body(await one.get())
    renewed = body(await one.post("/auth/renew", renewal_token=first["renewal_token"]))
    clock.advance(REUSE_LEEWAY.total_seconds() + 1)
    assert (await other.post("/auth/renew", renewal_token=first["renewal_token"])).status == 401
    assert await other.tokens.find(renewed["token"]) is None


async def test_a_session_that_was_revoked_meanwhile_is_not_handed_out_again(replicas: list[Gateway]) -> None:
    one, other = replicas
    first = body(await one.get())
    await one.post("/auth/renew", renewal_token=first["renewal_token"])
    await one.tokens.revoke(RevocationKind.USER, "alice")
    assert (await other.post("/auth/renew", renewal_token=first["renewal_token"])).status == 401


async def test_a_pair_that_never_became_good_is_not_handed_out(replicas: list[Gateway]) -> None:
    """Two replicas renew at the same moment: one succeeds, and the other was the last to write its pair down."""
    one, other = replicas
    first = body(await one.get())
    await one.post("/auth/renew", renewal_token=first["renewal_token"])
    pairs = RenewedPairs(other.tokens)
    good = await pairs.find(first["renewal_token"])
    assert good is not None
    await pairs.keep(first["renewal_token"], replace(good, token=new_token(ACCESS_PREFIX)))
    answer = await other.post("/auth/renew", renewal_token=first["renewal_token"])
    assert answer.status == 409


async def test_a_reader_of_the_store_sees_neither_tokens_nor_the_spent_one(
    replicas: list[Gateway], store: NotingStore
) -> None:
    one, _ = replicas
    first = body(await one.get())
    renewed = body(await one.post("/auth/renew", renewal_token=first["renewal_token"]))
    (note,) = await store.latest_notes(TOPIC, 10)
    for secret in (first["renewal_token"], renewed["token"], renewed["renewal_token"]):
        assert secret.encode() not in note.data
        assert secret not in note.key
    pairs = RenewedPairs(one.tokens)
    assert await pairs.find(renewed["renewal_token"]) is None
