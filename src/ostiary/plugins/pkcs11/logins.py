"""Who is logged in at which token. PKCS#11 counts logins by process and not by session, and so do we.

The first key of a token logs in, in a session that does nothing else; closing it logs all of them out, so that is done
with the last key.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass

import pkcs11
from pkcs11 import Attribute, ObjectClass
from pkcs11 import exceptions as reasons

from ostiary.errors import KeyUnusable, PinNeeded
from ostiary.model import Secret


@dataclass(slots=True)
class _TokenLogin:
    session: pkcs11.Session
    keys: int = 0


_lock = threading.Lock()
_logins: dict[tuple[str, bytes], _TokenLogin] = {}
# One for each token: a reader where a person types the PIN does not hold up the other tokens.
_token_locks: dict[tuple[str, bytes], threading.Lock] = {}
# Which process has initialized each library: a forked child does it again.
_initialized_by: dict[str, int] = {}


def _start_anew() -> None:
    """In a forked child: PKCS#11 has nobody logged in there, and nobody would let go of the locks."""
    global _lock
    _lock = threading.Lock()
    _token_locks.clear()
    _logins.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def library_of_this_process(module: str) -> pkcs11.Object:
    """The library, loaded and initialized; raises what the library raises."""
    library = pkcs11.lib(module)
    with _lock:
        if _initialized_by.setdefault(module, os.getpid()) != os.getpid():
            try:
                # Most libraries do not notice the fork, and still have the parent's sessions.
                library.reinitialize()
            except reasons.CryptokiNotInitialized:
                library.initialize()
            _initialized_by[module] = os.getpid()
    return library


@dataclass(frozen=True, slots=True)
class TokenSession:
    """A session for one key. `close` ends it, and the login with the last one."""

    session: pkcs11.Session
    name: tuple[str, bytes]

    def close(self) -> None:
        with suppress(reasons.PKCS11Error):
            self.session.close()
        with _lock_of(self.name):
            login = _logins.get(self.name)
            if login is not None:
                login.keys -= 1
                _end_if_unused(self.name, login)


def open_session(token: pkcs11.Token, pin: Secret | None, *, asked: bool) -> TokenSession:
    """A session that sees private keys. Raises `PinNeeded`, `KeyUnusable`, and what the library raises."""
    name = (token.label, token.serial)
    if pkcs11.TokenFlag.LOGIN_REQUIRED not in token.flags:
        return TokenSession(token.open(), name)
    with _lock_of(name):
        login = _logins.get(name)
        if pin is None:
            if login is None or not _is_valid(login):
                raise PinNeeded("the token asks for a PIN", label=token.label)
        elif login is None or not _is_valid(login):
            _check_tries(token, asked=asked)
            login = _TokenLogin(token.open(user_pin=pin.reveal()), keys=0 if login is None else login.keys)
            _logins[name] = login
        try:
            session = token.open()
        except BaseException:
            _end_if_unused(name, login)
            raise
        login.keys += 1
    return TokenSession(session, name)


def _is_valid(login: _TokenLogin) -> bool:
    """Whether it still counts: a token that was pulled out and put back knows nothing of it."""
    try:
        # Private objects are seen only by those who are logged in.
        return any(login.session.get_objects({Attribute.CLASS: ObjectClass.PRIVATE_KEY}))
    except reasons.PKCS11Error:
        return False


def _end_if_unused(name: tuple[str, bytes], login: _TokenLogin) -> None:
    if login.keys <= 0:
        del _logins[name]
        with suppress(reasons.PKCS11Error):
            login.session.close()


def _lock_of(name: tuple[str, bytes]) -> threading.Lock:
    with _lock:
        return _token_locks.setdefault(name, threading.Lock())


def _check_tries(token: pkcs11.Token, *, asked: bool) -> None:
    """A token counts wrong PINs. What no person has just typed may cost it one try, never the last ones."""
    flags = token.flags
    if pkcs11.TokenFlag.USER_PIN_LOCKED in flags:
        raise KeyUnusable(
            "the PIN of the token is locked",
            cause=f"too many wrong PINs were tried at the token {token.label!r}",
            hint="unlock it with the tool of its maker, or with pkcs11-tool --init-pin",
            code="key-pin-locked",
        )
    is_low = pkcs11.TokenFlag.USER_PIN_COUNT_LOW in flags or pkcs11.TokenFlag.USER_PIN_FINAL_TRY in flags
    if is_low and not asked:
        raise KeyUnusable(
            "the PIN is not tried: it could lock the token",
            cause=f"the last PIN that the token {token.label!r} was given was wrong, and nobody typed this one",
            hint="correct the PIN, then log in once by hand: pkcs11-tool --login --test",
            code="key-pin-locked",
        )
