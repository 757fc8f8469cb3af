"""Reads one file of containers-registries.conf(5), version 2, and the lists of the deprecated version 1.

A mistake makes the programs refuse every pull, so it is told; a key that they do not know they pass over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from ostiary.core.text import printable
from ostiary.errors import ImageNameError
from ostiary.model import Place
from ostiary.registry.matching.image_name import parse_image_name
from ostiary.registry.mirrors.prefix_match import WILDCARD
from ostiary.registry.mirrors.toml_file import TomlFile, TomlTable

_SCHEMES = ("http://", "https://")
_VERSION_1 = ("search", "insecure", "block")


class PullFromMirror(Enum):
    """For which references a mirror is used."""

    ALL = "all"
    DIGEST_ONLY = "digest-only"
    TAG_ONLY = "tag-only"


class ShortNameMode(Enum):
    """What happens to an image without a registry's name if several registries may have it."""

    ENFORCING = "enforcing"
    PERMISSIVE = "permissive"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class MirrorTable:
    location: str
    place: Place
    insecure: bool = False
    pull_from_mirror: PullFromMirror = PullFromMirror.ALL


@dataclass(frozen=True, slots=True)
class RegistryTable:
    """A ``[[registry]]``. `location` is empty only where the prefix has a star."""

    prefix: str
    location: str
    place: Place
    insecure: bool = False
    blocked: bool = False
    mirror_by_digest_only: bool = False
    mirrors: tuple[MirrorTable, ...] = ()


@dataclass(frozen=True, slots=True)
class RegistriesFile:
    """What one file says. None where it says nothing, so that an earlier file's word stands.

    An alias whose value is empty takes an earlier one away.
    """

    tables: tuple[RegistryTable, ...] = ()
    search: tuple[str, ...] | None = None
    short_name_mode: ShortNameMode | None = None
    aliases: tuple[tuple[str, str], ...] = ()


def parse_registries_file(file: TomlFile, *, is_drop_in: bool = False) -> RegistriesFile:
    """What *file* says; its mistakes are added to it."""
    root = file.root
    root.ignore("credential-helpers", "additional-layer-store-auth-helper")
    tables = tuple(table for written in root.tables("registry") if (table := _registry(written)) is not None)
    search = root.strings("unqualified-search-registries")
    mode = _short_name_mode(root)
    aliases = tuple(_aliases(root))
    version_1 = root.mapping("registries")
    root.finish()
    if version_1:
        if is_drop_in or tables or search is not None or aliases or mode is not None:
            root.problem("version 1 ([registries.search] and others) and version 2 of the format cannot be mixed")
        return _version_1(root.table("registries"))
    _check_conflicts(root, tables)
    return RegistriesFile(tuple(_first_of_each_prefix(file, tables)), search, mode, aliases)


def _registry(written: TomlTable) -> RegistryTable | None:
    location, prefix = _location(written, "location"), _location(written, "prefix")
    insecure, blocked = written.boolean("insecure"), written.boolean("blocked")
    digest_only = written.boolean("mirror-by-digest-only")
    if written.string("pull-from-mirror"):
        written.problem("pull-from-mirror is for mirrors, and not for a registry")
    written.ignore("proxy")
    mirrors = tuple(mirror for table in written.tables("mirror") if (mirror := _mirror(table, digest_only)) is not None)
    written.finish()
    if not (location or prefix):
        written.problem("it has neither a location nor a prefix")
        return None
    if prefix.startswith(WILDCARD) and any(char in prefix for char in "/@:"):
        written.problem(f'a prefix with a star is only a host: "{printable(prefix)}"', 'write "*.example.com"')
        return None
    if not location and not prefix.startswith(WILDCARD):
        written.problem("it has no location", "only a prefix such as *.example.com may do without one")
        return None
    return RegistryTable(prefix or location, location, written.place, insecure, blocked, digest_only, mirrors)


def _mirror(written: TomlTable, digest_only: bool) -> MirrorTable | None:
    location, insecure = _location(written, "location"), written.boolean("insecure")
    use = written.string("pull-from-mirror")
    written.ignore("proxy")
    written.finish()
    if use and digest_only:
        written.problem("pull-from-mirror cannot be combined with mirror-by-digest-only of its registry")
    if use and use not in {value.value for value in PullFromMirror}:
        values = ", ".join(value.value for value in PullFromMirror)
        written.problem(f"unknown pull-from-mirror {printable(use)}", f"use one of {values}")
        return None
    if not location:
        written.problem("the mirror has no location")
        return None
    return MirrorTable(location, written.place, insecure, PullFromMirror(use or "all"))


def _location(written: TomlTable, key: str) -> str:
    text = written.string(key).rstrip("/")
    if text.startswith(_SCHEMES):
        written.problem(f"{key} has a scheme", "write host[:port][/path]; plain HTTP is allowed by insecure = true")
        return text.partition("://")[2]
    return text


def _check_conflicts(root: TomlTable, tables: tuple[RegistryTable, ...]) -> None:
    first: dict[str, RegistryTable] = {}
    for table in tables:
        other = first.setdefault(table.location or table.prefix, table)
        if (other.insecure, other.blocked) != (table.insecure, table.blocked):
            name = printable(table.location or table.prefix)
            root.problem(f'"{name}" stands there twice, with different values of insecure or blocked')


def _first_of_each_prefix(file: TomlFile, tables: tuple[RegistryTable, ...]) -> Iterator[RegistryTable]:
    seen: dict[str, RegistryTable] = {}
    for table in tables:
        if seen.setdefault(table.prefix, table) is table:
            yield table
        else:
            path = table.place.path
            written = TomlTable(file, {}, path)
            hint = f"the one at {seen[table.prefix].place} counts"
            written.warning(f'the prefix "{printable(table.prefix)}" is there already, so this is passed over', hint)


def _short_name_mode(root: TomlTable) -> ShortNameMode | None:
    mode = root.string("short-name-mode")
    if not mode:
        return None
    try:
        return ShortNameMode(mode)
    except ValueError:
        root.problem(f"unknown short-name-mode {printable(mode)}", "use enforcing, permissive or disabled")
        return None


def _aliases(root: TomlTable) -> Iterator[tuple[str, str]]:
    table = root.table("aliases")
    for name in root.mapping("aliases"):
        value = table.string(name)
        if value and not _is_full_name(value):
            table.problem(f'the alias "{printable(name)}" does not stand for a full name', "host/path, without tag")
        elif not is_short_name(name):
            table.problem(f'the alias "{printable(name)}" is no short name', "without host, tag and digest")
        else:
            yield name, value


def is_short_name(name: str) -> bool:
    """Whether *name*, without tag and digest, leaves open which registry is meant."""
    host, slash, _ = name.partition("/")
    has_host = bool(slash) and ("." in host or ":" in host or host == "localhost")
    if has_host or ":" in name or "@" in name:
        return False
    try:
        return bool(parse_image_name(name))
    except ImageNameError:
        return False


def _is_full_name(value: str) -> bool:
    host, slash, rest = value.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost") or ":" in rest or "@" in rest:
        return False
    try:
        return bool(parse_image_name(value))
    except ImageNameError:
        return False


def _version_1(registries: TomlTable) -> RegistriesFile:
    lists = {key: registries.table(key).strings("registries") or () for key in _VERSION_1}
    registries.warning("version 1 of the format knows no mirrors", "write [[registry]] tables")
    registries.finish()
    insecure, blocked = (frozenset(name.rstrip("/") for name in lists[key]) for key in ("insecure", "block"))
    tables = tuple(
        RegistryTable(name, name, registries.place, name in insecure, name in blocked)
        for name in sorted(insecure | blocked)
        if name
    )
    return RegistriesFile(tables, lists["search"])
