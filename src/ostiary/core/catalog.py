"""Finds the installed providers by their entry points, and loads those that the configuration names.

    [project.entry-points."ostiary.authorization"]
    rbac = "ostiary.plugins.rbac:RbacAuthorization"

Ours are declared exactly like anybody's. A plugin is imported only when it is named: installing a package must not
be enough to run its code in an authentication server. Its life is: load, `from_config`, use, `close`. What it can do
beyond its contract is told by `ostiary.core.abilities`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, cast, runtime_checkable

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.config import Fields
from ostiary.errors import ConfigurationError
from ostiary.interfaces.keys.device_key import MadeFromAddress
from ostiary.interfaces.shared_counts import ImmediateCounts

if TYPE_CHECKING:
    # Since Python 3.12 it is `EntryPoints` itself, which has the same `select`.
    from importlib.metadata import SelectableGroups

OURS = "ostiary"

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
    def from_config(cls, fields: Fields, context: Context) -> Self: ...


# How a plugin is made that is not made from settings.
_MAKERS: Mapping[str, tuple[str, type]] = {"key": ("from_address", MadeFromAddress)}


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One entry of the catalog, not loaded."""

    type: str
    name: str
    target: str
    package: str
    version: str


def list_entries(plugin_type: str) -> list[CatalogEntry]:
    """Every provider of a type that some installed package declares, by name."""
    entries = [_entry(plugin_type, point) for point in installed_entry_points(plugin_type)]
    return sorted(entries, key=lambda entry: (entry.name, entry.package))


def load(plugin_type: str, name: str) -> type[Configurable]:
    """The class behind *name*; raises `ConfigurationError` if there is none, two, or a broken one."""
    return cast("type[Configurable]", load_class(plugin_type, name))


def load_class(plugin_type: str, name: str) -> type:
    """As `load`, also for a type of plugin that has no settings."""
    point = _only(plugin_type, name, installed_entry_points(plugin_type).select(name=name))
    try:
        target: object = point.load()
    except ImportError as error:
        raise ConfigurationError(
            f'the {plugin_type} provider "{name}" cannot be loaded',
            cause=f"{point.value}: {error}",
            hint=_what_it_needs(point),
            code="plugin-broken",
        ) from error
    except Exception as error:
        cause = f"{point.value} fails when it is imported: {type(error).__name__}"
        summary = f'the {plugin_type} provider "{name}" cannot be loaded'
        raise ConfigurationError(summary, cause=cause, code="plugin-broken") from error
    maker, contract = _MAKERS.get(plugin_type, ("from_config", Configurable))
    if not isinstance(target, contract):
        summary = f'the {plugin_type} provider "{name}" cannot be used'
        raise ConfigurationError(summary, cause=f"{point.value} has no {maker}", code="plugin-broken")
    return cast("type", target)


def policy_endings() -> Mapping[str, str]:
    """The authorization provider that reads policy files with an ending, as packages declare it. Nothing is loaded.

        [project.entry-points."ostiary.policy_file"]
        cedar = "ostiary.plugins.cedar:CedarAuthorization"

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
        log = "ostiary.plugins.file.audit:FileAudit"

    None if nobody declares the key, or two packages do for different providers.
    """
    names = {entry.target: entry.name for entry in list_entries(plugin_type)}
    points = installed_entry_points(f"{plugin_type}_key").select(name=key)
    claimed = {names[point.value] for point in points if point.value in names}
    return claimed.pop() if len(claimed) == 1 else None


def installed_entry_points(group: str) -> EntryPoints:
    """The entry points ``ostiary.<group>`` of all installed packages."""
    return _groups_on(tuple(sys.path)).select(group=f"ostiary.{group}")


@lru_cache(maxsize=1)
def _groups_on(path: tuple[str, ...]) -> SelectableGroups:
    """What the packages on *path* declare. Read once for all groups, because it takes a file of each package."""
    return entry_points()


def _only(plugin_type: str, name: str, points: Iterable[EntryPoint]) -> EntryPoint:
    candidates = {(point.value, _package(point)): point for point in points}
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    if candidates:
        packages = " and ".join(sorted(package for _, package in candidates))
        raise ConfigurationError(
            f'two {plugin_type} providers are called "{name}"',
            cause=f"the packages {packages} both declare it",
            hint="remove one of the packages",
            code="plugin-ambiguous",
        )
    names = sorted({entry.name for entry in list_entries(plugin_type)})
    close = get_close_matches(name, names, n=1)
    remedy = f"did you mean {close[0]}?" if close else "correct the type, or install the package that has it"
    raise ConfigurationError(
        f'unknown {plugin_type} provider "{name}"',
        cause=f"no installed package declares it; known: {', '.join(names) or 'none'}",
        hint=f"{remedy} (ostiary plugins lists them)",
        code="plugin-not-found",
    )


def _what_it_needs(point: EntryPoint) -> str:
    if _package(point) != OURS or point.dist is None:
        return "install what it needs; its package should say what that is"
    own = point.dist.metadata.get_all("Provides-Extra") or []
    # The entry point names the extra, or the extra is called like the provider.
    extras = point.extras or [name for name in (point.name,) if name in own]
    return f"pip install '{OURS}[{','.join(('gateway', *extras))}]'"


def _entry(plugin_type: str, point: EntryPoint) -> CatalogEntry:
    package, version = ("unknown", "") if point.dist is None else _name_and_version(point.dist)
    return CatalogEntry(plugin_type, point.name, f"{point.module}:{point.attr}", package, version)


def _package(point: EntryPoint) -> str:
    return "unknown" if point.dist is None else _name_and_version(point.dist)[0]


@lru_cache(maxsize=64)
def _name_and_version(package: Distribution) -> tuple[str, str]:
    """Read once: both are in a file that has the whole description of the package."""
    metadata = package.metadata
    return metadata["Name"], metadata["Version"]
