"""What a sign-in under way keeps in the store: sealed, by kind, and for one worker as for another."""

from __future__ import annotations

from datetime import timedelta

from ostiary_gateway.config.provider import Identity
from ostiary_gateway.login.records import Records, record_store
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import Gateway, sends_away


async def test_a_secret_of_one_kind_is_worth_nothing_as_another(clock: FakeClock) -> None:
    store = MemoryTokenStore(clock=clock)
    one, two = (Records(store, kind, timedelta(minutes=1), clock=clock) for kind in ("one", "two"))
    assert await one.put("secret", {"a": 1})
    assert await two.take("secret") is None
    assert await one.take("secret") == {"a": 1}


async def test_what_somebody_wrote_into_the_store_is_no_login(clock: FakeClock) -> None:
    class Forged(MemoryTokenStore):
        async def take_record(self, key_digest: bytes) -> bytes | None:
            return b"x" * 60

    gateway = Gateway([Identity("idp1", "test", sends_away())], clock, store=Forged(clock=clock))
    assert (await gateway.get("/auth/provider?state=abc", cookie="__Host-ostiary-login=x")).status == 403


async def test_a_store_that_keeps_no_records_is_helped_out(clock: FakeClock) -> None:
    class Plain:
        """Somebody's store from before there were records."""

    kept = record_store(Plain(), clock)  # type: ignore[arg-type]
    assert await kept.put_record(b"k" * 32, b"x", clock.now().replace(year=2030))
    assert await kept.take_record(b"k" * 32) == b"x"
