"""Writes the switch file of this user: ``ostiary registry disable`` and ``enable``.

The file is written whole or not at all, under a lock: two operators at the same moment do not undo each other. It is
gone when nothing is off, so that a machine where nothing was ever switched looks like one where all was undone.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.provider_switches import ALL, MACHINE_FILE, SwitchedOff, read_file
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError

HEADER = "# Written by ostiary registry disable. A line: provider (* is all), since when, and why.\n"
LONGEST_REASON = 200


def disable(path: str, provider: str, *, reason: str = "", clock: Clock = SYSTEM_CLOCK) -> SwitchedOff:
    """Switch *provider* off, or `ALL`; says what is in the file now. One that is off already keeps its time."""
    since = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    entry = SwitchedOff(provider, path, since, " ".join(printable(reason).split())[:LONGEST_REASON])
    with _editing(path):
        entries = {each.provider: each for each in read_file(path)}
        before = entries.get(provider)
        if before is not None and not reason:
            return before
        entries[provider] = entry
        _write(path, entries)
    return entry


def enable(path: str, provider: str) -> bool:
    """Switch *provider* on again; with `ALL`, everything that the file switches off. Says whether anything changed."""
    with _editing(path):
        entries = {each.provider: each for each in read_file(path)}
        rest = {} if provider == ALL else {name: each for name, each in entries.items() if name != provider}
        if rest != entries:
            _write(path, rest)
        return rest != entries


@contextmanager
def _editing(path: str) -> Iterator[None]:
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, exist_ok=True)
        # The folder, and not the file, which is replaced.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if path == MACHINE_FILE:
                # Whatever the umask: who cannot look into the folder can use no provider.
                os.fchmod(descriptor, 0o755)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(
            "the switch file cannot be written",
            cause=error.strerror or str(error),
            where=printable(path),
            hint="root switches for the whole machine; as another user, for yourself",
            code="registry-switch-unusable",
        ) from None


def _write(path: str, entries: dict[str, SwitchedOff]) -> None:
    if not entries:
        os.unlink(path)
        return
    lines = [f"{each.provider} {each.since} {each.reason}".rstrip() + "\n" for each in entries.values()]
    new = f"{path}.new"
    # Readable by all: everybody must obey the machine's file.
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, 0o644)
        file.write(HEADER + "".join(lines))
        file.flush()
        os.fsync(descriptor)
    os.replace(new, path)
