"""Finds and reads the files of a policy: manifests as people keep them, in files and directories.

    paths -> files, sorted -> each one parsed, or known from the last time -> Manifests

Knows nothing of what the rules mean. `ManifestFiles` remembers each file by the digest of its bytes, so reading a large
policy again costs as much as what has changed in it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator

from ostiary.core.config import MAX_BYTES, parse_all
from ostiary.core.watched_file import Fingerprint, fingerprint
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem
from ostiary.wire.rbac import Manifests, read_manifests, together

EXTENSIONS = (".json", ".yaml", ".yml")
Paths = Iterable[str | os.PathLike[str]]
# What stat says of the files: enough to notice that one has changed, or can now be read.
Look = dict[str, Fingerprint | None]


class ManifestFiles:
    """The manifests at *paths*: files as they are named, and below a directory every .yaml, .yml and .json."""

    def __init__(self, paths: Paths) -> None:
        self.paths = tuple(os.fspath(path) for path in paths)
        self._known: dict[str, tuple[bytes, Manifests]] = {}
        self._last: tuple[list[Manifests], Manifests] = ([], Manifests())

    def look(self) -> Look:
        """How all files look at this moment."""
        return {file: fingerprint(file) for file in _files(self.paths)}

    def read(self) -> Manifests:
        """What they hold, with all mistakes; the same object as before if no byte has changed. Never raises."""
        previous, self._known = self._known, {}
        parts = []
        for file in _files(self.paths):
            try:
                data = _bytes(file)
            except (OSError, ValueError) as error:
                why = (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
                parts.append(Manifests(problems=(Problem(f"it cannot be read: {why}", Place(file)),)))
                continue
            digest = hashlib.sha256(data).digest()
            parsed = previous.get(file)
            manifests = parsed[1] if parsed is not None and parsed[0] == digest else _parse(data, file)
            self._known[file] = (digest, manifests)
            parts.append(manifests)
        before, whole = self._last
        if len(before) != len(parts) or any(old is not new for old, new in zip(before, parts, strict=True)):
            whole = together(parts)
            self._last = (parts, whole)
        return whole


def load(paths: Paths) -> Manifests:
    """The manifests at *paths*; raises `ConfigurationError` with every mistake."""
    return check_manifests(ManifestFiles(paths).read())


def check_manifests(manifests: Manifests) -> Manifests:
    if manifests.problems:
        raise ConfigurationError("the RBAC policy cannot be used", problems=manifests.problems, code="config-invalid")
    return manifests


def _parse(data: bytes, file: str) -> Manifests:
    parts: list[Manifests] = []
    try:
        for document in parse_all(data, file=file):
            parts.append(read_manifests([document]))
    except ConfigurationError as error:
        parts.append(Manifests(problems=error.problems))
    return Manifests(
        tuple(role for part in parts for role in part.roles),
        tuple(binding for part in parts for binding in part.bindings),
        sum(part.ignored for part in parts),
        tuple(problem for part in parts for problem in part.problems),
    )


def _bytes(file: str) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(MAX_BYTES + 1)


def _files(paths: Iterable[str]) -> Iterator[str]:
    files = (file for path in paths for file in (_below(path) if os.path.isdir(path) else (path,)))
    # A file that is named and lies in a named directory too is one file.
    return iter(dict.fromkeys(files))


def _below(directory: str) -> Iterator[str]:
    for folder, folders, names in os.walk(directory):
        # Hidden ones are left out: a mounted ConfigMap keeps its files in "..data", and links to them beside it.
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.endswith(EXTENSIONS) and not name.startswith("."):
                yield os.path.join(folder, name)
