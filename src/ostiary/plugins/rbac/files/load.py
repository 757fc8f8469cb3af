"""Finds and reads the files of a policy: manifests as people keep them, in files and directories.

    paths -> files, sorted -> each one parsed, or known from the last time -> Manifests of each file

Knows nothing of what the rules mean. `ManifestFiles` remembers each file by how it looks and by the digest of its
bytes, so reading a large policy again costs as much as the files that have changed.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import MAX_BYTES
from ostiary.core.watched_file import Fingerprint, fingerprint, is_settled
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem
from ostiary.plugins.rbac.files.parallel import FileBytes, parse_files
from ostiary.wire.rbac import Manifests, together

EXTENSIONS = (".json", ".yaml", ".yml")
# Files that change while they are read are read again, so many times at most.
MOST_READS = 4
Paths = Iterable[str | os.PathLike[str]]
# What stat says of the files: enough to notice that one has changed, or can now be read.
Look = dict[str, Fingerprint | None]
# What each file holds, in the order of the files.
FileContents = Mapping[str, Manifests]


class _Known(NamedTuple):
    look: Fingerprint | None
    digest: bytes
    manifests: Manifests


class ManifestFiles:
    """The manifests at *paths*: files as they are named, and below a directory every .yaml, .yml and .json."""

    def __init__(self, paths: Paths, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.paths = tuple(os.fspath(path) for path in paths)
        self._clock = clock
        self._known: dict[str, _Known] = {}
        # The directories whose files count.
        self.folders: frozenset[str] = frozenset()

    def look(self) -> Look:
        """How all files look at this moment."""
        folders: set[str] = set()
        look = {file: fingerprint(file) for file in _files(self.paths, folders)}
        self.folders = frozenset(folders)
        return look

    def read_at_one_moment(self, look: Look) -> tuple[Look, dict[str, Manifests]]:
        """What the files of *look* hold, all at the same time, and how they look then.

        If one of them changes meanwhile, all are read again: the new bindings must not meet the old roles. Files that
        do not stop changing are taken as they are, and look different at the next look.
        """
        for _ in range(MOST_READS):
            contents = self.read(look)
            before, look = look, self.look()
            if look == before:
                break
        return before, contents

    def is_read(self, look: Look) -> bool:
        """Whether all that can be read of *look* has been. A file may be readable again and look the same."""
        return not any(_is_readable(file) for file in look if file not in self._known)

    def read(self, look: Look | None = None) -> dict[str, Manifests]:
        """What the files of *look* hold, with all mistakes; the same objects as before where no byte has changed.

        Never raises.
        """
        look = self.look() if look is None else look
        contents: dict[str, Manifests | None] = {}
        known: dict[str, _Known] = {}
        to_parse: list[FileBytes] = []
        for file, seen in look.items():
            before = self._known.get(file)
            # What changes while it is read looks different from what was seen, and is read next time.
            if before is not None and before.look == seen and is_settled((seen,), self._clock):
                known[file], contents[file] = before, before.manifests
                continue
            try:
                data = _bytes(file)
                if seen is None:
                    # Only now, and perhaps no longer: the next look says so.
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
        """Take these objects for what the files hold: equal to what was read, and already in memory."""
        for file, manifests in contents.items():
            if file in self._known:
                self._known[file] = self._known[file]._replace(manifests=manifests)


def load(paths: Paths) -> Manifests:
    """The manifests at *paths*; raises `ConfigurationError` with every mistake."""
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
    """All files at *paths*, each once; the directories in which they are, or could be, are added to *folders*."""
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
        # Hidden ones are left out: a mounted ConfigMap keeps its files in "..data", and links to them beside it.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.endswith(EXTENSIONS) and not name.startswith("."):
                yield os.path.join(folder, name)
    # Not as if they were empty: they are read like files, which tells why that is impossible.
    yield from unlisted
