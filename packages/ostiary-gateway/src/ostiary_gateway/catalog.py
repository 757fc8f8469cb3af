"""Find the installed providers by their entry points, and load those that the configuration names.

    [project.entry-points."ostiary.authorization"]
    rbac = "ostiary_gateway.providers.rbac:RbacAuthorization"

Bundled providers are declared like third-party ones. A plugin is imported only when the configuration names it:
installing a package must not be enough to run its code in an authentication server. Lifecycle: load, `from_config`,
use, `close`. For optional capabilities see `ostiary_gateway.capabilities`.
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
# Not a type of plugin: maps the ending of a policy file to the authorization provider that reads it.
_POLICY_FILE = "policy_file"


@dataclass(frozen=True, slots=True)
class Context:
    """What a provider may use while it is built: its name in the configuration, and the directory of that file.

    `counts` are shared by all workers of the gateway, and survive a reload. `external_url` is the URL of the gateway
    for browsers and clients.
    """

    name: str = ""
    directory: Path = field(default_factory=Path)
    clock: Clock = SYSTEM_CLOCK
    counts: ImmediateCounts | None = None
    external_url: str = ""

    def path(self, text: str) -> Path:
        """Resolve a path of the configuration; a relative one is relative to the file that contains it."""
        return self.directory / Path(text).expanduser()


@runtime_checkable
class Configurable(Protocol):
    """What an entry point must refer to.

    `from_config` reads its own settings from *fields* and reports every error there (`fields.problem`), so that all
    errors of a file are reported together. It must not acquire resources that need closing.
    """

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self: ...


def load(plugin_type: str, name: str) -> type[Configurable]:
    """Return the class of *name*; raises `ConfigurationError` if there is none, two, or a broken one."""
    return cast("type[Configurable]", load_class(plugin_type, name))


def policy_endings() -> Mapping[str, str]:
    """Return the authorization provider for each ending of policy files, as packages declare it. Nothing is imported.

        [project.entry-points."ostiary.policy_file"]
        cedar = "ostiary_gateway.providers.cedar:CedarAuthorization"

    An ending that two packages claim for different providers is omitted: the operator must choose explicitly.
    """
    names = {entry.target: entry.name for entry in list_entries("authorization")}
    claims: dict[str, set[str]] = {}
    for point in installed_entry_points(_POLICY_FILE):
        if point.value in names:
            claims.setdefault(f".{point.name}", set()).add(names[point.value])
    return {ending: min(claimed) for ending, claimed in sorted(claims.items()) if len(claimed) == 1}


def type_for_key(plugin_type: str, key: str) -> str | None:
    """Return the provider that a configuration key stands for, as its package declares it. Nothing is imported.

        [project.entry-points."ostiary.audit_key"]
        log = "ostiary_gateway.audit.file_sink:FileAudit"

    None if no package declares the key, or two do for different providers.
    """
    names = {entry.target: entry.name for entry in list_entries(plugin_type)}
    points = installed_entry_points(f"{plugin_type}_key").select(name=key)
    claimed = {names[point.value] for point in points if point.value in names}
    return claimed.pop() if len(claimed) == 1 else None
