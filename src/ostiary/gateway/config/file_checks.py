"""What is wrong with the files and directories that a configuration names, though it can be loaded.

    document -> each setting that names a certificate, a secret or a file to be written -> problems, notes

Called by ``ostiary serve --check`` and at the start. A certificate that has expired, a key that anybody may change, a
directory that does not exist: each is told with its place. By the names of settings, wherever they stand, so that the
settings of every provider are looked at.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from ostiary.core.config import Document, Node, join
from ostiary.gateway.config.certificates import certificates
from ostiary.model import Place, Problem

CERTIFICATES = frozenset(("certificate", "ca", "clientCA", "externalCA"))
SECRETS = frozenset(("key", "keyFile", "bindPasswordFile", "clientSecretFile", "tokenFile"))
WRITTEN = frozenset(("store.path", "audit.log.path", "tokens.revocationFile"))
# What stands below these says who somebody is and what they may do: password files, groups, policies.
DECIDING = ("identity[", "groups[", "authorization.")
# Where sessions are kept if nothing else is said.
DEFAULT_STORE_FILE = "ostiary.db"
# Whoever is told later than this has to hurry.
SOON = timedelta(days=14)


@dataclass(slots=True)
class FileChecks:
    """`problems` keep the gateway from working, now or later; `notes` should be known."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)


def check_files(document: Document, directory: Path, *, now: datetime) -> FileChecks:
    found = FileChecks()
    for path, key, text, line in _settings(document.root, ""):
        place = Place(document.file, path, line)
        file = directory / Path(text).expanduser()
        if key in CERTIFICATES:
            _check_certificates(file, place, now, found)
        if key in SECRETS:
            _check_secret(file, place, found)
        if path.startswith(DECIDING) and key.partition("[")[0] in ("path", "paths"):
            _check_deciding(file, place, found)
        if path in WRITTEN and text != ":memory:":
            _check_written(file, place, found)
    if isinstance(document.root.value, dict) and "store" not in document.root.value:
        _check_written(directory / DEFAULT_STORE_FILE, Place(document.file, "store"), found)
    return found


def _settings(node: Node, path: str) -> Iterator[tuple[str, str, str, int | None]]:
    if isinstance(node.value, list):
        for index, item in enumerate(node.value):
            yield from _settings(item, join(path, index))
    elif isinstance(node.value, dict):
        for key, item in node.value.items():
            here = join(path, key)
            yield from _settings(item, here)
    elif isinstance(node.value, str) and node.value:
        yield path, path.rpartition(".")[2], node.value, node.line


def _check_certificates(file: Path, place: Place, now: datetime, found: FileChecks) -> None:
    for number, certificate in enumerate(certificates(file), start=1):
        which = "the certificate" if number == 1 else f"certificate {number} of the file"
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now < begins:
            found.problems.append(Problem(f"{which} is not valid before {_time(begins)}", place))
        elif now > ends:
            found.problems.append(Problem(f"{which} expired on {_time(ends)}", place, "replace it"))
        elif ends - now < SOON:
            found.notes.append(Problem(f"{which} expires on {_time(ends)}", place))


def _check_secret(file: Path, place: Place, found: FileChecks) -> None:
    try:
        status = file.stat()
    except OSError:
        return  # The loader has told it, or it is no file.
    if not stat.S_ISREG(status.st_mode):
        return
    if status.st_size == 0:
        found.problems.append(Problem("the file is empty", place))
    mode = stat.S_IMODE(status.st_mode)
    hint = f"chmod 600 {file}"
    if mode & (stat.S_IWOTH | stat.S_IWGRP):
        found.problems.append(Problem(f"other users can change this file (mode {mode:04o})", place, hint))
    elif mode & stat.S_IROTH:
        found.notes.append(Problem(f"every user of this machine can read this file (mode {mode:04o})", place, hint))


def _check_deciding(file: Path, place: Place, found: FileChecks) -> None:
    """Of a directory, the files in it: a mounted ConfigMap is a directory that looks open to everybody, and is not."""
    try:
        files = sorted(file.iterdir()) if file.is_dir() else [file]
        open_ones = [one for one in files if one.is_file() and one.stat().st_mode & stat.S_IWOTH]
    except (OSError, ValueError):
        return  # The loader has told it.
    for one in open_ones:
        message = f"everybody on this machine may change {one}, which decides who may do what"
        found.notes.append(Problem(message, place, f"chmod o-w {one}"))


def _check_written(file: Path, place: Place, found: FileChecks) -> None:
    folder = file.parent
    if not folder.is_dir():
        found.problems.append(Problem(f"the directory {folder} does not exist", place, f"mkdir -p {folder}"))
    elif not os.access(folder, os.W_OK | os.X_OK):
        found.problems.append(Problem(f"the directory {folder} cannot be written by this user", place))
    elif file.exists() and not os.access(file, os.W_OK):
        found.problems.append(Problem("the file cannot be written by this user", place))


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
