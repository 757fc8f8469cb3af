"""Where podman, skopeo, buildah and CRI-O pull from: ``registries.conf`` and its drop-in files.

    registries.conf -> registries.conf.d/*.conf, by name -> one set of tables, a later prefix in place of an earlier one
    image -> its short-name alias -> the table with the longest prefix -> its mirrors in order -> its location, last

`blocked` and the credentials are judged for the name at each endpoint, and not for the image's own name: that is how a
registry can be blocked and its mirrors still be used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from ostiary.core.text import printable
from ostiary.errors import ImageNameError
from ostiary.model import Place, Problem
from ostiary.registry.matching.image_name import ImageName, parse_image_name
from ostiary.registry.mirrors.plan import PullEndpoint, PullPlan, RuntimeFamily, checked_plan, credential_name
from ostiary.registry.mirrors.prefix_match import longest_match, rewrite
from ostiary.registry.mirrors.registry_tables import (
    MirrorTable,
    PullFromMirror,
    RegistriesFile,
    RegistryTable,
    ShortNameMode,
    is_short_name,
    parse_registries_file,
)
from ostiary.registry.mirrors.toml_file import names_in, read_toml, unusable

SYSTEM_FILE = "/etc/containers/registries.conf"
DROP_IN_SUFFIX = ".conf"
# Each is read at every look-up.
MOST_DROP_INS = 256


@dataclass(frozen=True, slots=True)
class Registries:
    """All files together. `files` are those that were read, in order; `problems` make every pull fail."""

    files: tuple[str, ...] = ()
    tables: dict[str, RegistryTable] = field(default_factory=dict)
    search: tuple[str, ...] = ()
    short_name_mode: ShortNameMode = ShortNameMode.PERMISSIVE
    aliases: dict[str, str] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()

    def find(self, name: str) -> RegistryTable | None:
        """The table for *name*, a repository with its host."""
        return longest_match(name, self.tables.values())


class RegistriesConf:
    """The mirrors of a ``registries.conf``, with the drop-in files of the directory of the same name and ``.d``.

    With the system's own file, the user's ``~/.config/containers/registries.conf.d`` is read as well, as the programs
    do it.
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
    """What the file at *path* and its drop-ins say. A missing main file is a mistake: it was asked for."""
    main = read_toml(path)
    if main is None:
        return Registries(problems=(Problem("the file does not exist", Place(path)),))
    merged = _RegistriesMerge()
    merged.add(parse_registries_file(main), path, main.problems, main.warnings)
    for drop_in in _drop_ins(path):
        file = read_toml(drop_in)
        # It may have gone between the listing and now.
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


# --- names without a registry ---


def full_names(image: str, registries: Registries, path: str) -> tuple[ImageName, ...]:
    """The full names that *image* stands for, in the order in which they are tried."""
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
    """The name, and its tag and digest with their separators."""
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
    # What would be read as an image of Docker Hub is refused, as by the programs.
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
        # A credential that was handed over for the image's own name is sent to no other host.
        gets_kubelet_credential=is_own,
    )
