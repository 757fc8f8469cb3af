"""Merge contexts into the user's kubeconfig: under kubectl's lock, with a backup, and replaced atomically."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ostiary.cli.output import print_note
from ostiary.core.platform.open_flags import CLOSE_ON_EXEC
from ostiary.core.platform.private_files import private_files, set_mode
from ostiary.core.yaml import parse
from ostiary.core.yaml.edit import EditRefused, append_item, remove_item, set_value
from ostiary.errors import ConfigurationError
from ostiary.wire.kubeconfig import COMMAND, CONNECT, GATEWAY, TOKEN, is_our_program, mark_of


def kubeconfig_files() -> list[str]:
    """Return the files that kubectl reads. The first one is written to."""
    listed = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return [os.path.abspath(path) for path in listed or [os.path.expanduser("~/.kube/config")]]


def check_regular(path: str) -> None:
    """Raise `ConfigurationError` for a device such as /dev/null, which replacing would destroy."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # It will be created, or reading it reports the error.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigurationError(
            "the kubeconfig cannot be changed in place",
            cause="it is a device or a pipe, and not a file",
            where=path,
            hint="name a file in $KUBECONFIG, or write a new one with --write",
            code="config-unreadable",
        )


def content_of(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigurationError(
            "the kubeconfig cannot be read", cause=error.strerror, where=path, code="config-unreadable"
        ) from None


def text_of(content: bytes, path: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        pass
    raise ConfigurationError(
        "the kubeconfig cannot be changed in place", cause="it is not UTF-8 text", where=path, code="config-syntax"
    )


def _create(path: str, content: bytes, mode: int = 0o600) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        set_mode(descriptor, mode)
        file.write(content)


def write_new(path: str, content: bytes) -> None:
    try:
        _create(path, content)
    except OSError as error:
        raise _unwritable(path, error, hint="name a new file, or use --merge") from None


def back_up(path: str, content: bytes) -> str:
    """Copy the file with the same permissions. Never overwrites an older copy."""
    real = os.path.realpath(path)
    number = 1
    while os.path.lexists(f"{real}.backup-{number}"):
        number += 1
    try:
        _create(f"{real}.backup-{number}", content, _mode(real))
    except OSError as error:
        raise _unwritable(f"{real}.backup-{number}", error) from None
    return f"{real}.backup-{number}"


def replace(path: str, content: bytes) -> None:
    """Replace the file atomically for concurrent readers, and keep its permissions."""
    real = os.path.realpath(path)
    new = f"{real}.{secrets.token_hex(4)}"
    try:
        _create(new, content, _mode(real))
        private_files().replace(new, real)
    except OSError as error:
        with suppress(OSError):
            os.unlink(new)
        raise _unwritable(path, error) from None


def _mode(path: str) -> int:
    return os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o600


@contextmanager
def hold_lock(path: str) -> Iterator[None]:
    """Hold the lock of ``kubectl config``: for the path as given, and for the target of a symbolic link."""
    with ExitStack() as locks:
        for name in dict.fromkeys((path, os.path.realpath(path))):
            locks.enter_context(_lock(name, path))
        yield


@contextmanager
def _lock(name: str, path: str) -> Iterator[None]:
    lock = f"{name}.lock"
    try:
        os.makedirs(os.path.dirname(name), mode=0o700, exist_ok=True)
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC, 0o600))
    except OSError as error:
        raise _unwritable(path, error, hint=f"if no other process is changing the file, remove {lock}") from None
    try:
        yield
    finally:
        os.unlink(lock)


def _unwritable(path: str, error: OSError, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        "the kubeconfig cannot be written", cause=error.strerror, where=path, hint=hint, code="config-unreadable"
    )


# Merging the context of a gateway into an existing kubeconfig, without changing anything else in it.
#
#     existing text, made  ->  conflicts (entries of other owners)  ->  merge  ->  the new text
#
# An entry of the same name is ours if it is for the same server, and its user runs our ``get-token`` for the same
# account; additional fields in it are preserved. Any other entry is a conflict, and is replaced only by force. Contexts
# that were written for removed clusters can be found and removed. Pure functions.

# The sections of a kubeconfig, and the field of an entry that has the content.
SECTIONS = {"clusters": "cluster", "users": "user", "contexts": "context"}
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conflict:
    """An existing entry with the same name that belongs to another server or user."""

    section: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f'{SECTIONS[self.section]} "{self.name}" {self.reason}'


def conflicts(text: str, made: Entry, *, file: str | None = None) -> list[Conflict]:
    """Return the entries of *text* that merging *made* would overwrite. Raises `ConfigurationError`."""
    config = _config(text, file)
    result = []
    for section, judge in (("clusters", _other_cluster), ("users", _other_user), ("contexts", _other_context)):
        kind = SECTIONS[section]
        for new in made[section]:
            position = _position(config, section, new["name"], file)
            if position is not None:
                old = config[section][position].get(kind)
                reason = judge(old if isinstance(old, dict) else {}, new[kind])
                result += [Conflict(section, new["name"], reason)] if reason else []
    return result


def merge(text: str, made: Entry, *, file: str | None = None, force: bool = False) -> str:
    """Return *text* with the entries of *made*. A current context is preserved. Raises `ConfigurationError`."""
    config = _config(text, file)
    try:
        if not config:
            return set_value(text, (), made)
        replaced = {(conflict.section, conflict.name) for conflict in conflicts(text, made, file=file)}
        if replaced and not force:
            raise AssertionError("conflicts are refused before")
        for section in SECTIONS:
            for new in made[section]:
                text = _merge_entry(text, section, new, whole=(section, new["name"]) in replaced, file=file)
        if not config.get("current-context") and made["current-context"]:
            text = set_value(text, ("current-context",), made["current-context"])
        return text
    except EditRefused as error:
        refusal = str(error)
    raise _cannot_edit(refusal, file)


def _cannot_edit(refusal: str, file: str | None) -> ConfigurationError:
    return ConfigurationError(
        "the kubeconfig cannot be changed in place",
        cause=refusal,
        where=file,
        hint="write a new file with --write, and add it to $KUBECONFIG",
        code="config-invalid",
    )


def gone_contexts(text: str, made: Entry, *, file: str | None = None) -> list[str]:
    """Return the contexts in *text* for the same user of the same gateway as *made* that are not in *made*."""
    config, (user,) = _config(text, file), made["users"]
    gateway, names = _account(user["user"]["exec"]["args"])[0], {context["name"] for context in made["contexts"]}
    return [
        str(entry.get("name"))
        for entry in config.get("contexts") or []
        if entry.get("name") not in names
        and _address(mark_of(entry.get("context")).get(GATEWAY)) == gateway
        and entry["context"].get("user") == user["name"]
    ]


def without_contexts(text: str, names: Sequence[str], *, file: str | None = None) -> str:
    """Return *text* without the contexts *names*, and without their clusters unless another context uses them."""
    try:
        for name in names:
            text = _without_entry(text, "contexts", name, file)
            used = {(entry.get("context") or {}).get("cluster") for entry in _config(text, file).get("contexts") or []}
            text = text if name in used else _without_entry(text, "clusters", name, file)
        return text
    except EditRefused as error:
        refusal = str(error)
    raise _cannot_edit(refusal, file)


def _without_entry(text: str, section: str, name: str, file: str | None) -> str:
    position = _position(_config(text, file), section, name, file)
    return text if position is None else remove_item(text, (section,), position)


def _merge_entry(text: str, section: str, new: Entry, *, whole: bool, file: str | None) -> str:
    config = _config(text, file)
    if section not in config:
        return set_value(text, (section,), [new])
    position = _position(config, section, new["name"], file)
    if position is None:
        return append_item(text, (section,), new)
    kind = SECTIONS[section]
    old = config[section][position].get(kind)
    if whole or not isinstance(old, dict):
        return text if old == new[kind] else set_value(text, (section, position, kind), new[kind])
    if section == "users":
        # Keep command and arguments: the command may be pinned to a path, and there may be local options.
        ours = {key: value for key, value in new[kind]["exec"].items() if key not in ("command", "args")}
        return _set_fields(text, (section, position, kind, "exec"), old["exec"], ours)
    return _set_fields(text, (section, position, kind), old, new[kind])


def _set_fields(text: str, path: tuple[str | int, ...], old: Entry, new: Entry) -> str:
    for key, new_value in new.items():
        value = _merged_extensions(old.get(key), new_value) if key == "extensions" else new_value
        if old.get(key) != value:
            text = set_value(text, (*path, key), value)
    return text


def _merged_extensions(old: object, new: list[Entry]) -> list[Any]:
    """Return the extensions in *old* of other applications, and *new*."""
    ours = {extension["name"] for extension in new}
    others = [
        each
        for each in (old if isinstance(old, list) else ())
        if not isinstance(each, dict) or each.get("name") not in ours
    ]
    return [*others, *new]


# --- ownership of entries ---

_IDENTITY_OPTIONS = ("--account", "--from", "--audience", "--token-file", "--token-variable", "--scope")


def _other_cluster(old: Entry, new: Entry) -> str:
    if _address(old.get("server")) != _address(new["server"]):
        return "is for another server"
    if old.get("insecure-skip-tls-verify") and "certificate-authority-data" in new:
        return "has insecure-skip-tls-verify, which cannot be combined with a CA certificate"
    return ""


def _other_user(old: Entry, new: Entry) -> str:
    others = sorted(key for key in old if key not in ("exec", "extensions"))
    if others:
        # Only the name of a field, never its value.
        return f"uses another way to sign in ({', '.join(others)})"
    command = old.get("exec")
    if not isinstance(command, dict) or not _is_ours(command):
        return "runs another exec plugin" if command else "has no credential in it"
    if _account(command.get("args")) != _account(new["exec"]["args"]):
        return "signs in at another gateway, with another account, or in another way"
    return ""


def _other_context(old: Entry, new: Entry) -> str:
    same = (old.get("cluster"), old.get("user")) == (new["cluster"], new["user"])
    return "" if same else "uses another cluster or user"


def _address(server: object) -> str:
    return server.rstrip("/") if isinstance(server, str) else ""


def _is_ours(command: Entry) -> bool:
    args = command.get("args")
    is_plugin = isinstance(args, list) and (args[:1] == [COMMAND] or args[:2] == [CONNECT, TOKEN])
    return is_plugin and is_our_program(command.get("command"))


def _account(args: object) -> tuple[str | None, ...]:
    """Return what identifies the plugin's gateway and account. Entries with equal results are the same user."""
    words = [str(word) for word in args] if isinstance(args, list) else []
    if words[:1] == [CONNECT]:
        # It has no account and is identified by the name of its context.
        return tuple(words)
    options = dict(pairwise(words)) | dict(
        word.split("=", 1) for word in words if word.startswith("--") and "=" in word
    )
    scopes = [scope for option, scope in pairwise(words) if option == "--can"]
    return _address(options.get("--server")), *map(options.get, _IDENTITY_OPTIONS), *scopes


# --- existing entries ---


def _config(text: str, file: str | None) -> Entry:
    document = parse(text, file=file)
    config: Any = document.value
    if config is None:
        return {}
    cause = ""
    if not isinstance(config, dict):
        cause = "it is not an object"
    elif document.more:
        cause = "a second document follows the first one"
    elif document.duplicates:
        cause = f"duplicate entry {document.duplicates[0].path}"
    else:
        cause = _wrong_sections(config)
    if cause:
        raise ConfigurationError("the kubeconfig cannot be changed", cause=cause, where=file, code="config-invalid")
    return dict(config)


def _wrong_sections(config: Entry) -> str:
    for section in SECTIONS:
        entries = config.get(section) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            return f"{section} is not a list of objects"
    return ""


def _position(config: Entry, section: str, name: str, file: str | None) -> int | None:
    positions = [at for at, entry in enumerate(config.get(section) or []) if entry.get("name") == name]
    if len(positions) > 1:
        cause = f'{section} has two entries "{name}"'
        raise ConfigurationError("the kubeconfig cannot be changed", cause=cause, where=file, code="config-invalid")
    return positions[0] if positions else None


# Merging into the file, used by ``ostiary kubeconfig --merge`` and ``ostiary connect``.


@dataclass(frozen=True, slots=True)
class MergedFile:
    """The changed file, its backup, and the contexts of the same gateway that are gone."""

    path: str
    backup: str | None
    gone: list[str]


def merge_into_file(
    kubeconfig: Entry,
    *,
    force: bool = False,
    prune: bool = False,
    look_for_gone: bool = False,
    may_move: bool = False,
    paths: Sequence[str] = (),
) -> MergedFile:
    """Merge the entries of *kubeconfig* into the first of *paths*, by default the files that kubectl reads.

    Raises `ConfigurationError` if that would overwrite another owner's entry, unless *force* is set. With *may_move*
    the clusters are known to be ours, and their address may have changed.
    """
    path, *others = paths or kubeconfig_files()
    check_regular(path)
    with hold_lock(path):
        old = content_of(path)
        text = text_of(old, path)
        # kubectl uses the first entry of a name, so ours would hide one in a later file.
        for file in (path, *others):
            file_conflicts = conflicts(text_of(content_of(file), file), kubeconfig, file=file)
            taken = [each for each in file_conflicts if not (may_move and each.section == "clusters")]
            if taken and not force:
                raise _conflict_error(file, taken)
        gone = gone_contexts(text, kubeconfig, file=path) if look_for_gone else []
        if prune:
            text = without_contexts(text, gone, file=path)
        new = merge(text, kubeconfig, file=path, force=force or may_move).encode()
        backup = back_up(path, old) if old and new != old else None
        if new != old:
            replace(path, new)
    return MergedFile(path, backup, gone)


def tell_merged(kubeconfig: Entry, merged: MergedFile) -> None:
    """Print what was merged into which file."""
    names = [context["name"] for context in kubeconfig["contexts"]]
    backup_note = "" if merged.backup is None else f"; backup: {merged.backup}"
    if len(names) == 1:
        print_note(f"context {names[0]} is in {merged.path}: kubectl --context {names[0]} get pods{backup_note}")
    else:
        print_note(f"{len(names)} contexts are in {merged.path}: {', '.join(names) or 'none'}{backup_note}")


def _conflict_error(file: str, taken: list[Conflict]) -> ConfigurationError:
    return ConfigurationError(
        "the kubeconfig has an entry of this name for another server or user",
        cause="; ".join(map(str, taken)),
        where=file,
        hint="choose another name with --name, or replace it with --force",
        code="kubeconfig-name-taken",
    )
