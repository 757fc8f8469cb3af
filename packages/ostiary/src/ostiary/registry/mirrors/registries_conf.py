"""Mirrors of podman, skopeo, buildah and CRI-O: ``registries.conf`` and its drop-in files.

    registries.conf -> registries.conf.d/*.conf, by name -> one set of tables; a later prefix replaces an earlier one
    image -> its short-name alias -> the table with the longest prefix -> its mirrors in order -> its location, last

`blocked` and the credentials depend on the name at each endpoint, not on the image's own name: so a registry can be
blocked while its mirrors are still used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from ostiary.core.text import printable
from ostiary.errors import ImageNameError
from ostiary.model import Place, Problem
from ostiary.registry.image_name import ImageName, parse_image_name
from ostiary.registry.mirrors.plan import PullEndpoint, PullPlan, RuntimeFamily, checked_plan, credential_name
from ostiary.registry.mirrors.prefix_match import WILDCARD, longest_match, rewrite
from ostiary.registry.mirrors.toml_file import TomlFile, TomlTable, names_in, read_toml, unusable

# Parsing of one file: containers-registries.conf(5), version 2, and the lists of the deprecated version 1. An invalid
# file makes the programs fail every pull, so errors are reported; unknown keys are ignored as by the programs.

_SCHEMES = ("http://", "https://")
_VERSION_1 = ("search", "insecure", "block")


class PullFromMirror(Enum):
    """The references for which a mirror is used."""

    ALL = "all"
    DIGEST_ONLY = "digest-only"
    TAG_ONLY = "tag-only"


class ShortNameMode(Enum):
    """How to resolve an image without a registry's name that several registries may have."""

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
    """A ``[[registry]]`` table. `location` is empty only if the prefix has a star."""

    prefix: str
    location: str
    place: Place
    insecure: bool = False
    blocked: bool = False
    mirror_by_digest_only: bool = False
    mirrors: tuple[MirrorTable, ...] = ()


@dataclass(frozen=True, slots=True)
class RegistriesFile:
    """The settings of one file. None means unset: the value of an earlier file remains.

    An alias with an empty value removes an earlier one.
    """

    tables: tuple[RegistryTable, ...] = ()
    search: tuple[str, ...] | None = None
    short_name_mode: ShortNameMode | None = None
    aliases: tuple[tuple[str, str], ...] = ()


def parse_registries_file(file: TomlFile, *, is_drop_in: bool = False) -> RegistriesFile:
    """Parse *file*; its errors are added to it."""
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
    """Return whether *name*, without tag and digest, does not determine its registry."""
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


SYSTEM_FILE = "/etc/containers/registries.conf"
DROP_IN_SUFFIX = ".conf"
# Each is read on every lookup.
MOST_DROP_INS = 256


@dataclass(frozen=True, slots=True)
class Registries:
    """The merged files. `files` are those that were read, in order; `problems` make every pull fail."""

    files: tuple[str, ...] = ()
    tables: dict[str, RegistryTable] = field(default_factory=dict)
    search: tuple[str, ...] = ()
    short_name_mode: ShortNameMode = ShortNameMode.PERMISSIVE
    aliases: dict[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def find(self, name: str) -> RegistryTable | None:
        """Return the table for *name*, a repository with its host."""
        return longest_match(name, self.tables.values())


class RegistriesConf:
    """The mirrors of a ``registries.conf`` with the drop-in files of the directory of the same name plus ``.d``.

    For the system's own file, the user's ``~/.config/containers/registries.conf.d`` is read as well, as by the
    programs.
    """

    def __init__(self, path: str | os.PathLike[str] = SYSTEM_FILE) -> None:
        self._path = os.path.abspath(os.fspath(path))

    def plan(self, image: str) -> PullPlan:
        registries = read_registries(self._path)
        if registries.problems:
            raise unusable(registries.problems)
        names = full_names(image, registries, self._path)
        endpoints = tuple(endpoint for name in names for endpoint in _endpoints(name, registries, self._path))
        texts = tuple(str(name) for name in names)
        plan = PullPlan(image, texts, RuntimeFamily.CONTAINERS, endpoints, registries.warnings)
        return checked_plan(plan, Place(self._path))


# --- all files ---


def drop_in_directories(path: str) -> list[str]:
    user = os.path.join(os.path.expanduser("~"), ".config", "containers", "registries.conf.d")
    return [f"{path}.d", user] if path == SYSTEM_FILE else [f"{path}.d"]


def read_registries(path: str) -> Registries:
    """Read the file at *path* and its drop-ins. A missing main file is an error because the caller named it."""
    main = read_toml(path)
    if main is None:
        return Registries(problems=(Problem("the file does not exist", Place(path)),))
    merged = _RegistriesMerge()
    merged.add(parse_registries_file(main), path, main.problems, main.warnings)
    for drop_in in _drop_ins(path):
        file = read_toml(drop_in)
        # It may have been removed since the listing.
        if file is not None:
            merged.add(parse_registries_file(file, is_drop_in=True), drop_in, file.problems, file.warnings)
    return merged.result()


def _drop_ins(path: str) -> list[str]:
    files = [
        os.path.join(folder, name)
        for folder in drop_in_directories(path)
        for name in names_in(folder)
        if name.endswith(DROP_IN_SUFFIX) and not os.path.isdir(os.path.join(folder, name))
    ]
    if len(files) > MOST_DROP_INS:
        raise unusable(
            [Problem(f"there are more than {MOST_DROP_INS} drop-in files", Place(os.path.dirname(files[0])))]
        )
    return files


class _RegistriesMerge:
    def __init__(self) -> None:
        self._files: list[str] = []
        self._tables: dict[str, RegistryTable] = {}
        self._search: tuple[str, ...] = ()
        self._mode = ShortNameMode.PERMISSIVE
        self._aliases: dict[str, str] = {}
        self._problems: list[Problem] = []
        self._warnings: list[Problem] = []

    def add(self, file: RegistriesFile, name: str, problems: list[Problem], warnings: list[Problem]) -> None:
        self._files.append(name)
        self._problems += problems
        self._warnings += warnings
        for table in file.tables:
            earlier = self._tables.get(table.prefix)
            if earlier is not None:
                message = (
                    f'the table of the prefix "{printable(table.prefix)}" takes the place of an earlier one, whole'
                )
                self._warnings.append(Problem(message, table.place, f"the earlier one stands at {earlier.place}"))
            self._tables[table.prefix] = table
        self._search = self._search if file.search is None else file.search
        self._mode = file.short_name_mode or self._mode
        self._aliases.update(file.aliases)

    def result(self) -> Registries:
        aliases = {name: value for name, value in self._aliases.items() if value}
        return Registries(
            tuple(self._files),
            self._tables,
            self._search,
            self._mode,
            aliases,
            tuple(self._problems),
            tuple(self._warnings),
        )


# --- short names ---


def full_names(image: str, registries: Registries, path: str) -> tuple[ImageName, ...]:
    """Return the full names that *image* stands for, in the order in which they are tried."""
    parsed = parse_image_name(image)
    short, tail = _without_tail(image)
    if not is_short_name(short):
        return (parsed,)
    if short in registries.aliases:
        return (parse_image_name(registries.aliases[short] + tail),)
    if not registries.search:
        cause = "it has no registry, no alias stands for it, and unqualified-search-registries is empty"
        hint = "write the image with its registry; skopeo takes docker.io"
        raise ImageNameError(f'"{printable(image)}" names no registry', cause=cause, where=Place(path), hint=hint)
    if registries.short_name_mode is ShortNameMode.ENFORCING and len(registries.search) > 1:
        cause = "it has no registry, several may have it, and short-name-mode is enforcing: a person would be asked"
        hint = f"write the image with its registry: one of {printable(', '.join(registries.search))}"
        raise ImageNameError(f'"{printable(image)}" names no registry', cause=cause, where=Place(path), hint=hint)
    return tuple(parse_image_name(f"{registry}/{short}{tail}") for registry in registries.search)


def _without_tail(image: str) -> tuple[str, str]:
    """Split *image* into its name, and its tag and digest with their separators."""
    name, at, digest = image.partition("@")
    folder, slash, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    return f"{folder}{slash}{last}", f"{colon}{tag}{at}{digest}"


# --- endpoints ---


def _endpoints(name: ImageName, registries: Registries, path: str) -> Iterator[PullEndpoint]:
    table = registries.find(name.repository)
    if table is None:
        yield _endpoint(name, name, registries, Place(path), is_mirror=False)
        return
    for mirror in table.mirrors:
        at_mirror = _rewritten(name, table, mirror.location, mirror.place)
        yield _endpoint(
            at_mirror, name, registries, mirror.place, insecure=mirror.insecure, skip=_unused(mirror, table, name)
        )
    primary = _rewritten(name, table, table.location, table.place)
    yield _endpoint(primary, name, registries, table.place, insecure=table.insecure, is_mirror=False)


def _rewritten(name: ImageName, table: RegistryTable, location: str, place: Place) -> ImageName:
    text = rewrite(str(name), table.prefix, location) or ""
    try:
        rewritten = parse_image_name(text)
    except ImageNameError:
        rewritten = None
    # A result that would be parsed as an image of Docker Hub is rejected, as by the programs.
    if rewritten is None or str(rewritten) != text:
        message = f'{name} would be "{printable(text)}" there, which is not the full name of an image'
        hint = (
            "the prefix also matches the same host with a port; a location is host[:port][/path], with a dot or a port"
        )
        raise unusable([Problem(message, place, hint)])
    return rewritten


def _unused(mirror: MirrorTable, table: RegistryTable, name: ImageName) -> str:
    by_digest = bool(name.digest)
    if table.mirror_by_digest_only and not by_digest:
        return "mirror-by-digest-only: it is used only for images that are named by digest"
    if mirror.pull_from_mirror is PullFromMirror.DIGEST_ONLY and not by_digest:
        return "pull-from-mirror is digest-only, and the image is not named by digest"
    if mirror.pull_from_mirror is PullFromMirror.TAG_ONLY and by_digest:
        return "pull-from-mirror is tag-only, and the image is named by digest"
    return ""


def _endpoint(
    at_endpoint: ImageName,
    image: ImageName,
    registries: Registries,
    place: Place,
    *,
    insecure: bool = False,
    is_mirror: bool = True,
    skip: str = "",
) -> PullEndpoint:
    table = registries.find(at_endpoint.repository)
    is_own = at_endpoint.domain == image.domain
    if not skip and table is not None and table.blocked:
        skip = f'it is blocked, by the table of the prefix "{printable(table.prefix)}"'
    return PullEndpoint(
        str(at_endpoint),
        at_endpoint.domain,
        credential_name(at_endpoint.domain, at_endpoint.path),
        is_mirror,
        "https, else http; certificate not verified" if insecure else "https",
        place,
        skip,
        note="" if is_mirror or is_own else "the location of the table stands for the registry",
        # A credential for the image's own name is sent to no other host.
        gets_kubelet_credential=is_own,
    )
