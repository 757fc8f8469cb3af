"""Where the PIN of a device comes from, and which PINs were wrong.

    a file (pin-source of the address)  ->  the environment (OSTIARY_KEY_PIN)  ->  a person at a terminal

Cards lock after a few wrong PINs, so a PIN that a device refused is never given to it again by this process: it is
remembered until another one comes. Between processes the device itself remembers: see the plugin for PKCS#11.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from urllib.parse import unquote, urlsplit

from ostiary.core.caching.bounded import Bounded
from ostiary.core.keys.address import KeyAddress
from ostiary.errors import KeyUnusable, PinNeeded, PinWrong
from ostiary.model import Secret

VARIABLE = "OSTIARY_KEY_PIN"
LARGEST_FILE = 4096
MOST_REMEMBERED = 1000

# Asks a person for the PIN of the device with this label; None where nobody can be asked.
AskForPin = Callable[[str], Secret | None]


class WrongPins:
    """The last PIN that each device refused, as a digest with a salt of this process."""

    def __init__(self) -> None:
        self._salt = os.urandom(16)
        self._digests: Bounded[str, bytes] = Bounded(MOST_REMEMBERED)
        self._lock = threading.Lock()

    def remember(self, device: str, pin: Secret) -> None:
        with self._lock:
            self._digests.keep(device, self._digest(pin))

    def forget(self, device: str) -> None:
        with self._lock:
            self._digests.pop(device, None)

    def is_wrong(self, device: str, pin: Secret) -> bool:
        with self._lock:
            return self._digests.get(device) == self._digest(pin)

    def _digest(self, pin: Secret) -> bytes:
        return hashlib.blake2b(pin.reveal().encode("utf-8", "surrogatepass"), key=self._salt).digest()


WRONG_PINS = WrongPins()


def pin_in(environ: Mapping[str, str]) -> Secret | None:
    text = environ.get(VARIABLE, "")
    return Secret(text) if text else None


def check_not_wrong(address: KeyAddress, pin: Secret, wrong: WrongPins) -> None:
    if wrong.is_wrong(str(address), pin):
        raise PinWrong(
            "the PIN was refused before, and is not tried again",
            cause="the device refused this PIN; another try with it could lock the device",
            where=str(address),
            hint=f"correct the file of pin-source, or {VARIABLE}",
        )


def nobody_to_ask(error: PinNeeded, address: KeyAddress) -> PinNeeded:
    return PinNeeded(
        "the key cannot be opened without a PIN",
        cause=error.cause or "the device asks for one, and this process has no terminal where it could ask a person",
        where=str(address),
        hint=f"set pin-source=file:/path in the address, or {VARIABLE} in the environment",
        label=error.label,
    )


def _path(source: str) -> str:
    if not source.startswith("file:"):
        return source
    url = urlsplit(source)
    if url.netloc not in ("", "localhost"):
        raise KeyUnusable("the PIN cannot be read", cause="pin-source names a file of another machine")
    return unquote(url.path)


def read_pin_file(source: str) -> Secret:
    """The PIN in the file that *source* names; raises `KeyUnusable` if it cannot be read."""
    path = _path(source)
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LARGEST_FILE)
    except (OSError, UnicodeDecodeError) as error:
        cause = (error.strerror if isinstance(error, OSError) else None) or "it is not text"
        raise KeyUnusable(
            "the PIN cannot be read", cause=cause, where=path, hint="pin-source names this file", code="key-pin-needed"
        ) from None
    # An editor ends the line; no PIN ends with one.
    pin = text.rstrip("\r\n")
    if not pin:
        raise KeyUnusable("the PIN cannot be read", cause="the file is empty", where=path, code="key-pin-needed")
    return Secret(pin)
