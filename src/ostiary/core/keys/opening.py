"""From the address of a key to a key that signs: finds the plugin, asks the policy, gets the PIN, opens.

One process opens an address once, however many connections use it: the second opening would ask for the PIN again.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from ostiary.core.entry_points import list_entries, load_class
from ostiary.core.keys.address import KeyAddress, read_address
from ostiary.core.keys.held_key import OPEN_SECONDS, SIGN_SECONDS, HeldKey
from ostiary.core.keys.pins import (
    NO_PIN,
    WRONG_PINS,
    AskForPin,
    WrongPins,
    check_not_wrong,
    nobody_to_ask,
    pin_file,
    pin_in,
    read_pin_file,
)
from ostiary.core.process import find_executable
from ostiary.errors import ConfigurationError, KeyUnusable, PinNeeded, PinWrong
from ostiary.interfaces.keys.device_key import KeyProvider, MadeFromAddress
from ostiary.model import DeviceKey, Secret

TYPE = "key"
SERVER_SIGN_SECONDS = 2.0

# Which file to run for a command with its arguments, or for a library; raises if it must not run.
Judge = Callable[[tuple[str, ...]], str]


def allow_all(program: tuple[str, ...]) -> str:
    executable = find_executable(program[0])
    if executable is None:
        raise not_on_path(program[0])
    return executable


def not_on_path(command: str) -> KeyUnusable:
    """For a bare name: run as it is spelled, it would be looked for in the current directory."""
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
    """What the caller allows: a gateway asks nobody, a client has a policy for what a kubeconfig makes it run."""

    judge: Judge = allow_all
    # Of an address that names no program, the file of pin-source; raises if it must not be used.
    judge_pin_file: Callable[[str], None] = use_any_file
    ask: AskForPin = ask_nobody
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    wrong: WrongPins = WRONG_PINS
    seconds: float = SIGN_SECONDS
    open_seconds: float = OPEN_SECONDS


_lock = threading.Lock()
_open_keys: weakref.WeakValueDictionary[KeyAddress, HeldKey] = weakref.WeakValueDictionary()
# One for each address that is being opened: a person who types the PIN of one does not hold up the others.
_openings: weakref.WeakValueDictionary[KeyAddress, _Opening] = weakref.WeakValueDictionary()


def _start_anew() -> None:
    """In a forked child, where the threads of the keys are not, and nobody would let go of a lock."""
    global _lock, _open_keys, _openings
    _lock = threading.Lock()
    _open_keys, _openings = weakref.WeakValueDictionary(), weakref.WeakValueDictionary()
    WRONG_PINS.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def open_key(address: str | KeyAddress, rules: OpeningRules | None = None) -> HeldKey:
    """The key at *address*, open, until nobody has it any more. Raises `KeyUnusable`, `ConfigurationError`."""
    address = read_address(address) if isinstance(address, str) else address
    rules = rules or OpeningRules()
    provider = _provider(address)
    # Also where it is open already: another caller may have allowed what this one does not.
    executable = rules.judge(provider.program) if provider.program else ""
    pin_path = pin_file(provider.pin_source, address.directory) if provider.pin_source else ""
    if pin_path and not provider.program:
        # Whoever wrote the address could have the device try the content of any file as its PIN.
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
    """The key that a configuration of the operator names. Nobody is asked for its PIN, and nobody waits for long.

    A server shakes hands in its event loop, so all of its clients wait while the key signs.
    """
    return open_key(address, OpeningRules(seconds=SERVER_SIGN_SECONDS))


def check_address(text: str | KeyAddress) -> None:
    """Raises `ConfigurationError` or `KeyUnusable` if the address cannot be read. Nothing is opened."""
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
        # First with it: a TPM counts a try without a password, too.
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
            # A TPM cannot say whether a key has a password: it counts the try without one as a wrong one.
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
