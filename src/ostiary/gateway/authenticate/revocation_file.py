"""The revocation file: each line of it revokes something, for operators without the API or the command.

    # one line each
    user mallory                          group contractors              session 4Nq0rJ6uYxT1sVb8Lw2kZe
    token ost_...  (or its SHA-256)       before 2026-11-15T10:00:00Z

Run by the app. A line counts once, when it appears, for whichever worker sees it first: it ends what began until then,
and those who sign in afterwards are not affected. To revoke something twice, remove the line and add it again. The
lines that are there when the gateway starts count from the last change of the file, and not from the start. A time in
the future is refused.

A name is taken exactly as it stands after one space. One that begins or ends with a space or a quotation mark is
written as a JSON string. A line that cannot be understood is reported by its number, never by its text, which may
be a token; the other lines still count.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.tokens import Tokens, check_text, digest_hex
from ostiary.core.watched_file import UNSETTLED_SECONDS, WatchedFile
from ostiary.errors import OstiaryError
from ostiary.interfaces.token_store import RevocationKind

POLL_SECONDS = 0.25
# How many checks to wait for another worker. Whoever else holds the lock must not hold up a revocation.
MAX_WAITS = 20
MAX_BYTES = 16 * 1024 * 1024
# RFC 3339, with the zone that most people forget.
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)")

log = logging.getLogger("ostiary.gateway")


@dataclass(frozen=True, slots=True)
class Line:
    """A line that was understood. `at` is None where the time of its appearance counts."""

    kind: RevocationKind
    value: str
    at: datetime | None = None


def parse_line(text: str) -> Line | None:
    """What a line revokes; None for a comment or an empty line. Raises `ValueError`, which quotes nothing of it."""
    if not text.strip() or text.startswith("#"):
        return None
    word, _, rest = text.partition(" ")
    if word == "before":
        return Line(RevocationKind.BEFORE, "", _time(rest.strip()))
    if word == "token":
        return Line(RevocationKind.TOKEN, digest_hex(rest.strip()))
    if word in ("session", "user", "group"):
        return Line(RevocationKind(word), _name(rest))
    raise ValueError("a line must begin with token, session, user, group or before, and one space")


def _name(text: str) -> str:
    name = _json_string(text) if text.startswith('"') else text
    if not name or (name is text and text != text.strip()):
        # An operator who revokes "mallory " would believe that it worked, though it affects nobody.
        raise ValueError("a name is missing, or begins or ends with a space: write it as a JSON string if it does")
    check_text(name)
    return name


def _json_string(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, str):
        raise ValueError("a name that begins with a quotation mark must be a JSON string")
    return value


def _time(text: str) -> datetime:
    if _TIME.fullmatch(text):
        try:
            return datetime.fromisoformat(text.upper())
        except ValueError:
            pass
    raise ValueError("a time is written as 2026-11-15T10:00:00Z")


# --- the file ---


@dataclass(frozen=True, slots=True)
class _Content:
    """What was read. `changed_at` is when the file was last put in place or written to."""

    data: bytes
    changed_at: datetime


class RevocationFile:
    """Puts the lines of the file at *path* into force. A file that does not exist says nothing."""

    def __init__(self, path: str | os.PathLike[str], tokens: Tokens, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = os.fspath(path)
        self._tokens = tokens
        self._clock = clock
        self._file = WatchedFile(self._path, _read, clock=clock)
        self._seen: _Content | None = None
        # The lines of the last check, and whether each is settled: in force, or reported as invalid.
        self._lines: dict[bytes, bool] = {}
        # The sequence number of the last revocation when the file was last checked.
        self._sequence = 0
        self._trouble: str | None = None
        self._waits = 0

    async def run(self, *, every: float = POLL_SECONDS) -> None:
        """Check again and again until cancelled."""
        while True:
            await self.check_now()
            await asyncio.sleep(every)

    async def check_now(self) -> int:
        """Put into force what is new; returns how many lines. Never raises for what the file holds."""
        try:
            content = self._file.current()
        except OSError as error:
            # The lines in force stay known: when the file can be read again, they are not new.
            self._note(f"cannot be read: {error.strerror}")
            return 0
        if content == self._seen and all(self._lines.values()):
            return 0
        with _only_worker(self._path) as alone:
            if not alone and self._waits < MAX_WAITS:
                self._waits += 1
                return 0
            self._waits = 0
            return await self._apply(content)

    async def _apply(self, content: _Content) -> int:
        now = self._clock.now()
        # What appears now ends what began before now, whatever any clock says.
        appeared_at = min(content.changed_at, now) if self._seen is None else None
        settled = content == self._seen or (now - content.changed_at).total_seconds() > UNSETTLED_SECONDS
        self._seen, earlier, self._lines = content, self._lines, {}
        applied = 0
        for number, line, whole in _lines_of(content.data):
            if earlier.get(line) or self._lines.get(line):
                self._lines[line] = True
            elif not whole and not settled:
                # Somebody may be in the middle of writing it. At the next check it is the same, or longer.
                self._lines[line] = False
            else:
                self._lines[line] = False
                applied += await self._put_into_force(number, line, appeared_at)
        with suppress(OstiaryError):
            self._sequence = await self._tokens.sequence()
        return applied

    async def _put_into_force(self, number: int, data: bytes, appeared_at: datetime | None) -> bool:
        try:
            line = parse_line(data.decode("utf-8"))
        except ValueError as error:
            why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
            log.error("line %d of the revocation file %s is invalid: %s", number, self._path, why)
            self._lines[data] = True
            return False
        if line is not None and not await self._revoke(number, line, appeared_at):
            return False
        self._lines[data] = True
        return line is not None

    async def _revoke(self, number: int, line: Line, appeared_at: datetime | None) -> bool:
        by = f"revocation file, line {number}"
        try:
            if appeared_at is None and await self._is_done(line, by):
                return True
            ended = await self._tokens.revoke(line.kind, line.value, by=by, at=line.at or appeared_at)
        except ValueError as error:
            log.error("line %d of the revocation file %s is refused: %s", number, self._path, error)
            return True
        except OstiaryError as error:
            # It is tried again at every check until it is in force.
            self._note(f"cannot take effect: {error.summary}: {error.cause}")
            return False
        self._trouble = None
        log.info("line %d of the revocation file %s (%s) ended %d", number, self._path, line.kind.value, ended)
        return True

    async def _is_done(self, line: Line, by: str) -> bool:
        """Whether another worker has revoked it already: a second time would end what has begun since then.

        A mark with a date does not count. It is of a worker that started when the line was there already, and ends
        less: if the clock was set back, nothing at all.
        """
        marks = await self._tokens.marks(line.kind, line.value)
        return any(mark.by == by and mark.at is None and mark.sequence > self._sequence for mark in marks)

    def _note(self, trouble: str) -> None:
        # Once, and not at every check while it stays the same.
        if trouble != self._trouble:
            log.error("the revocation file %s %s", self._path, trouble)
        self._trouble = trouble


@contextmanager
def _only_worker(path: str) -> Iterator[bool]:
    """Whether no other worker of this machine puts lines into force meanwhile.

    If two of them asked for the marks at once, neither would see that of the other, and the later revocation would end
    the session of whoever has signed in again since the earlier one.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed below, which lets go of the lock
    except OSError:
        # Without the file there are no lines.
        yield True
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            # Some network file systems have no locks. To revoke twice is better than not at all.
            pass
        yield True


def _read(path: str) -> _Content:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return _Content(b"", datetime.fromtimestamp(0, UTC))
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_BYTES // 1024**2} MiB")
    # The later of the two: a file that was prepared before and is now moved into place changes only its ctime.
    changed_at = datetime.fromtimestamp(max(status.st_mtime, status.st_ctime), UTC)
    return _Content(data.removeprefix(b"\xef\xbb\xbf"), changed_at)


def _lines_of(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Each line with its number, and whether its end has been written."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if line:
            yield number, line.removesuffix(b"\r"), number < len(lines)
