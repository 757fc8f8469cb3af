"""Who is logged in at which token: tokens do not wait for each other, and no login is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pkcs11
import pytest
from pkcs11 import exceptions as reasons

from ostiary.errors import PinNeeded
from ostiary.keys.pkcs11 import open_session
from ostiary.model import Secret

PIN = Secret("1234")


class Session:
    def __init__(self) -> None:
        self.is_closed = False

    def get_objects(self, template: object) -> list[str]:
        return ["a private key"]

    def close(self) -> None:
        self.is_closed = True


class Token:
    """What the library calls a token. *log_in* and *open_session* are called when it does that."""

    flags = pkcs11.TokenFlag.LOGIN_REQUIRED | pkcs11.TokenFlag.TOKEN_INITIALIZED

    def __init__(
        self, label: str, log_in: Callable[[], object] = int, open_session: Callable[[], object] = int
    ) -> None:
        self.label, self.serial = label, b"1"
        self.logins: list[Session] = []
        self._log_in, self._open_session = log_in, open_session

    def open(self, user_pin: str | None = None) -> Session:
        if user_pin is None:
            self._open_session()
            return Session()
        self._log_in()
        self.logins.append(Session())
        return self.logins[-1]


def test_a_token_that_hangs_in_the_login_does_not_hold_up_another() -> None:
    started, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        go_on.wait(90)

    thread = threading.Thread(target=open_session, args=(Token("hangs", log_in=hang), PIN), kwargs={"asked": False})
    thread.start()
    assert started.wait(30)
    other = threading.Thread(target=open_session, args=(Token("works"), PIN), kwargs={"asked": False})
    other.start()
    other.join(60)
    is_held_up = other.is_alive()
    go_on.set()
    thread.join()
    other.join()
    assert not is_held_up


def test_a_login_without_a_session_is_ended() -> None:
    def fail() -> None:
        raise reasons.SessionCount

    token = Token("full", open_session=fail)
    with pytest.raises(reasons.SessionCount):
        open_session(token, PIN, asked=False)
    assert [login.is_closed for login in token.logins] == [True]
    with pytest.raises(PinNeeded):
        open_session(token, None, asked=False)
