"""The rules of `lint` about ``registries.conf`` and its drop-in files."""

from __future__ import annotations

import os

from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.model import Place
from ostiary.registry.check.lint_reading import Severity
from ostiary.registry.check.mirror_findings import Mirrored, MirrorFindings
from ostiary.registry.matching.image_name import DOCKER_HUB
from ostiary.registry.mirrors.plan import is_this_machine
from ostiary.registry.mirrors.prefix_match import WILDCARD
from ostiary.registry.mirrors.registries_conf import (
    DROP_IN_SUFFIX,
    Registries,
    drop_in_directories,
    read_registries,
)
from ostiary.registry.mirrors.registry_tables import MirrorTable, PullFromMirror, RegistryTable
from ostiary.registry.mirrors.toml_file import names_in

_REFUSED = "every pull is refused"


def lint_registries_conf(path: str) -> MirrorFindings:
    part = MirrorFindings()
    path = os.path.abspath(path)
    try:
        registries = read_registries(path)
    except ConfigurationError as error:
        for problem in error.problems:
            part.add_problem("registries-conf-invalid", problem, _REFUSED)
        return part
    part.files += registries.files
    for problem in registries.problems:
        part.add_problem("registries-conf-invalid", problem, _REFUSED)
    for warning in registries.warnings:
        part.add_warning(warning)
    for table in registries.tables.values():
        _check_table(part, table, registries)
    _check_drop_ins(part, path)
    return part


def _check_drop_ins(part: MirrorFindings, path: str) -> None:
    for folder in drop_in_directories(path):
        for name in names_in(folder):
            if not name.endswith(DROP_IN_SUFFIX) and os.path.isfile(os.path.join(folder, name)):
                place, fix = Place(os.path.join(folder, name)), f"rename it to end in {DROP_IN_SUFFIX}"
                part.add(Severity.WARNING, "drop-in-not-read", place, "only files that end in .conf are read", fix)


def _check_table(part: MirrorFindings, table: RegistryTable, registries: Registries) -> None:
    _check_prefix(part, table)
    if table.insecure:
        _check_insecure(part, table.location or table.prefix, table.place)
    if table.blocked and not table.mirrors:
        message = f"nothing is pulled from {printable(table.prefix)}: it is blocked, and it has no mirror"
        part.add(Severity.INFO, "registry-blocked", table.place, message)
    if table.blocked and table.location and table.location != table.prefix:
        target = registries.find(table.location)
        if target is None or not target.blocked:
            message = (
                f"blocked does not hold for {printable(table.prefix)}: it is asked at "
                f"{printable(table.location)}, which no table blocks"
            )
            fix = f'add a [[registry]] with location = "{printable(table.location)}" and blocked = true'
            part.add(Severity.ERROR, "block-without-effect", table.place, message, fix)
    for mirror in table.mirrors:
        _check_mirror(part, mirror, table, registries)
    if table.location and table.location.partition("/")[0] != table.prefix.partition("/")[0]:
        part.mirrored.append(Mirrored(_name_of(table.prefix), table.location, table.place))


def _name_of(prefix: str) -> str:
    """A name that falls under *prefix*."""
    return f"any{prefix[1:]}" if prefix.startswith(WILDCARD) else prefix


def _check_prefix(part: MirrorFindings, table: RegistryTable) -> None:
    host, _, path = table.prefix.partition("/")
    if "@" in table.prefix or ":" in path:
        message = f'the prefix "{printable(table.prefix)}" has a tag or a digest, and matches nothing that is pulled'
        part.add(Severity.ERROR, "prefix-never-matches", table.place, message, "leave out tag and digest")
    elif "*" in table.prefix.removeprefix(WILDCARD):
        message = f'the prefix "{printable(table.prefix)}" never matches: * is only for the beginning of a host'
        part.add(Severity.ERROR, "prefix-never-matches", table.place, message, 'write "*.example.com", or list hosts')
    elif host == DOCKER_HUB and path and "/" not in path and path != "library":
        message = (
            f'"{printable(table.prefix)}" is not the image {printable(path)}, but all images of a user of that name'
        )
        fix = f'for the image, write "{DOCKER_HUB}/library/{printable(path)}"'
        part.add(Severity.WARNING, "prefix-without-library", table.place, message, fix)
    elif "." not in host and ":" not in host and host != "localhost":
        message = f'the prefix "{printable(table.prefix)}" does not begin with a registry, so it matches nothing'
        fix = f'for Docker Hub, write "{DOCKER_HUB}/{printable(table.prefix)}"'
        part.add(Severity.ERROR, "prefix-never-matches", table.place, message, fix)


def _check_mirror(part: MirrorFindings, mirror: MirrorTable, table: RegistryTable, registries: Registries) -> None:
    location = printable(mirror.location)
    part.mirrored.append(Mirrored(_name_of(table.prefix), mirror.location, mirror.place))
    if mirror.insecure:
        _check_insecure(part, mirror.location, mirror.place)
    blocking = registries.find(mirror.location)
    if blocking is not None and blocking.blocked:
        message = f'the mirror {location} is blocked, by the table of the prefix "{printable(blocking.prefix)}"'
        part.add(Severity.ERROR, "mirror-blocked", mirror.place, message, "take away one of the two")
    if table.mirror_by_digest_only or mirror.pull_from_mirror is not PullFromMirror.ALL:
        kind = "tag" if mirror.pull_from_mirror is PullFromMirror.TAG_ONLY else "digest"
        message = f"the mirror {location} is used only for images that are named by {kind}"
        part.add(Severity.INFO, "mirror-not-used", mirror.place, message)


def _check_insecure(part: MirrorFindings, location: str, place: Place) -> None:
    host = location.partition("/")[0]
    if is_this_machine(host):
        return
    message = (
        f"{printable(location)} is insecure: its certificate is not verified, and plain HTTP is used if it has no TLS; "
        "whoever is on the way gets the password"
    )
    fix = f"put its authority into /etc/containers/certs.d/{printable(host)}/ca.crt instead"
    part.add(Severity.WARNING, "mirror-not-verified", place, message, fix)
