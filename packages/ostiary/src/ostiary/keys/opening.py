"""Opens the key at an address: loads the plugin, checks the policy, gets the PIN.

A process opens an address only once for all connections: opening it again would prompt for the PIN again.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlsplit

from ostiary.core.bounded_cache import Bounded
from ostiary.core.entry_points import list_entries, load_class
from ostiary.core.process import find_executable
from ostiary.errors import ConfigurationError, KeyUnusable, PinNeeded, PinWrong
from ostiary.keys.address import KeyAddress, read_address
from ostiary.keys.device_key import KeyProvider, MadeFromAddress
from ostiary.keys.held_key import OPEN_SECONDS, SIGN_SECONDS, HeldKey
from ostiary.model import DeviceKey, Secret

# Where the PIN of a device comes from, in this order:
#
#     a file (pin-source of the address)  ->  the environment (OSTIARY_KEY_PIN)  ->  the user at a terminal
#
# Cards lock after a few wrong PINs, so this process never tries a PIN again that a device rejected, until another PIN
# opens the device. Across processes the device itself counts: see the plugin for PKCS#11.

VARIABLE = "OSTIARY_KEY_PIN"
LARGEST_FILE = 4096
MOST_DEVICES = 1000
# Per device, which has most likely locked itself before.
MOST_PINS = 64
# Opened without a PIN. A key does not gain or lose its PIN while we run, so this is cached for good.
NO_PIN = Secret("")

# Prompts the user for the PIN of the device with this label; returns None if that is impossible.
AskForPin = Callable[[str], Secret | None]


class WrongPins:
    """The PINs that each device rejected, as digests with a salt of this process."""

    def __init__(self) -> None:
        self._salt = os.urandom(16)
        self._digests: Bounded[str, tuple[bytes, ...]] = Bounded(MOST_DEVICES)
        self._no_pin = self._digest(NO_PIN)
        self._lock = threading.Lock()

    def renew_lock(self) -> None:
        """Replace the lock in a forked child, where it may be held for ever. The wrong PINs stay."""
        self._lock = threading.Lock()

    def remember(self, device: str, pin: Secret) -> None:
        with self._lock:
            others = [digest for digest in self._digests.get(device) or () if digest != self._digest(pin)]
            # The digest of `NO_PIN` stays first, and is never dropped.
            digests = sorted((*others, self._digest(pin)), key=lambda digest: digest != self._no_pin)
            self._digests.keep(device, (*digests[:1], *digests[1:][-MOST_PINS:]))

    def forget_pins(self, device: str) -> None:
        """Clear the wrong PINs of *device*, because another PIN was right."""
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
    """Resolve *source*, a path relative to *directory* or a ``file:`` URL; raises `KeyUnusable`."""
    path = Path(source).expanduser()
    if source.startswith("file:"):
        url = urlsplit(source)
        if url.netloc not in ("", "localhost"):
            raise KeyUnusable("the PIN cannot be read", cause="pin-source names a file of another machine")
        path = Path(unquote(url.path))
    return str((directory / path).absolute())


def read_pin_file(path: str) -> Secret:
    """Read the PIN from the file; raises `KeyUnusable` if it cannot be read."""
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
    # Editors add a line end; no PIN has one.
    pin = text.rstrip("\r\n")
    if not pin:
        raise KeyUnusable("the PIN cannot be read", cause="the file is empty", where=path, code="key-pin-needed")
    return Secret(pin)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open without blocking: opening a pipe would wait for its writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


TYPE = "key"
SERVER_SIGN_SECONDS = 2.0

# Returns the file to run for a command with its arguments, or the library; raises if the policy denies it.
Judge = Callable[[tuple[str, ...]], str]


def allow_all(program: tuple[str, ...]) -> str:
    executable = find_executable(program[0])
    if executable is None:
        raise not_on_path(program[0])
    return executable


def not_on_path(command: str) -> KeyUnusable:
    """Return the error for a bare name, which would otherwise be looked up in the current directory."""
    return KeyUnusable(
        "the signing command was not found",
        cause=f"there is no command {command!r} on PATH",
        hint="install it, or write where it is: exec:/path/to/command",
        code="key-not-found",
    )


def ask_nobody(label: str) -> Secret | None:
    return None


def use_any_file(path: str) -> None:
    pass


class _Opening:
    def __init__(self) -> None:
        self.lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class OpeningRules:
    """What the caller allows: a gateway never prompts, and a client has a policy for programs of a kubeconfig."""

    judge: Judge = allow_all
    # Checks the pin-source file of an address without a program; raises if it must not be used.
    judge_pin_file: Callable[[str], None] = use_any_file
    ask: AskForPin = ask_nobody
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    wrong: WrongPins = WRONG_PINS
    seconds: float = SIGN_SECONDS
    open_seconds: float = OPEN_SECONDS


_lock = threading.Lock()
_open_keys: weakref.WeakValueDictionary[KeyAddress, HeldKey] = weakref.WeakValueDictionary()
# One per address that is being opened: a prompt for one PIN does not block the others.
_openings: weakref.WeakValueDictionary[KeyAddress, _Opening] = weakref.WeakValueDictionary()


def _start_anew() -> None:
    """Reset after a fork: the child has no key threads, and its locks may be held for ever."""
    global _lock, _open_keys, _openings
    _lock = threading.Lock()
    _open_keys, _openings = weakref.WeakValueDictionary(), weakref.WeakValueDictionary()
    WRONG_PINS.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def open_key(address: str | KeyAddress, rules: OpeningRules | None = None) -> HeldKey:
    """Return the open key at *address*, shared until the last reference is gone.

    Raises `KeyUnusable`, `ConfigurationError`.
    """
    address = read_address(address) if isinstance(address, str) else address
    rules = rules or OpeningRules()
    provider = _provider(address)
    # Check even if the key is open already: another caller may have allowed what this one does not.
    executable = rules.judge(provider.program) if provider.program else ""
    pin_path = pin_file(provider.pin_source, address.directory) if provider.pin_source else ""
    if pin_path and not provider.program:
        # The author of the address could make the device try the content of any file as its PIN.
        rules.judge_pin_file(pin_path)
    with _lock:
        opening = _openings.get(address)
        if opening is None:
            opening = _openings[address] = _Opening()
    with opening.lock:
        key = _open_keys.get(address)
        if key is None or key.is_closed:
            opener = _Opener(address, provider, executable, rules, pin_path)
            key = HeldKey(str(address), opener.open, seconds=rules.seconds, open_seconds=rules.open_seconds)
            _open_keys[address] = key
    return key


def open_configured_key(address: KeyAddress) -> HeldKey:
    """Open a key from the operator's configuration: no prompt for its PIN, and a short timeout.

    A server does TLS handshakes in its event loop, so all of its clients wait while the key signs.
    """
    return open_key(address, OpeningRules(seconds=SERVER_SIGN_SECONDS))


def check_address(text: str | KeyAddress) -> None:
    """Raise `ConfigurationError` or `KeyUnusable` if the address is invalid. Opens nothing."""
    _provider(read_address(text) if isinstance(text, str) else text)


@dataclass(frozen=True, slots=True)
class _Opener:
    address: KeyAddress
    provider: KeyProvider
    executable: str
    rules: OpeningRules
    pin_path: str = ""

    def open(self) -> DeviceKey:
        if self.pin_path:
            return self._open_with(read_pin_file(self.pin_path))
        pin = pin_in(self.rules.environ)
        return self._open_or_ask() if pin is None else self._open_with_variable(pin)

    def _open_with_variable(self, pin: Secret) -> DeviceKey:
        # Try the variable first: a TPM counts a try without a password, too.
        try:
            return self._open_with(pin)
        except PinWrong as refused:
            # The variable is for every key of the process, and this one may have no PIN.
            try:
                return self._open_without_pin()
            except PinNeeded:
                raise refused from None

    def _open_or_ask(self) -> DeviceKey:
        try:
            return self._open_without_pin()
        except PinNeeded as error:
            needed = error
        pin = self.rules.ask(needed.label or str(self.address))
        if pin is None:
            raise nobody_to_ask(needed, self.address)
        return self._open(pin, asked=True)

    def _open_without_pin(self) -> DeviceKey:
        if not self.rules.wrong.is_wrong(str(self.address), NO_PIN):
            # A TPM cannot report whether a key has a password: it counts the try without one as a wrong password.
            with suppress(PinWrong):
                return self._open(None, asked=False)
        raise PinNeeded("the key has a PIN")

    def _open_with(self, pin: Secret) -> DeviceKey:
        check_not_wrong(self.address, pin, self.rules.wrong)
        return self._open(pin, asked=False)

    def _open(self, pin: Secret | None, *, asked: bool) -> DeviceKey:
        wrong, name = self.rules.wrong, str(self.address)
        try:
            key = self.provider.open(executable=self.executable, pin=pin, asked=asked)
        except PinWrong:
            wrong.remember(name, pin or NO_PIN)
            raise
        if pin is not None:
            wrong.forget_pins(name)
        return key


def _provider(address: KeyAddress) -> KeyProvider:
    if address.scheme not in {entry.name for entry in list_entries(TYPE)}:
        known = ", ".join(sorted({f"{entry.name}:" for entry in list_entries(TYPE)}))
        raise ConfigurationError(
            "the address of a key has an unknown scheme",
            cause=f"{address.scheme}: is none of {known}",
            where=str(address),
            hint="correct it; a file of such a name is written with ./ before it",
            code="key-address-invalid",
        )
    provider: type[MadeFromAddress] = load_class(TYPE, address.scheme)
    try:
        return cast("KeyProvider", provider.from_address(address.rest, address.directory))
    except ValueError as error:
        raise ConfigurationError(
            "the address of a key cannot be read", cause=str(error), where=str(address), code="key-address-invalid"
        ) from None
