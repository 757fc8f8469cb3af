"""Finds the installed providers by their entry points, and loads those that the configuration names.

    [project.entry-points."ostiary.authorization"]
    rbac = "ostiary_gateway.providers.rbac:RbacAuthorization"

Ours are declared exactly like anybody's. A plugin is imported only when it is named: installing a package must not
be enough to run its code in an authentication server. Its life is: load, `from_config`, use, `close`. What it can do
beyond its contract is told by `ostiary_gateway.capabilities`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self, cast, runtime_checkable

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.entry_points import installed_entry_points, list_entries, load_class
from ostiary.core.yaml import ConfigSection
from ostiary_gateway.interfaces.shared_counts import ImmediateCounts

TYPES = ("identity", "group", "authorization", "admission", "token_store", "attributes", "audit", "key")
# Not a type of plugin: it tells which authorization provider reads files with a certain ending.
_POLICY_FILE = "policy_file"


@dataclass(frozen=True, slots=True)
class Context:
    """What a provider may rely on while it is built: its name in the configuration, and where that file lies.

    What it counts in `counts` is counted once for all workers of the gateway, and outlives a reload. `external_url` is
    what browsers and programs call the gateway.
    """

    name: str = ""
    directory: Path = field(default_factory=Path)
    clock: Clock = SYSTEM_CLOCK
    counts: ImmediateCounts | None = None
    external_url: str = ""

    def path(self, text: str) -> Path:
        """A path of the configuration; a relative one is meant from the file that names it."""
        return self.directory / Path(text).expanduser()


@runtime_checkable
class Configurable(Protocol):
    """What an entry point must lead to.

    `from_config` reads its own settings from *fields* and notes every mistake there (`fields.problem`), so that
    all mistakes of a file are told at once. It opens nothing that it would have to close.
    """

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self: ...


def load(plugin_type: str, name: str) -> type[Configurable]:
    """The class behind *name*; raises `ConfigurationError` if there is none, two, or a broken one."""
    return cast("type[Configurable]", load_class(plugin_type, name))


def policy_endings() -> Mapping[str, str]:
    """The authorization provider that reads policy files with an ending, as packages declare it. Nothing is loaded.

        [project.entry-points."ostiary.policy_file"]
        cedar = "ostiary_gateway.providers.cedar:CedarAuthorization"

    An ending that two packages claim for different providers is left out: somebody must say which one is meant.
    """
    names = {entry.target: entry.name for entry in list_entries("authorization")}
    claims: dict[str, set[str]] = {}
    for point in installed_entry_points(_POLICY_FILE):
        if point.value in names:
            claims.setdefault(f".{point.name}", set()).add(names[point.value])
    return {ending: min(claimed) for ending, claimed in sorted(claims.items()) if len(claimed) == 1}


def type_for_key(plugin_type: str, key: str) -> str | None:
    """The provider that a key of the configuration stands for, as its package declares it. Nothing is loaded.

        [project.entry-points."ostiary.audit_key"]
        log = "ostiary_gateway.audit.file_sink:FileAudit"

    None if nobody declares the key, or two packages do for different providers.
    """
    names = {entry.target: entry.name for entry in list_entries(plugin_type)}
    points = installed_entry_points(f"{plugin_type}_key").select(name=key)
    claimed = {names[point.value] for point in points if point.value in names}
    return claimed.pop() if len(claimed) == 1 else None
