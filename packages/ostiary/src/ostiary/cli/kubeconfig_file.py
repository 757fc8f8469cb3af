"""The kubeconfig that a person has: which file it is, locked as kubectl does, backed up, and replaced in one step.

Called by `command`. Everybody who reads the file sees the old text or the new one.
"""

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
    """The files that kubectl reads; the first one is written to."""
    listed = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return [os.path.abspath(path) for path in listed or [os.path.expanduser("~/.kube/config")]]


def check_regular(path: str) -> None:
    """The file is replaced by a new one, which would be the end of a device such as /dev/null."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # It is made, or whoever reads it tells what is wrong.
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
    """A copy of the file as it is, as private as the file itself. An older copy is never overwritten."""
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
    """A kubectl that reads at this moment sees the old file or the new one; its permissions stay as they are."""
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
    """The lock that ``kubectl config`` uses: beside the file as it is named, and beside what a link leads to."""
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


# Puts the context of a gateway into a kubeconfig that somebody has, and changes nothing else in it.
#
#     existing text, made  ->  conflicts (what belongs to somebody else)  ->  merge  ->  the new text
#
# Called by ``ostiary kubeconfig --merge``, with one context or with one for each cluster. An entry of the same name is
# ours if it is for the same server, and its user runs our ``get-token`` for the same account; fields that people added
# to it stay. Any other entry is a conflict, and is replaced only by force. Contexts that were written for clusters
# which are gone can be found, and taken out. Pure.

# The section of a kubeconfig, and the field of its entries that has the content.
SECTIONS = {"clusters": "cluster", "users": "user", "contexts": "context"}
Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Conflict:
    """An entry that has the name of ours and belongs to something else."""

    section: str
    name: str
    reason: str

    def __str__(self) -> str:
        return f'{SECTIONS[self.section]} "{self.name}" {self.reason}'


def conflicts(text: str, made: Entry, *, file: str | None = None) -> list[Conflict]:
    """Which entries in *text* a merge of *made* would take from somebody. Raises `ConfigurationError`."""
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
    """*text* with the entries of *made*. Its current context stays, if it has one. Raises `ConfigurationError`."""
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
    """The contexts in *text* that were written for the same user of the same gateway as *made*, and are not in it."""
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
    """*text* without the contexts of these *names*, and without their clusters unless another context uses them."""
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
        # The command may be pinned to a path, and the arguments may have options of this machine: they stay.
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
    """Those of *old* that other programs wrote, and *new*."""
    ours = {extension["name"] for extension in new}
    others = [
        each
        for each in (old if isinstance(old, list) else ())
        if not isinstance(each, dict) or each.get("name") not in ours
    ]
    return [*others, *new]


# --- whose is it ---

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
        # The name of a field, and never its value.
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
    """Where and as whom the plugin signs in: two entries with the same are the same user."""
    words = [str(word) for word in args] if isinstance(args, list) else []
    if words[:1] == [CONNECT]:
        # It has no account. The name of its context tells it from others.
        return tuple(words)
    options = dict(pairwise(words)) | dict(
        word.split("=", 1) for word in words if word.startswith("--") and "=" in word
    )
    scopes = [scope for option, scope in pairwise(words) if option == "--can"]
    return _address(options.get("--server")), *map(options.get, _IDENTITY_OPTIONS), *scopes


# --- what is there ---


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


# Merges contexts into the kubeconfig that a person has: under its lock, with a backup, and only where nothing is lost.
#
# Called by ``ostiary kubeconfig --merge`` and by ``ostiary connect``.


@dataclass(frozen=True, slots=True)
class MergedFile:
    """The file that was changed, the copy of what it was before, and which contexts of the same gateway are gone."""

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
    """Put the entries of *kubeconfig* into the first of *paths*; without them those that kubectl reads.

    Raises `ConfigurationError` if that would take an entry from somebody, unless with *force*. With *may_move* the
    clusters are known to be ours, and their address may be another one now.
    """
    path, *others = paths or kubeconfig_files()
    check_regular(path)
    with hold_lock(path):
        old = content_of(path)
        text = text_of(old, path)
        # kubectl takes the first entry of a name, so ours would hide one that stands in a later file.
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
    """Tell a person what is where now."""
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
