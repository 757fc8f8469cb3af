"""Plugins are entry points: list those of installed packages, and import the requested one.

    [project.entry-points."ostiary.key"]
    pkcs11 = "ostiary.keys.pkcs11:Pkcs11Key"

Bundled plugins are declared like third-party ones. A plugin is imported only when it is named: installing a package
must not be enough to run its code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from importlib.metadata import Distribution, EntryPoint, EntryPoints, entry_points
from typing import TYPE_CHECKING

from ostiary.errors import ConfigurationError

if TYPE_CHECKING:
    # Since Python 3.12 it is `EntryPoints` itself, which has the same `select`.
    from importlib.metadata import SelectableGroups

OURS = ("ostiary", "ostiary-gateway")
# The class method that constructs a plugin, if it is not `from_config`.
_MAKERS: Mapping[str, str] = {"key": "from_address"}


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One entry of the catalog, not imported."""

    type: str
    name: str
    target: str
    package: str
    version: str


def list_entries(plugin_type: str) -> list[CatalogEntry]:
    """Return every provider of a type that an installed package declares, by name."""
    entries = [_entry(plugin_type, point) for point in installed_entry_points(plugin_type)]
    return sorted(entries, key=lambda entry: (entry.name, entry.package))


def load_class(plugin_type: str, name: str) -> type:
    """Import the class behind *name*.

    Raise `ConfigurationError` if no package declares it, two packages do, or it cannot be used.
    """
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
    maker = _MAKERS.get(plugin_type, "from_config")
    if not isinstance(target, type) or not hasattr(target, maker):
        summary = f'the {plugin_type} provider "{name}" cannot be used'
        raise ConfigurationError(summary, cause=f"{point.value} has no {maker}", code="plugin-broken")
    return target


def installed_entry_points(group: str) -> EntryPoints:
    """Return the entry points ``ostiary.<group>`` of all installed packages."""
    return _groups_on(tuple(sys.path)).select(group=f"ostiary.{group}")


@lru_cache(maxsize=1)
def _groups_on(path: tuple[str, ...]) -> SelectableGroups:
    """Return the entry points of the packages on *path*.

    Cached for all groups, because it reads a file of each package.
    """
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
        hint=f"{remedy} (ostiary-gateway plugins lists them)",
        code="plugin-not-found",
    )


def _what_it_needs(point: EntryPoint) -> str:
    if _package(point) not in OURS or point.dist is None:
        return "install what it needs; its package should say what that is"
    own = point.dist.metadata.get_all("Provides-Extra") or []
    # The entry point names the extra, or the extra has the name of the provider.
    extras = point.extras or [name for name in (point.name,) if name in own]
    return f"pip install '{_package(point)}[{','.join(extras)}]'" if extras else f"pip install {_package(point)}"


def _entry(plugin_type: str, point: EntryPoint) -> CatalogEntry:
    package, version = ("unknown", "") if point.dist is None else _name_and_version(point.dist)
    return CatalogEntry(plugin_type, point.name, f"{point.module}:{point.attr}", package, version)


def _package(point: EntryPoint) -> str:
    return "unknown" if point.dist is None else _name_and_version(point.dist)[0]


@lru_cache(maxsize=64)
def _name_and_version(package: Distribution) -> tuple[str, str]:
    """Cached, because both are in a file that includes the whole description of the package."""
    metadata = package.metadata
    return metadata["Name"], metadata["Version"]
