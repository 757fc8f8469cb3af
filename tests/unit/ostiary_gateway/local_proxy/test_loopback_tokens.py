"""The tokens of one listener: short-lived, at most two, and unknown to any other."""

from __future__ import annotations

from ostiary_gateway.local_proxy.loopback_tokens import LIFETIME, LoopbackTokens
from ostiary_gateway.testing import FakeClock


def text(tokens: LoopbackTokens) -> bytes:
    return tokens.current().token.reveal().encode()


def test_whoever_asks_gets_the_same_token_for_a_while_and_then_another(clock: FakeClock) -> None:
    tokens = LoopbackTokens(clock)
    first = text(tokens)
    clock.advance(minutes=3)
    assert text(tokens) == first
    assert tokens.current().expires_at - clock.now() >= LIFETIME - LIFETIME * 0.6
    clock.advance(seconds=1)
    second = text(tokens)
    assert second != first
    # A client that has the first one may use it to its end.
    assert tokens.accepts(first)
    clock.advance(minutes=2)
    assert not tokens.accepts(first)
    assert tokens.accepts(second)


def test_the_second_at_which_it_expires(clock: FakeClock) -> None:
    tokens = LoopbackTokens(clock)
    token = text(tokens)
    clock.advance(LIFETIME.total_seconds() - 1)
    assert tokens.accepts(token)
    clock.advance(1)
    assert not tokens.accepts(token)


def test_a_clock_that_is_set_back_keeps_no_token_alive(clock: FakeClock) -> None:
    tokens = LoopbackTokens(clock)
    token = text(tokens)
    clock.set_back(hours=1)
    clock.advance(minutes=5)
    assert not tokens.accepts(token)


def test_only_two_are_known_and_nothing_else_is_accepted(clock: FakeClock) -> None:
    tokens, others = LoopbackTokens(clock), LoopbackTokens(clock)
    assert not tokens.accepts(b"")
    made = []
    for _ in range(4):
        made.append(text(tokens))
        clock.advance(minutes=4)
    clock.advance(seconds=-0.0)
    assert sum(map(tokens.accepts, made)) <= 2
    for wrong in (b"", made[-1][:-1], made[-1] + b"=", b"\xff\xfe", text(others)):
        assert not tokens.accepts(wrong)
    assert made[-1].decode() not in repr(tokens.current())
