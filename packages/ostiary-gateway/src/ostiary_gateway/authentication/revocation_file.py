"""The revocation file: each line revokes something, for operators without the API or the command.

    # one line each
    user mallory                          group contractors              session 4Nq0rJ6uYxT1sVb8Lw2kZe
    token ost_...  (or its SHA-256)       before 2026-11-15T10:00:00Z

Each occurrence of a line revokes once, when it appears; later sign-ins are not affected. Appending an existing line
revokes again; removing one decrements its count. The counts are in the token store (`LineCounts`), so all workers and
replicas apply an occurrence once, and a restart applies only what was appended meanwhile, as of the last change of the
file. A time in the future is rejected.

Replicas may have copies of the file that change at different times, like those of a ConfigMap. A worker compares its
file with what it read before, and the store only determines whether another worker has applied the new occurrence.

A name is the exact text after one space. A name that begins or ends with a space or a quotation mark is written as a
JSON string. Invalid lines are logged by number, never by text, which may be a token; other lines still apply.
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
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.watched_file import UNSETTLED_SECONDS, WatchedFile
from ostiary.errors import OstiaryError
from ostiary_gateway.capabilities import ability
from ostiary_gateway.interfaces.store_capabilities import ObjectStore, StoredObject
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import Tokens, check_text, digest_hex

POLL_SECONDS = 0.25
# Checks to wait for another worker. Locks and claims of a dead worker must not block a revocation.
MAX_WAITS = 20
# Copies of the file on other replicas change within this time. A line that appears later revokes again.
LONGEST_COPYING = timedelta(minutes=10)
# The kind of stored objects that hold the counts.
KIND = "revocation-line"
MAX_BYTES = 16 * 1024 * 1024
# RFC 3339, with a mandatory time zone.
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)")

log = logging.getLogger("ostiary.gateway")


@dataclass(frozen=True, slots=True)
class Line:
    """A valid line. `at` is None if the time of its appearance applies."""

    kind: RevocationKind
    value: str
    at: datetime | None = None


def parse_line(text: str) -> Line | None:
    """Parse a line; None for a comment or an empty line.

    Raises `ValueError` with a message that quotes nothing of it.
    """
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
        # An operator who revokes "mallory " would believe that it worked, though it affects no user.
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
class LineCount:
    """The number of occurrences of a line that were applied, the last of them at `at`.

    `claimed` while a worker applies the last one; `dated` if that one affected only what had begun by the last change
    of the file.
    """

    count: int
    at: datetime
    claimed: bool
    dated: bool
    version: int = 0


class LineCounts:
    """The counts of lines as objects of the token store, by digest, because a line may be a token.

    A worker claims an occurrence, revokes, and confirms. An abandoned claim is taken over by another worker.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    async def applied(self) -> dict[str, int]:
        """Return the number of applied occurrences of each line."""
        applied: dict[str, int] = {}
        after = ""
        while page := await self._objects.list_objects(KIND, after=after):
            after = page[-1].name
            for stored in page:
                entry = _decoded(stored)
                applied[stored.name] = entry.count - entry.claimed
        return applied

    async def find(self, name: str) -> LineCount | None:
        stored = await self._objects.find_object(KIND, name)
        return None if stored is None else _decoded(stored)

    async def swap(self, name: str, found: LineCount | None, new: LineCount) -> LineCount | None:
        """Replace *found* by *new*; None without a change if another process has changed it."""
        data = json.dumps([new.count, new.at.isoformat(), new.claimed, new.dated]).encode()
        version = await self._objects.put_object(KIND, name, data, version=0 if found is None else found.version)
        return None if version is None else replace(new, version=version)

    async def lower(self, name: str, count: int) -> None:
        while (found := await self.find(name)) is not None and found.count > count:
            if not count:
                done = await self._objects.delete_object(KIND, name, version=found.version)
            else:
                done = await self.swap(name, found, replace(found, count=count, claimed=False)) is not None
            if done:
                return


def _decoded(stored: StoredObject) -> LineCount:
    count, at, claimed, dated = json.loads(stored.data)
    return LineCount(count, datetime.fromisoformat(at), claimed, dated, stored.version)


@dataclass(frozen=True, slots=True)
class _Content:
    """File content. `changed_at` is when the file was last moved into place or written; None if there is no file."""

    data: bytes
    changed_at: datetime | None


@dataclass(slots=True)
class _Occurrences:
    """A line of the file, with its number of occurrences and the line number of the last one."""

    data: bytes
    count: int = 0
    number: int = 0


class RevocationFile:
    """Applies the lines of the file at *path*. A missing file is an empty one.

    If the token store does not store objects, each process counts for itself.
    """

    def __init__(self, path: str | os.PathLike[str], tokens: Tokens, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._path = os.fspath(path)
        self._tokens = tokens
        self._clock = clock
        objects = ability(tokens.store, ObjectStore)
        self._counts = None if objects is None else LineCounts(objects)
        self._file = WatchedFile(self._path, _read, clock=clock)
        self._seen: _Content | None = None
        # Occurrences when this worker last read the file; None until the counts of the store are loaded.
        self._known: dict[str, int] | None = None
        # Whether to check again without a change of the file: a line is incomplete, or not applied yet.
        self._pending = False
        # Versions of claims: those of this worker, and those of others with the number of checks they have lasted.
        self._own_claims: dict[str, int] = {}
        self._other_claims: dict[str, tuple[int, int]] = {}
        # When the file last existed. Editors remove and truncate files briefly.
        self._last_there = clock.now()
        self._trouble: str | None = None
        self._waits = 0

    async def run(self, *, every: float = POLL_SECONDS) -> None:
        """Check periodically until cancelled."""
        while True:
            await self.check_now()
            await asyncio.sleep(every)

    async def check_now(self) -> int:
        """Apply new lines and return their number. Never raises for the contents of the file."""
        content = self._content()
        if content is None or (content == self._seen and not self._pending):
            return 0
        with _only_worker(self._path) as alone:
            if not alone and self._waits < MAX_WAITS:
                self._waits += 1
                return 0
            self._waits = 0
            # Read again: another worker may have applied a newer version while this one waited for the lock.
            content = self._content()
            return 0 if content is None else await self._apply(content)

    def _content(self) -> _Content | None:
        try:
            content = self._file.current()
        except OSError as error:
            # Keep the counts: when the file is readable again, its lines are not new.
            self._note(f"cannot be read: {error.strerror}")
            return None
        if content.changed_at is not None:
            self._last_there = self._clock.now()
        return content

    async def _apply(self, content: _Content) -> int:
        now = self._clock.now()
        settled = (now - (content.changed_at or self._last_there)).total_seconds() > UNSETTLED_SECONDS
        # The last line may be incomplete. If so, it is longer at the next check.
        lines, complete = _lines_of(content.data, even_without_end=settled or content == self._seen)
        self._seen, self._pending = content, not complete
        # A line that appears now affects what began before now, whatever the file's timestamp.
        changed_at = min(content.changed_at or now, now) if self._known is None else None
        known = await self._load_known()
        applied = 0
        for name, line in lines.items():
            if line.count > known.get(name, 0):
                applied += await self._put_into_force(name, line, known, changed_at)
        for name in [name for name, count in known.items() if name not in lines or lines[name].count < count]:
            await self._lower(name, lines[name].count if name in lines else 0, known, settled=settled)
        return applied

    async def _load_known(self) -> dict[str, int]:
        if self._known is None:
            try:
                self._known = {} if self._counts is None else await self._counts.applied()
            except OstiaryError:
                # Revoking fails, too, which is logged, and applies on this machine until the store is writable.
                self._pending = True
                return {}
        return self._known

    async def _lower(self, name: str, count: int, known: dict[str, int], *, settled: bool) -> None:
        """Lower the count after lines were removed, unless an editor may be rewriting the file right now."""
        if not settled:
            self._pending = True
            return
        try:
            if self._counts is not None:
                await self._counts.lower(name, count)
        except OstiaryError as error:
            self._note(f"cannot be compared with its counts in the token store: {error.summary}: {error.cause}")
            self._pending = True
            return
        known[name] = count
        if not count:
            del known[name]

    async def _put_into_force(
        self, name: str, found: _Occurrences, known: dict[str, int], changed_at: datetime | None
    ) -> bool:
        try:
            line = parse_line(found.data.decode("utf-8"))
        except ValueError as error:
            why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
            log.error("line %d of the revocation file %s is invalid: %s", found.number, self._path, why)
            line = None
        claim, uncounted = None, ""
        if line is not None and self._counts is not None:
            try:
                claim = await self._claim(self._counts, name, found, live=changed_at is None)
                if claim is None:
                    line = None
            except OstiaryError as error:
                # Revoking twice is better than not at all.
                uncounted = f"{error.summary}: {error.cause}"
        if line is not None and not await self._revoke(found.number, line, changed_at):
            self._pending = True
            return False
        if uncounted:
            log.error("line %d of the revocation file %s is not counted: %s", found.number, self._path, uncounted)
        if name not in self._other_claims:
            known[name] = found.count
        if claim is not None and self._counts is not None:
            with suppress(OstiaryError):
                await self._counts.swap(name, claim, replace(claim, claimed=False))
            del self._own_claims[name]
        return line is not None

    async def _claim(self, counts: LineCounts, name: str, line: _Occurrences, *, live: bool) -> LineCount | None:
        """Claim the last occurrence of the line; None if it was applied already or is claimed by another worker."""
        while True:
            found, now = await counts.find(name), self._clock.now()
            if found is not None and found.claimed:
                if found.version == self._own_claims.get(name):
                    return found
                version, checks = self._other_claims.get(name, (0, 0))
                if version != found.version or checks < MAX_WAITS:
                    self._other_claims[name] = (found.version, checks + 1 if version == found.version else 1)
                    self._pending = True
                    return None
            elif found is not None and line.count <= found.count:
                self._other_claims.pop(name, None)
                if not live or not (found.dated or abs(now - found.at) > LONGEST_COPYING):
                    if live:
                        log.info("line %d of the revocation file %s is in force already", line.number, self._path)
                    return None
            count = line.count if found is None else max(line.count, found.count)
            claim = await counts.swap(name, found, LineCount(count, now, claimed=True, dated=not live))
            if claim is not None:
                self._other_claims.pop(name, None)
                self._own_claims[name] = claim.version
                return claim

    async def _revoke(self, number: int, line: Line, changed_at: datetime | None) -> bool:
        by = f"revocation file, line {number}"
        try:
            ended = await self._tokens.revoke(line.kind, line.value, by=by, at=line.at or changed_at)
        except ValueError as error:
            log.error("line %d of the revocation file %s is rejected: %s", number, self._path, error)
            return True
        except OstiaryError as error:
            # Retried at every check until it succeeds.
            self._note(f"cannot take effect: {error.summary}: {error.cause}")
            return False
        self._trouble = None
        log.info("line %d of the revocation file %s (%s) ended %d", number, self._path, line.kind.value, ended)
        return True

    def _note(self, trouble: str) -> None:
        # Log changes only, not every check.
        if trouble != self._trouble:
            log.error("the revocation file %s %s", self._path, trouble)
        self._trouble = trouble


@contextmanager
def _only_worker(path: str) -> Iterator[bool]:
    """Yield whether no other worker of this machine is applying the same file.

    Otherwise a worker that has read an older version could treat a line as removed that another worker has just
    applied.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115  # closed below, which releases the lock
    except OSError:
        # Without a file there are no lines.
        yield True
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            # Some network file systems do not support locks.
            pass
        yield True


def _read(path: str) -> _Content:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return _Content(b"", None)
    if len(data) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {MAX_BYTES // 1024**2} MiB")
    # The later time: moving a prepared file into place changes only its ctime.
    changed_at = datetime.fromtimestamp(max(status.st_mtime, status.st_ctime), UTC)
    return _Content(data.removeprefix(b"\xef\xbb\xbf"), changed_at)


def _lines_of(data: bytes, *, even_without_end: bool) -> tuple[dict[str, _Occurrences], bool]:
    """Return the lines without comments, by the name of their counts, and whether they are complete."""
    lines: dict[str, _Occurrences] = {}
    parts = data.split(b"\n")
    complete = even_without_end or not parts[-1]
    for number, part in enumerate(parts if complete else parts[:-1], start=1):
        line = part.removesuffix(b"\r")
        if line and not line.startswith(b"#"):
            found = lines.setdefault(sha256(line).hexdigest(), _Occurrences(line))
            found.count += 1
            found.number = number
    return lines, complete
