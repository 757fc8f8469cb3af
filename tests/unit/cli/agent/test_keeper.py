"""The keeper gets a new token well before the old one expires, and keeps the old one while there is no other."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from ostiary.cli.agent.keeper import EARLIEST, LATEST, HeldToken, TokenHealth, TokenKeeper
from ostiary.cli.agent.signalled_wait import SignalledWait
from ostiary.errors import LoginRefused, OstiaryError, ProviderError
from ostiary.model import Secret
from ostiary.testing import FakeClock

HOUR = timedelta(hours=1)
AWAY = ProviderError("the gateway is unreachable", cause="connection refused", code="gateway-unreachable")


class Gateway:
    """Issues numbered tokens that live for an hour, or fails."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.issued = clock, 0
        self.fails: OstiaryError | None = None

    def __call__(self) -> HeldToken:
        if self.fails is not None:
            raise self.fails
        self.issued += 1
        return HeldToken(Secret(f"token-{self.issued}"), self.clock.now() + HOUR)


class Bench:
    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.gateway = clock, Gateway(clock)
        self.written: list[str] = []
        self.said: list[str] = []
        self.keeper = TokenKeeper(self.gateway, [self.write], clock=clock, say=self.said.append, share=lambda: 0.6)

    def write(self, held: HeldToken) -> None:
        self.written.append(held.token.reveal())


def health(bench: Bench) -> TokenHealth:
    return bench.keeper.health


@pytest.fixture
def bench(clock: FakeClock) -> Bench:
    return Bench(clock)


def test_each_token_is_written_and_replaced_before_it_expires(bench: Bench) -> None:
    assert health(bench) is TokenHealth.STARTING
    for number in range(1, 5):
        wait = bench.keeper.refresh()
        assert wait == 0.6 * HOUR
        assert bench.written[-1] == f"token-{number}"
        assert health(bench) is TokenHealth.FRESH
        bench.clock.advance(wait.total_seconds())
    assert bench.said == []


def test_agents_that_began_together_do_not_ask_together(clock: FakeClock) -> None:
    gateway = Gateway(clock)
    waits = {TokenKeeper(gateway, [], clock=clock, say=print).refresh() for _ in range(50)}
    assert len(waits) > 40
    assert min(waits) >= EARLIEST * HOUR
    assert max(waits) <= LATEST * HOUR


def test_while_the_gateway_is_away_the_old_token_stays_and_that_is_said_once(bench: Bench) -> None:
    bench.keeper.refresh()
    bench.gateway.fails = AWAY
    waits = [bench.keeper.refresh() for _ in range(12)]
    assert bench.written == ["token-1"]
    assert health(bench) is TokenHealth.LATE
    assert waits == sorted(waits)
    assert timedelta(seconds=0.5) <= waits[0] <= timedelta(seconds=1)
    assert waits[-1] <= timedelta(minutes=1)
    assert len(bench.said) == 1
    assert "the gateway is unreachable: connection refused; the one in use is good until" in bench.said[0]
    bench.clock.advance(HOUR.total_seconds())
    assert health(bench) is TokenHealth.EXPIRED
    bench.gateway.fails = None
    bench.keeper.refresh()
    assert bench.written == ["token-1", "token-2"]
    assert health(bench) is TokenHealth.FRESH
    assert bench.said[1].startswith("there is a new token again")


def test_no_is_told_apart_from_could_not_ask(bench: Bench) -> None:
    bench.gateway.fails = AWAY
    bench.keeper.refresh()
    bench.gateway.fails = LoginRefused("the gateway said no", cause="the account is disabled")
    bench.keeper.refresh()
    assert [line.split(":")[0] for line in bench.said] == ["getting a token failed", "getting a token refused"]
    assert bench.said[0].endswith("there is no token yet; retrying")


def test_a_token_that_cannot_be_written_is_not_taken_for_the_current_one(bench: Bench) -> None:
    bench.keeper.refresh()

    def full(held: HeldToken) -> None:
        raise ProviderError("the token cannot be written", cause="no space left on device")

    bench.keeper._outputs = [full]
    bench.keeper.refresh()
    assert bench.keeper.current is not None
    assert bench.keeper.current.token == Secret("token-1")
    assert health(bench) is TokenHealth.LATE


def test_it_ends_when_it_is_told_to_and_gets_a_token_at_once_when_woken(clock: FakeClock) -> None:
    written = threading.Semaphore(0)
    keeper = TokenKeeper(Gateway(clock), [lambda held: written.release()], clock=clock, say=print)
    with SignalledWait() as waiting:
        thread = threading.Thread(target=keeper.run, args=(waiting,))
        thread.start()
        try:
            for _ in range(3):
                assert written.acquire(timeout=10)
                waiting.wake()
        finally:
            waiting.end()
            thread.join(10)
    assert not thread.is_alive()


def test_neither_the_keeper_nor_the_token_shows_it(bench: Bench) -> None:
    bench.keeper.refresh()
    assert "token-1" not in repr(bench.keeper.current)
