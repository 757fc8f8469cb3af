"""The rules of `lint` about mirrors: settings that a runtime silently ignores, and mirrors without a credential.

hosts-dir, registries.conf -> Mirrored (registry, mirror, place) -> is there a pattern for the mirror?
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ostiary.conformance.lint import Lint
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem
from ostiary.registry.image_matching import matches
from ostiary.registry.image_name import DOCKER_HUB, OLD_DOCKER_HUB
from ostiary.registry.lint_document import LintFinding, Severity, WrittenPattern, WrittenProviders
from ostiary.registry.mirrors.containerd import (
    API_ROOT,
    DEFAULT_DIRECTORY,
    HOSTS_FILE,
    HUB_PULL_HOST,
    HostsFile,
    RegistryHost,
    directory_names,
    is_of_registry,
    mirrored_path,
    read_hosts_file,
)
from ostiary.registry.mirrors.plan import is_this_machine
from ostiary.registry.mirrors.prefix_match import WILDCARD
from ostiary.registry.mirrors.registries_conf import (
    DROP_IN_SUFFIX,
    MirrorTable,
    PullFromMirror,
    Registries,
    RegistryTable,
    drop_in_directories,
    read_registries,
)
from ostiary.registry.mirrors.toml_file import names_in


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A mirror, as host and path, of a registry; `registry` is empty if the mirror is for all of them."""

    registry: str
    mirror: str
    place: Place


@dataclass(slots=True)
class MirrorFindings:
    """Findings of one file, and the mirrors that it names."""

    files: list[str] = field(default_factory=list)
    findings: list[LintFinding] = field(default_factory=list)
    mirrored: list[Mirrored] = field(default_factory=list)

    def add(self, severity: Severity, rule: str, place: Place, message: str, fix: str = "") -> None:
        self.findings.append(LintFinding(severity, rule, place, message, fix))

    def add_problem(self, rule: str, problem: Problem, consequence: str) -> None:
        """Add an error of a file, and its consequence in the runtime."""
        fix = problem.hint or ""
        self.add(Severity.ERROR, rule, problem.place, f"{problem.message}: {consequence}", fix)

    def add_warning(self, problem: Problem) -> None:
        """Add what a runtime silently ignores."""
        rule = "mirror-unknown-key" if problem.message.startswith("unknown key") else "mirror-passed-over"
        self.add(Severity.WARNING, rule, problem.place, problem.message, problem.hint or "")


# containerd's ``certs.d``: names of directories, and each ``hosts.toml``.

_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])"
_PORT_DIRECTORY = re.compile(rf"({_HOST})_(\d{{1,5}})_")
_REGISTRY = re.compile(rf"{_HOST}(?::\d{{1,5}})?")
# host_5000, host-5000-, host_5000__ and other names that resemble a valid one.
_NEARLY_PORT = re.compile(rf"({_HOST}?)[_:]+(\d{{1,5}})[_:]*")
_IGNORED = "containerd passes over the whole file and asks the registry itself"
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})


def lint_hosts_dir(directory: str) -> Iterator[MirrorFindings]:
    """Yield the findings about *directory* as a whole, and then those of each directory in it."""
    whole = MirrorFindings()
    yield whole
    root = os.path.abspath(directory)
    try:
        names = names_in(root)
    except ConfigurationError as error:
        names = []
        for problem in error.problems:
            whole.add_problem("mirrors-unreadable", problem, "no mirror is known")
    if not os.path.isdir(root):
        place, fix = Place(root), "name the config_path of containerd's registry"
        whole.add(Severity.ERROR, "mirrors-unreadable", place, "the directory does not exist: no mirror is known", fix)
        return
    for name in names:
        folder = os.path.join(root, name)
        if os.path.isdir(folder):
            part = MirrorFindings()
            _check_directory(part, name, folder, frozenset(names))
            yield part


def registry_of(directory_name: str) -> str | None:
    """Return the registry of a directory name; empty for the directory of all other registries; None if invalid."""
    if directory_name == DEFAULT_DIRECTORY:
        return ""
    with_port = _PORT_DIRECTORY.fullmatch(directory_name)
    if with_port:
        return f"{with_port[1]}:{with_port[2]}"
    return directory_name if _REGISTRY.fullmatch(directory_name) else None


def _check_directory(part: MirrorFindings, name: str, folder: str, names: frozenset[str]) -> None:
    registry = registry_of(name)
    if registry is None:
        part.add(
            Severity.ERROR,
            "hosts-dir-name",
            Place(folder),
            f'no registry is called "{printable(name)}", so this directory is never used',
            _name_fix(name),
        )
        return
    if registry in (OLD_DOCKER_HUB, HUB_PULL_HOST):
        message = f"images of Docker Hub are looked up as {DOCKER_HUB}, so this directory is hardly ever used"
        part.add(Severity.WARNING, "hosts-dir-name", Place(folder), message, f"rename it to {DOCKER_HUB}")
    preferred = directory_names(registry)[0] if registry else name
    if preferred != name and preferred in names:
        message = f"it is never used: {printable(preferred)} stands for the same registry and comes first"
        part.add(Severity.WARNING, "hosts-dir-shadowed", Place(folder), message, "keep one of them")
        return
    hosts_file = read_hosts_file(folder)
    if hosts_file is None:
        _check_missing_file(part, folder)
        return
    part.files.append(os.path.join(folder, HOSTS_FILE))
    _check_file(part, hosts_file, registry, Place(os.path.join(folder, HOSTS_FILE)))


def _name_fix(name: str) -> str:
    near = _NEARLY_PORT.fullmatch(name)
    if near and near[1]:
        return f"rename it to {printable(near[1])}_{near[2]}_, or {printable(near[1])}:{near[2]}"
    return "name it after the registry: host, host:port, or host_port_; _default is for all others"


def _check_missing_file(part: MirrorFindings, folder: str) -> None:
    near = [name for name in names_in(folder) if name.endswith(".toml")]
    if near:
        message = f"there is no {HOSTS_FILE} in it, and {printable(near[0])} is not read"
        part.add(Severity.ERROR, "hosts-file-missing", Place(folder), message, f"rename it to {HOSTS_FILE}")


def _check_file(part: MirrorFindings, hosts_file: HostsFile, registry: str, place: Place) -> None:
    for problem in hosts_file.problems:
        part.add_problem("hosts-file-invalid", problem, _IGNORED)
    if hosts_file.problems:
        return
    for warning in hosts_file.warnings:
        part.add_warning(warning)
    server = hosts_file.server
    if server is not None and not hosts_file.has_host_tables:
        message = "without a [host] table, older versions of containerd (1.6, for one) pass over the whole file"
        fix = f'add [host."{printable(server.written)}"]'
        part.add(Severity.WARNING, "hosts-file-without-host", place, message, fix)
    for host in (*hosts_file.hosts, *([server] if server else [])):
        _check_host(part, host)
        if registry != host.host and not is_of_registry(host.host, registry):
            part.mirrored.append(Mirrored(registry, _credential_prefix(host), host.place))
    if server is not None and registry and not is_of_registry(server.host, registry):
        message = f"{printable(registry)} itself is never asked: server names {printable(server.host)} in its place"
        part.add(Severity.INFO, "registry-not-asked", place, message)


def _credential_prefix(host: RegistryHost) -> str:
    return f"{host.host}/{mirrored_path(host, '')}".rstrip("/")


def _check_host(part: MirrorFindings, host: RegistryHost) -> None:
    name, place = printable(host.host), host.place
    if host.scheme == "http" and not is_this_machine(host.host):
        message = f"{name} is asked over plain HTTP: everybody on the way reads the password"
        part.add(Severity.WARNING, "mirror-plain-http", place, message, "use https")
    if host.host.endswith({"https": ":80", "http": ":443"}[host.scheme]):
        message = f"{name} is asked over {host.scheme} at the port of the other scheme"
        part.add(Severity.WARNING, "mirror-port", place, message, "correct the scheme or the port")
    if host.skip_verify:
        message = f"the certificate of {name} is not verified: whoever is on the way may get the password"
        part.add(Severity.WARNING, "mirror-not-verified", place, message, 'give its authority: ca = "ca.pem"')
    if host.has_userinfo:
        message = f"a login stands in the address of {name}, where containerd does not use it"
        part.add(Severity.ERROR, "credential-in-mirrors", place, message, "take it out, and change the password")
    for header in host.headers:
        if header.lower() in _SECRET_HEADERS:
            message = f"the header {printable(header)} is sent to {name} with every request, and stands in a plain file"
            fix = "let a credential provider answer for the mirror instead"
            part.add(Severity.WARNING, "credential-in-mirrors", place, message, fix)
    if "pull" not in host.capabilities:
        message = f"nothing is pulled from {name}: it does not have the capability pull"
        part.add(Severity.INFO, "mirror-not-used", place, message, 'capabilities = ["pull", "resolve"]')
    elif "resolve" not in host.capabilities:
        message = f"{name} is not asked for tags: it does not have the capability resolve"
        part.add(Severity.INFO, "mirror-not-used", place, message, 'capabilities = ["pull", "resolve"]')
    if not host.override_path and host.path not in (API_ROOT, ""):
        message = f"{name} is asked at {printable(host.path)}/..., below the path of its address"
        fix = "for a project of a registry, write the address with /v2/ before the path, and override_path = true"
        part.add(Severity.WARNING, "mirror-path", place, message, fix)


# ``registries.conf`` and its drop-in files.

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
    """Return a name that matches *prefix*."""
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


def lint_mirrors(config: Lint | None, *, hosts_dir: str | None = None, registries_conf: str | None = None) -> Lint:
    """Add the findings about mirrors to *config*, the result of `lint` for the providers.

    Without *config* credentials are not checked.
    """
    files: list[str] = []
    findings: list[LintFinding] = []
    mirrored: list[Mirrored] = []
    parts = [] if hosts_dir is None else [*lint_hosts_dir(hosts_dir)]
    parts += [] if registries_conf is None else [lint_registries_conf(registries_conf)]
    for part in parts:
        files += part.files
        findings += part.findings
        mirrored += part.mirrored
    if config is None:
        return Lint(tuple(files), True, tuple(dict.fromkeys(findings)))
    contents = WrittenProviders()
    for file in config.files:
        contents.read(file)
    findings += credential_findings(mirrored, contents.patterns)
    return replace(config, files=(*config.files, *files), findings=(*config.findings, *dict.fromkeys(findings)))


def credential_findings(mirrored: Iterable[Mirrored], patterns: Sequence[WrittenPattern]) -> Iterator[LintFinding]:
    """Yield each mirror for which no provider would be run."""
    for each in dict.fromkeys(mirrored):
        if any(_may_match(pattern, each.mirror) for pattern in patterns):
            continue
        of_registry = [pattern for pattern in patterns if each.registry and _may_match(pattern, each.registry)]
        fix = f'add "{printable(each.mirror)}" to the matchImages of the provider that knows it'
        if of_registry:
            pattern = of_registry[0]
            message = (
                f'"{pattern.shown}" of provider {printable(pattern.provider)} matches {printable(each.registry)} and '
                f"never its mirror {printable(each.mirror)}, for which no provider is asked"
            )
            yield LintFinding(Severity.WARNING, "pattern-misses-mirror", each.place, message, fix)
        else:
            message = f"no provider of the configuration is asked for the mirror {printable(each.mirror)}"
            yield LintFinding(Severity.WARNING, "mirror-without-credential", each.place, message, fix)


def _may_match(pattern: WrittenPattern, name: str) -> bool:
    """Return whether *pattern* matches an image whose name begins with *name*."""
    address = pattern.address()
    if address is None:
        return False
    host, _, path = name.partition("/")
    written, _, pattern_path = pattern.text.partition("/")
    if not matches(written, host, any_port=pattern.any_port):
        return False
    path, pattern_path = path.rstrip("/"), pattern_path.rstrip("/")
    return path.startswith(pattern_path) or pattern_path.startswith(path)
