"""Checks of the files and directories that a valid configuration names.

    document -> each setting that names a certificate, a secret or a file to be written -> problems, notes

An expired certificate, a key that other users may change, a missing directory: each is reported with its position. The
declaration of a setting says what its file contains (`Holds`); for a provider without declared settings their names do.
`replicas.registry` uses the list of files only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from ostiary.core.yaml import Document, Node, join
from ostiary.keys.address import is_address
from ostiary.model import Place, Problem
from ostiary_gateway.config.certificate_files import certificates
from ostiary_gateway.config.gateway_file import GatewayFile
from ostiary_gateway.config.kinds import ProviderEntries, ProviderEntry, TypeOrEntry
from ostiary_gateway.settings.declare import settings_of
from ostiary_gateway.settings.kinds import FilePath, FilePaths, Holds, PrivateKey, PrivateKeys
from ostiary_gateway.settings.sections import ProviderSettings, Section, Sections, declared_settings

# File contents by setting name, for providers without declared settings.
HELD_BY_NAME = {
    **dict.fromkeys(("certificate", "ca", "clientCA"), Holds.CERTIFICATES),
    **dict.fromkeys(("key", "keyFile", "bindPasswordFile", "clientSecretFile", "tokenFile"), Holds.SECRET),
    **dict.fromkeys(("path", "paths"), Holds.POLICY),
}
# File of the default token store.
DEFAULT_STORE_FILE = "ostiary.db"
# Warn about certificates that expire within this time.
SOON = timedelta(days=14)


@dataclass(slots=True)
class FileChecks:
    """Result of the checks. `problems` keep the gateway from working, now or later; `notes` are worth knowing."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that a setting names, as written there."""

    text: str
    holds: Holds
    place: Place


def check_files(document: Document, directory: Path, *, now: datetime) -> FileChecks:
    checks = FileChecks()
    for named_file in named_files(document):
        file = directory / Path(named_file.text).expanduser()
        match named_file.holds:
            case Holds.CERTIFICATES:
                _check_certificates(file, named_file.place, now, checks)
            case Holds.SECRET:
                _check_secret(file, named_file.place, checks)
            case Holds.POLICY:
                _check_policy(file, named_file.place, checks)
            case Holds.WRITTEN if named_file.text != ":memory:":
                _check_written(file, named_file.place, checks)
    if isinstance(document.root.value, dict) and "store" not in document.root.value:
        _check_written(directory / DEFAULT_STORE_FILE, Place(document.file, "store"), checks)
    return checks


def named_files(document: Document) -> Iterator[NamedFile]:
    """Yield every file that a setting of the configuration names."""
    return _files_in(document.root, GatewayFile, Place(document.file))


def _files_in(node: Node, declaration: type, place: Place) -> Iterator[NamedFile]:
    """Yield the files that the settings of *declaration* name in *node*."""
    if not isinstance(node.value, dict):
        return
    for setting in settings_of(declaration):
        value = node.value.get(setting.name)
        if value is None:
            continue
        here = Place(place.file, join(place.path, setting.name), value.line)
        declared: object = setting.kind
        match declared:
            case FilePath(holds=holds) | FilePaths(holds=holds):
                yield from (NamedFile(text, holds, place) for text, place in _texts(value, here))
            case PrivateKey() | PrivateKeys():
                texts = ((text, place) for text, place in _texts(value, here) if not is_address(text))
                yield from (NamedFile(text, Holds.SECRET, place) for text, place in texts)
            case ProviderEntry() | ProviderEntries() | TypeOrEntry() as kind:
                for entry, at in _items(value, here):
                    yield from _files_of_provider(entry, kind.plugin_type, at)
            case Section() | Sections() | ProviderSettings() as kind:
                for item, at in _items(value, here):
                    yield from _files_in(item, kind.of, at)


def _files_of_provider(entry: Node, plugin_type: str, place: Place) -> Iterator[NamedFile]:
    named_type = entry.value.get("type") if isinstance(entry.value, dict) else None
    declaration = None
    if named_type is not None and isinstance(named_type.value, str):
        declaration = declared_settings(plugin_type, named_type.value)
    if declaration is not None:
        yield from _files_in(entry, declaration, place)
    elif plugin_type != "token_store":
        yield from _files_by_name(entry, place)


def _files_by_name(node: Node, place: Place, holds: Holds | None = None) -> Iterator[NamedFile]:
    if isinstance(node.value, dict):
        for key, item in node.value.items():
            here = Place(place.file, join(place.path, key), item.line)
            yield from _files_by_name(item, here, HELD_BY_NAME.get(key))
    elif isinstance(node.value, list):
        for item, here in _items(node, place):
            yield from _files_by_name(item, here, holds)
    elif isinstance(node.value, str) and node.value and holds is not None:
        yield NamedFile(node.value, holds, place)


def _items(node: Node, place: Place) -> Iterator[tuple[Node, Place]]:
    """Yield the items of a list, or the node itself if it is not a list."""
    if not isinstance(node.value, list):
        yield node, place
        return
    for index, item in enumerate(node.value):
        yield item, Place(place.file, join(place.path, index), item.line)


def _texts(node: Node, place: Place) -> Iterator[tuple[str, Place]]:
    for item, here in _items(node, place):
        if isinstance(item.value, str) and item.value:
            yield item.value, here


def _check_certificates(file: Path, place: Place, now: datetime, checks: FileChecks) -> None:
    for number, certificate in enumerate(certificates(file), start=1):
        which = "the certificate" if number == 1 else f"certificate {number} of the file"
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now < begins:
            checks.problems.append(Problem(f"{which} is not valid before {_time(begins)}", place))
        elif now > ends:
            checks.problems.append(Problem(f"{which} expired on {_time(ends)}", place, "replace it"))
        elif ends - now < SOON:
            checks.notes.append(Problem(f"{which} expires on {_time(ends)}", place))


def _check_secret(file: Path, place: Place, checks: FileChecks) -> None:
    try:
        status = file.stat()
    except OSError:
        return  # The loader has reported it, or it is not a file.
    if not stat.S_ISREG(status.st_mode):
        return
    if status.st_size == 0:
        checks.problems.append(Problem("the file is empty", place))
    mode = stat.S_IMODE(status.st_mode)
    hint = f"chmod 600 {file}"
    if mode & (stat.S_IWOTH | stat.S_IWGRP):
        checks.problems.append(Problem(f"other users can change this file (mode {mode:04o})", place, hint))
    elif mode & stat.S_IROTH:
        checks.notes.append(Problem(f"every user of this machine can read this file (mode {mode:04o})", place, hint))


def _check_policy(file: Path, place: Place, checks: FileChecks) -> None:
    """Check a policy file, or the files in a directory: the mode of a mounted ConfigMap directory is misleading."""
    try:
        files = sorted(file.iterdir()) if file.is_dir() else [file]
        writable = [path for path in files if path.is_file() and path.stat().st_mode & stat.S_IWOTH]
    except (OSError, ValueError):
        return  # The loader has reported it.
    for path in writable:
        message = f"everybody on this machine may change {path}, which decides who may do what"
        checks.notes.append(Problem(message, place, f"chmod o-w {path}"))


def _check_written(file: Path, place: Place, checks: FileChecks) -> None:
    folder = file.parent
    if not folder.is_dir():
        checks.problems.append(Problem(f"the directory {folder} does not exist", place, f"mkdir -p {folder}"))
    elif not os.access(folder, os.W_OK | os.X_OK):
        checks.problems.append(Problem(f"the directory {folder} cannot be written by this user", place))
    elif file.exists() and not os.access(file, os.W_OK):
        checks.problems.append(Problem("the file cannot be written by this user", place))


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
