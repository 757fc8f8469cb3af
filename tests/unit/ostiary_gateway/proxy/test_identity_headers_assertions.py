from __future__ import annotations

from datetime import timedelta

import pytest

from ostiary.errors import ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.proxy.identity_headers import REUSE_SECONDS, Assertions
from ostiary_gateway.testing import FakeClock

ANN, BOB = UserInfo("ann", groups=("dev",)), UserInfo("bob")


class Signer:
    def __init__(self) -> None:
        self.signed: list[tuple[str, UserInfo, str]] = []
        self.fails = False

    def __call__(self, session: Session, user: UserInfo, audience: str) -> str:
        if self.fails:
            raise ProviderError("no JWT can be signed")
        self.signed.append((session.id, user, audience))
        return f"jwt-{len(self.signed)}"


def session(name: str, clock: FakeClock) -> Session:
    return Session(name, ANN, "staff", clock.now(), clock.now() + timedelta(hours=1))


def test_it_is_signed_once_for_a_session_and_again_after_a_while(clock: FakeClock) -> None:
    signer = Signer()
    assertions = Assertions("wiki", signer, clock)
    first = session("s1", clock)
    lines = {assertions.line(first, ANN) for _ in range(100)}
    assert lines == {b"X-Ostiary-Assertion: jwt-1\r\n"}
    assert signer.signed == [("s1", ANN, "wiki")]
    clock.advance(seconds=REUSE_SECONDS)
    assert assertions.line(first, ANN) == b"X-Ostiary-Assertion: jwt-2\r\n"


def test_another_session_user_or_group_has_its_own(clock: FakeClock) -> None:
    signer = Signer()
    assertions = Assertions("wiki", signer, clock)
    first, second = session("s1", clock), session("s2", clock)
    told = [
        assertions.line(first, ANN),
        assertions.line(second, ANN),
        assertions.line(first, BOB),
        assertions.line(first, UserInfo("ann")),
    ]
    assert len(set(told)) == 4


def test_without_a_key_there_is_none(clock: FakeClock) -> None:
    signer = Signer()
    signer.fails = True
    with pytest.raises(ProviderError):
        Assertions("wiki", signer, clock).line(session("s1", clock), ANN)
