"""Switches that disable credential providers. Every lookup checks them, so a switch applies without a restart.

$OSTIARY_REGISTRY_PROVIDERS=off disables all providers for a process. Switch files disable providers for the machine
(written by root, for all users) or for this user. `ostiary registry disable` writes them. A line is

    <provider, or * for all> <since> <reason, if one was given>

A file that cannot be read, or that other users may write, is an error for all providers: it may disable them.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError

PROVIDERS_VARIABLE = "OSTIARY_REGISTRY_PROVIDERS"
FILE_VARIABLE = "OSTIARY_REGISTRY_SWITCHES"
# Not in /etc/ostiary, which only the gateway can read: every user must be able to read this file.
MACHINE_FILE = "/etc/ostiary-registry/disabled"
ALL = "*"
# How long the files are cached. A long-running process may look up thousands of images per second.
LOOK_SECONDS = 0.25
LARGEST = 64 * 1024


@dataclass(frozen=True, slots=True)
class SwitchedOff:
    """A provider, or all of them, that is disabled."""

    provider: str
    where: str
    since: str = ""
    reason: str = ""

    def __str__(self) -> str:
        since = f" since {self.since}" if self.since else ""
        reason = f": {self.reason}" if self.reason else ""
        which = "all providers are disabled" if self.provider == ALL else "it is disabled"
        return f"{which} by {self.where}{since}{reason}"

    @property
    def remedy(self) -> str:
        """Return how to enable it again."""
        if self.where == f"${PROVIDERS_VARIABLE}":
            return f"start it without {self.where}"
        return "ostiary registry enable " + ("--all" if self.provider == ALL else printable(self.provider))


def own_file() -> str:
    """Return the switch file that this user may write."""
    if path := os.environ.get(FILE_VARIABLE):
        return os.path.abspath(path)
    if os.geteuid() == 0:
        return MACHINE_FILE
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "ostiary", "registry-disabled")


def switch_files() -> tuple[str, ...]:
    """Return the switch files in effect: none on Windows, where file owner and mode cannot be verified."""
    if not hasattr(os, "geteuid"):
        return ()
    return tuple(dict.fromkeys((MACHINE_FILE, own_file())))


class Switches:
    """The current switches. Thread-safe."""

    def __init__(
        self, files: Sequence[str] | None = None, *, variable: str | None = None, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._files = tuple(switch_files() if files is None else files)
        value = os.environ.get(PROVIDERS_VARIABLE, "") if variable is None else variable
        self._by_variable = _read_variable(value)
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = float("-inf")
        self._seen: dict[str, SwitchedOff] = {}

    def disabled(self, provider: str) -> SwitchedOff | None:
        """Return why *provider* must not be used; None if it may.

        Raises `ConfigurationError` if that cannot be determined.
        """
        entries = self.current()
        return entries.get(ALL) or entries.get(provider) if entries else None

    def current(self) -> dict[str, SwitchedOff]:
        """Return all disabled providers by name."""
        if self._by_variable is not None:
            return {ALL: self._by_variable}
        now = self._clock.monotonic()
        with self._lock:
            if now - self._looked_at > LOOK_SECONDS:
                # Stored only after all files were read, so that after an error the next caller reads them again.
                self._seen = {entry.provider: entry for file in reversed(self._files) for entry in read_file(file)}
                self._looked_at = now
            return self._seen


def read_file(path: str) -> list[SwitchedOff]:
    """Parse the switch file at *path*; empty if there is none. Raises `ConfigurationError`."""
    try:
        # Non-blocking: a FIFO is rejected below.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            problem = _distrust(status)
            if problem:
                raise _unusable(path, problem)
            data = file.read(LARGEST + 1)
    except FileNotFoundError:
        if os.path.islink(path):
            raise _unusable(path, "it is a link to nothing") from None
        return []
    except NotADirectoryError:
        return []
    except OSError as error:
        raise _unusable(path, error.strerror or "it cannot be read") from None
    if len(data) > LARGEST:
        raise _unusable(path, f"it is larger than {LARGEST} bytes")
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise _unusable(path, "it is not UTF-8") from None
    entries = [line.split(None, 2) for line in lines if line.strip() and not line.startswith("#")]
    return [SwitchedOff(words[0], path, *(printable(word) for word in words[1:])) for words in entries]


def _distrust(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {status.st_uid}"
    return "others may write it" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def _read_variable(value: str) -> SwitchedOff | None:
    if value in ("", "on"):
        return None
    if value == "off":
        return SwitchedOff(ALL, f"${PROVIDERS_VARIABLE}")
    raise ConfigurationError(
        f"${PROVIDERS_VARIABLE} has an unknown value", cause="it is neither on nor off", code="registry-switch-unusable"
    )


def _unusable(path: str, cause: str) -> ConfigurationError:
    return ConfigurationError(
        "it cannot be known which credential providers are disabled",
        cause=cause,
        where=printable(path),
        hint="mend it, or remove it to enable all providers; only you or root may own it, and only the owner write it",
        code="registry-switch-unusable",
    )
