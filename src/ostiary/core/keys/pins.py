"""Where the PIN of a device comes from, and which PINs were wrong.

    a file (pin-source of the address)  ->  the environment (OSTIARY_KEY_PIN)  ->  a person at a terminal

Cards lock after a few wrong PINs, so a PIN that a device refused is never given to it again by this process: it is
remembered until another one opens it. Between processes the device itself remembers: see the plugin for PKCS#11.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ostiary.core.caching.bounded import Bounded
from ostiary.core.keys.address import KeyAddress
from ostiary.errors import KeyUnusable, PinNeeded, PinWrong
from ostiary.model import Secret

VARIABLE = "OSTIARY_KEY_PIN"
LARGEST_FILE = 4096
MOST_DEVICES = 1000
# Of one device, which most likely has locked itself before.
MOST_PINS = 64
# Opened without one. A key does not get or lose its PIN while we run, so this is remembered for good.
NO_PIN = Secret("")

# Asks a person for the PIN of the device with this label; None where nobody can be asked.
AskForPin = Callable[[str], Secret | None]


class WrongPins:
    """The PINs that each device refused, as digests with a salt of this process."""

    def __init__(self) -> None:
        self._salt = os.urandom(16)
        self._digests: Bounded[str, tuple[bytes, ...]] = Bounded(MOST_DEVICES)
        self._no_pin = self._digest(NO_PIN)
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        """In a forked child, where nobody would let go of it. What was wrong stays wrong there."""
        self._lock = threading.Lock()

    def remember(self, device: str, pin: Secret) -> None:
        with self._lock:
            others = [digest for digest in self._digests.get(device) or () if digest != self._digest(pin)]
            # The one of `NO_PIN` stays the first, which is never dropped.
            digests = sorted((*others, self._digest(pin)), key=lambda digest: digest != self._no_pin)
            self._digests.keep(device, (*digests[:1], *digests[1:][-MOST_PINS:]))

    def forget_pins(self, device: str) -> None:
        """Another PIN was right."""
        with self._lock:
            if self._no_pin in (self._digests.get(device) or ()):
                self._digests.keep(device, (self._no_pin,))
            else:
                self._digests.pop(device, None)

    def is_wrong(self, device: str, pin: Secret) -> bool:
        with self._lock:
            return self._digest(pin) in (self._digests.get(device) or ())

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


def pin_file(source: str, directory: Path) -> str:
    """The file that *source* names, a path from *directory* or a ``file:`` URL; raises `KeyUnusable`."""
    path = Path(source).expanduser()
    if source.startswith("file:"):
        url = urlsplit(source)
        if url.netloc not in ("", "localhost"):
            raise KeyUnusable("the PIN cannot be read", cause="pin-source names a file of another machine")
        path = Path(unquote(url.path))
    return str((directory / path).absolute())


def read_pin_file(path: str) -> Secret:
    """The PIN in the file; raises `KeyUnusable` if it cannot be read."""
    try:
        with open(path, encoding="utf-8", opener=_open_without_waiting) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            text = file.read(LARGEST_FILE) if is_regular else ""
    except (OSError, ValueError) as error:
        cause = (error.strerror if isinstance(error, OSError) else None) or "it is not text"
        raise KeyUnusable(
            "the PIN cannot be read", cause=cause, where=path, hint="pin-source names this file", code="key-pin-needed"
        ) from None
    if not is_regular:
        raise KeyUnusable("the PIN cannot be read", cause="it is not a regular file", where=path, code="key-pin-needed")
    # An editor ends the line; no PIN ends with one.
    pin = text.rstrip("\r\n")
    if not pin:
        raise KeyUnusable("the PIN cannot be read", cause="the file is empty", where=path, code="key-pin-needed")
    return Secret(pin)


def _open_without_waiting(path: str, flags: int) -> int:
    """A pipe would let us wait for whoever writes into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
