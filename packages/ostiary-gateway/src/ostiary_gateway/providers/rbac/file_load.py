"""Find, read and parse the manifest files of a policy.

    paths -> files, sorted -> each one parsed, or cached -> Manifests of each file

`ManifestFiles` caches each file by its stat fingerprint and the digest of its bytes, so reading a large policy again
costs as much as the files that have changed.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import pickle
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.process import Ending, RunLimits, Stderr, run
from ostiary.core.watched_file import Fingerprint, fingerprint, is_settled
from ostiary.core.yaml import MAX_BYTES
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem
from ostiary_gateway.providers.rbac.file_parse import parse_file, parse_quickly
from ostiary_gateway.wire.rbac import Manifests, together

# Starting a process takes a third of a second, in which this process parses this many bytes.
BYTES_PER_PROCESS = 512 * 1024
MAX_PROCESSES = 8

_PARSE = "from ostiary_gateway.providers.rbac.file_load import parse_stdin; parse_stdin()"
_FAILED = "a process that parses RBAC manifests failed, and they are parsed without it"
_LIMITS = RunLimits(seconds=600.0, stdout_bytes=4 << 30)

log = logging.getLogger("ostiary.rbac")


class FileBytes(NamedTuple):
    """The content of a file."""

    file: str
    data: bytes
    digest: bytes


def parse_files(files: Sequence[FileBytes]) -> list[Manifests]:
    """Parse *files*; the result of each includes its errors.

    Plain YAML is parsed in this process. The rest is divided among child processes if it is large. A child is a new
    Python process and not a fork, because the process that loads a policy has threads. It reads the bytes from its
    stdin and writes the manifests to its stdout. If it fails, the files are parsed in this process.
    """
    parsed = [parse_quickly(data, file) for file, data, _ in files]
    rest = [number for number, manifests in enumerate(parsed) if manifests is None]
    others = dict(zip(rest, _parse_rest([files[number] for number in rest]), strict=True))
    return [others[number] if manifests is None else manifests for number, manifests in enumerate(parsed)]


def _parse_rest(files: Sequence[FileBytes]) -> list[Manifests]:
    count = min(_processors(), len(files), sum(len(each.data) for each in files) // BYTES_PER_PROCESS, MAX_PROCESSES)
    if count < 2:
        return [parse_file(each.data, each.file) for each in files]
    shares = _divide([len(each.data) for each in files], count)
    with ThreadPoolExecutor(count) as threads:
        results = list(threads.map(lambda share: _parse_in_child([files[number] for number in share]), shares))
    manifests: dict[int, Manifests] = {}
    for share, parts in zip(shares, results, strict=True):
        manifests.update(zip(share, parts, strict=True))
    return [manifests[number] for number in range(len(files))]


def _divide(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Divide the indexes of *sizes* into shares of about the same total size."""
    shares: list[list[int]] = [[] for _ in range(count)]
    totals = [0] * count
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        smallest = totals.index(min(totals))
        shares[smallest].append(number)
        totals[smallest] += sizes[number]
    return shares


def _parse_in_child(files: Sequence[FileBytes]) -> list[Manifests]:
    try:
        outcome = run(
            sys.executable,
            [sys.executable, "-P", "-c", _PARSE],
            env=os.environ,
            stdin=pickle.dumps([(each.data, each.file) for each in files]),
            stderr=Stderr.CAPTURE,
            limits=_LIMITS,
        )
        if outcome.ending is Ending.EXITED and outcome.exit_code == 0:
            return _unpickle(outcome.stdout)
        log.warning(_FAILED)
    except OSError as error:
        log.warning("RBAC manifests are not parsed in parallel: %s", error.strerror)
    except pickle.UnpicklingError:
        log.warning(_FAILED)
    return [parse_file(each.data, each.file) for each in files]


def _unpickle(output: bytes) -> list[Manifests]:
    try:
        # Written by our own code in a child process: nothing else can write to that pipe.
        parsed: list[Manifests] = pickle.loads(output)  # noqa: S301
    except Exception as error:
        # Something else wrote to stdout first: bytes that are not a pickle raise almost any exception.
        raise pickle.UnpicklingError from error
    return parsed


def parse_stdin() -> None:
    """Entry point of a child process."""
    files: list[tuple[bytes, str]] = pickle.load(sys.stdin.buffer)  # noqa: S301
    pickle.dump([parse_file(data, file) for data, file in files], sys.stdout.buffer, pickle.HIGHEST_PROTOCOL)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


EXTENSIONS = (".json", ".yaml", ".yml")
# Files that change while they are read are read again, at most this many times.
MOST_READS = 4
Paths = Iterable[str | os.PathLike[str]]
# The stat fingerprint of each file: enough to notice that one has changed, or can now be read.
Look = dict[str, Fingerprint | None]
# The manifests of each file, in the order of the files.
FileContents = Mapping[str, Manifests]


class _Known(NamedTuple):
    look: Fingerprint | None
    digest: bytes
    manifests: Manifests


class ManifestFiles:
    """The manifests at *paths*: each file itself, and below a directory every .yaml, .yml and .json."""

    def __init__(self, paths: Paths, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.paths = tuple(os.fspath(path) for path in paths)
        self._clock = clock
        self._known: dict[str, _Known] = {}
        # The directories to watch.
        self.folders: frozenset[str] = frozenset()

    def look(self) -> Look:
        """Return the current fingerprints of all files."""
        folders: set[str] = set()
        look = {file: fingerprint(file) for file in _files(self.paths, folders)}
        self.folders = frozenset(folders)
        return look

    def read_at_one_moment(self, look: Look) -> tuple[Look, dict[str, Manifests]]:
        """Return the contents of all files at one moment, and the fingerprints of that moment.

        If a file changes while they are read, all are read again: new bindings must not be combined with old roles.
        Files that do not stop changing are used as they are, and have other fingerprints at the next look.
        """
        for _ in range(MOST_READS):
            contents = self.read(look)
            before, look = look, self.look()
            if look == before:
                break
        return before, contents

    def is_read(self, look: Look) -> bool:
        """Whether every readable file of *look* was read. A file may become readable without a new fingerprint."""
        return not any(_is_readable(file) for file in look if file not in self._known)

    def read(self, look: Look | None = None) -> dict[str, Manifests]:
        """Return the manifests of the files of *look*, with all errors. Unchanged files return the same objects.

        Never raises.
        """
        look = self.look() if look is None else look
        contents: dict[str, Manifests | None] = {}
        known: dict[str, _Known] = {}
        to_parse: list[FileBytes] = []
        for file, seen in look.items():
            before = self._known.get(file)
            # A file that changes while it is read gets another fingerprint, and is read next time.
            if before is not None and before.look == seen and is_settled((seen,), self._clock):
                known[file], contents[file] = before, before.manifests
                continue
            try:
                data = _bytes(file)
                if seen is None:
                    # The file appeared after the look, so the next look decides.
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            except (OSError, ValueError) as error:
                contents[file] = _unreadable(file, error)
                continue
            digest = hashlib.sha256(data).digest()
            if before is not None and before.digest == digest:
                known[file], contents[file] = before._replace(look=seen), before.manifests
            else:
                contents[file] = None
                to_parse.append(FileBytes(file, data, digest))
        for (file, _, digest), manifests in zip(to_parse, parse_files(to_parse), strict=True):
            known[file] = _Known(look[file], digest, manifests)
        self._known = known
        return {file: known[file].manifests if part is None else part for file, part in contents.items()}

    def remember(self, contents: FileContents) -> None:
        """Cache these objects as the manifests of their files: equal to what was read, and already in memory."""
        for file, manifests in contents.items():
            if file in self._known:
                self._known[file] = self._known[file]._replace(manifests=manifests)


def load(paths: Paths) -> Manifests:
    """Return the manifests at *paths*. Raises `ConfigurationError` with every error."""
    return check_manifests(together(ManifestFiles(paths).read().values()))


def check_manifests(manifests: Manifests) -> Manifests:
    if manifests.problems:
        raise ConfigurationError("the RBAC policy cannot be used", problems=manifests.problems, code="config-invalid")
    return manifests


def _unreadable(file: str, error: Exception) -> Manifests:
    why = (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
    return Manifests(problems=(Problem(f"it cannot be read: {why}", Place(file)),))


def _bytes(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(MAX_BYTES + 1)


def _is_readable(file: str) -> bool:
    try:
        with open(file, "rb"):
            return True
    except (OSError, ValueError):
        return False


def _files(paths: Iterable[str], folders: set[str]) -> Iterator[str]:
    """All files at *paths*, each once. Adds to *folders* the directories that contain them, or could."""
    files: dict[str, None] = {}
    for path in paths:
        if os.path.isdir(path):
            files.update(dict.fromkeys(_below(path, folders)))
        else:
            folders.add(os.path.dirname(path) or os.curdir)
            files[path] = None
    return iter(files)


def _below(directory: str, all_folders: set[str]) -> Iterator[str]:
    unlisted: list[str] = []
    for folder, folders, names in os.walk(directory, onerror=lambda error: unlisted.append(error.filename)):
        all_folders.add(folder)
        # Hidden files are left out: a mounted ConfigMap has its files in "..data", and links to them beside it.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.endswith(EXTENSIONS) and not name.startswith("."):
                yield os.path.join(folder, name)
    # Not skipped as if they were empty: reading them like files reports the reason.
    yield from unlisted
