"""Puts the context of a gateway into a kubeconfig that somebody has, and changes nothing else in it.

    existing text, made  ->  conflicts (what belongs to somebody else)  ->  merge  ->  the new text

Called by ``ostiary kubeconfig --merge``, with one context or with one for each cluster. An entry of the same name is
ours if it is for the same server, and its user runs our ``get-token`` for the same account; fields that people added to
it stay. Any other entry is a conflict, and is replaced only by force. Contexts that were written for clusters which are
gone can be found, and taken out. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ostiary.core.config import parse
from ostiary.core.config.edit import EditRefused, append_item, remove_item, set_value
from ostiary.errors import ConfigurationError
from ostiary.wire.kubeconfig import COMMAND, CONNECT, GATEWAY, TOKEN, is_our_program, mark_of

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
