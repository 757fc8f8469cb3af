"""Find errors and likely errors in a provider configuration, with a fix for each.

    files -> everything readable in them -> each rule checks each pattern and provider -> Lint

To the kubelet a pattern that can never match is valid: it silently does not run the provider. Here it is an error. A
configuration that does not load is checked as well; the reasons are then among the findings.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ostiary.core.duration import DurationError, parse_duration
from ostiary.core.provider_switches import ALL, Switches
from ostiary.core.text import printable
from ostiary.core.yaml import Json
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem
from ostiary.registry.image_matching import PatternIndex
from ostiary.registry.image_name import DOCKER_HUB, LOCALHOST, OLD_DOCKER_HUB, ImageAddress
from ostiary.registry.kubelet.config import config_files, load
from ostiary.registry.lint_document import LintFinding, Severity, WrittenPattern, WrittenProvider, WrittenProviders

# Rules about patterns: each by itself, and all of them together.

HUB_PULL_HOST = "registry-1.docker.io"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_IP = re.compile(r"[0-9*]+(?:\.[0-9*]+){3}|\[.*\]")


def pattern_findings(pattern: WrittenPattern) -> Iterator[LintFinding]:
    address = pattern.address()
    if address is None:
        # `load` has reported it.
        return
    if scheme := _SCHEME.match(pattern.text):
        fix = f'write "{printable(pattern.text[scheme.end() :])}"'
        message = f'"{pattern.shown}" has a scheme, and is compared as if "{scheme[0][:-3]}" were the host'
        yield LintFinding(Severity.ERROR, "scheme-in-pattern", pattern.place, message, fix)
        return
    for rule in (star_in_path, _upper_case, _docker_hub, _star_alone, _open_prefix, _default_port, _local_port):
        finding = rule(pattern, address)
        if finding is not None:
            yield finding


def star_in_path(pattern: WrittenPattern, address: ImageAddress) -> LintFinding | None:
    if b"*" not in address.path:
        return None
    head, _, path = pattern.text.partition("/")
    # A star may also be percent-encoded, and then there is none to cut at.
    prefix = f"{head}/{path.partition('*')[0].partition('%')[0]}"
    message = f'"{pattern.shown}" never matches: in a path, * stands for itself, and no image has it in its name'
    fix = f'write "{printable(head if prefix == f"{head}/" else prefix)}": a path matches all that begins with it'
    return LintFinding(Severity.ERROR, "star-in-path", pattern.place, message, fix)


def _upper_case(pattern: WrittenPattern, address: ImageAddress) -> LintFinding | None:
    fix = f'write "{printable(pattern.text.lower())}"'
    if address.path.lower() != address.path:
        message = f'"{pattern.shown}" never matches: repositories are in lower case'
        return LintFinding(Severity.ERROR, "upper-case-path", pattern.place, message, fix)
    if address.host.lower() != address.host:
        message = f'"{pattern.shown}" matches only images whose host is written with the same capitals'
        return LintFinding(Severity.WARNING, "upper-case-host", pattern.place, message, fix)
    return None


def _docker_hub(pattern: WrittenPattern, address: ImageAddress) -> LintFinding | None:
    host = address.host.decode("utf-8", "replace")
    fix = f'write "{printable(pattern.text.replace(host, DOCKER_HUB, 1))}"'
    if host == OLD_DOCKER_HUB:
        message = f'"{pattern.shown}" never matches: images of Docker Hub are looked up as {DOCKER_HUB}'
        return LintFinding(Severity.ERROR, "docker-hub-name", pattern.place, message, fix)
    if host == HUB_PULL_HOST:
        message = f'"{pattern.shown}" matches only images written with this host; the others are {DOCKER_HUB}/...'
        return LintFinding(Severity.WARNING, "docker-hub-name", pattern.place, message, fix)
    return None


def _star_alone(pattern: WrittenPattern, address: ImageAddress) -> LintFinding | None:
    if len(address.labels) > 1 or b"*" not in address.labels[0]:
        return None
    message = f'"{pattern.shown}" matches only hosts of a single label, such as {LOCALHOST}'
    fix = 'a * stands for one label: write "*.*" for docker.io, "*.*.*" for registry.example.com, and so on'
    return LintFinding(Severity.WARNING, "star-alone", pattern.place, message, fix)


def _open_prefix(pattern: WrittenPattern, address: ImageAddress) -> LintFinding | None:
    if not address.path.strip(b"/") or address.path.endswith(b"/") or b"*" in address.path:
        return None
    message = (
        f'"{pattern.shown}" also matches {printable(pattern.text)}bar: a path is a prefix of text, not of segments'
    )
    fix = f'end it with a slash, "{printable(pattern.text)}/", unless it names one repository'
    return LintFinding(Severity.WARNING, "open-path-prefix", pattern.place, message, fix)


def _default_port(pattern: WrittenPattern, address: ImageAddress) -> LintFinding | None:
    if address.port != b"443":
        return None
    message = f'"{pattern.shown}" does not match images without a port: ports are compared as text'
    fix = f'add "{printable(pattern.text.replace(":443", "", 1))}"'
    return LintFinding(Severity.WARNING, "port-twin", pattern.place, message, fix)


def _local_port(pattern: WrittenPattern, address: ImageAddress) -> LintFinding | None:
    host = b".".join(address.labels).decode("utf-8", "replace")
    if address.port or pattern.any_port or not (host == LOCALHOST or _IP.fullmatch(host)):
        return None
    message = f'"{pattern.shown}" matches only images without a port, and a registry there usually has one'
    fix = f'add "{printable(host)}:5000", with the port that its images are written with'
    return LintFinding(Severity.INFO, "port-twin", pattern.place, message, fix)


# --- all patterns together ---


def overlap_findings(patterns: list[WrittenPattern]) -> Iterator[LintFinding]:
    # A pattern that matches the text of another one matches everything that the other matches: where the other has a
    # star, only a star can have matched it.
    index = PatternIndex(((pattern.text, pattern) for pattern in patterns), any_port=lambda pattern: pattern.any_port)
    for pattern in patterns:
        covering = (other for other in index.find(pattern.text) if other is not pattern)
        for other in covering:
            finding = _covering_finding(pattern, other)
            if finding is not None:
                yield finding
                break
    yield from _port_twins(patterns)


def _covering_finding(pattern: WrittenPattern, other: WrittenPattern) -> LintFinding | None:
    equal, same = other.text == pattern.text, other.provider == pattern.provider
    if same:
        what = "is a duplicate" if equal else f'adds nothing: "{other.shown}" matches all of it'
        message = f'"{pattern.shown}" {what} (the other one is at {other.place})'
        late = not equal or (pattern.place.line or 0) > (other.place.line or 0)
        rule = "redundant-pattern"
        return LintFinding(Severity.INFO, rule, pattern.place, message, "remove it") if late else None
    message = (
        f'what "{pattern.shown}" matches is also asked of provider "{printable(other.provider)}" ("{other.shown}")'
    )
    fix = "all matching providers are run, and all of their credentials tried; keep one if that is not meant"
    return LintFinding(Severity.INFO, "several-providers", pattern.place, message, fix)


def _port_twins(patterns: Iterable[WrittenPattern]) -> Iterator[LintFinding]:
    addresses = [(pattern, address) for pattern in patterns if (address := pattern.address()) is not None]
    without_port = {address.labels for _, address in addresses if not address.port}
    for pattern, address in addresses:
        if address.port and address.port != b"443" and address.labels not in without_port:
            host = printable(b".".join(address.labels).decode("utf-8", "replace"))
            message = f'"{pattern.shown}" matches only images with this port; none of {host} without a port'
            fix = f'add "{host}" if the registry is also reached without a port'
            yield LintFinding(Severity.INFO, "port-twin", pattern.place, message, fix)


def switch_findings(providers: Iterable[WrittenProvider], switches: Switches) -> Iterator[LintFinding]:
    """Yield each provider that is disabled, and each disabled name that no provider has.

    A provider that was disabled for a rollback may still be disabled unintentionally.
    """
    try:
        entries = switches.current()
    except ConfigurationError as error:
        message = f"{error.summary}, so none of them is used: {error.cause}"
        yield LintFinding(
            Severity.ERROR, "switches-unreadable", Place(str(error.where or "")), message, error.hint or ""
        )
        return
    names = set()
    for provider in providers:
        names.add(provider.name)
        if entry := entries.get(ALL) or entries.get(provider.name):
            message = f"{printable(provider.name)} is not used: {entry}"
            yield LintFinding(Severity.WARNING, "provider-disabled", provider.place("name"), message, entry.remedy)
    for name in sorted(entries.keys() - names - {ALL}):
        message = f"{printable(name)} is disabled, and no provider here has that name"
        fix = "correct the name, unless it is a provider of another configuration"
        yield LintFinding(Severity.INFO, "unknown-provider-disabled", Place(entries[name].where), message, fix)


AUDIENCE_VERB = "request-serviceaccounts-token-audience"


@dataclass(frozen=True, slots=True)
class Lint:
    """The findings, in the order of the files and their lines. `loads`: a kubelet would start with it."""

    files: tuple[str, ...]
    loads: bool
    findings: tuple[LintFinding, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether there is no error; warnings do not count."""
        return self.count(Severity.ERROR) == 0

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


def lint(
    path: str | os.PathLike[str], *, bin_dir: str | os.PathLike[str] | None = None, switches: Switches | None = None
) -> Lint:
    """Check the configuration at *path*, a file or a directory; with a *bin_dir* the executables too.

    With *switches* it also reports which of the providers are disabled. Never raises for an invalid configuration.
    """
    try:
        load(path, bin_dir=bin_dir)
    except ConfigurationError as error:
        problems = error.problems
    else:
        problems = ()
    findings = [_load_finding(problem) for problem in problems]
    contents = WrittenProviders()
    try:
        files = tuple(config_files(os.fspath(path)))
    except ConfigurationError:
        files = ()
    for file in files:
        contents.read(file)
    findings += contents.findings
    findings += [finding for pattern in contents.patterns for finding in pattern_findings(pattern)]
    findings += overlap_findings(contents.patterns)
    findings += [finding for provider in contents.providers for finding in _provider_findings(provider)]
    if switches is not None:
        findings += switch_findings(contents.providers, switches)
    if bin_dir is not None:
        findings += _binary_findings(contents.providers, os.fspath(bin_dir))
    return Lint(files, not problems, tuple(sorted(dict.fromkeys(findings), key=_position(files))))


def _position(files: tuple[str, ...]) -> Callable[[LintFinding], tuple[int, int]]:
    order = {file: number for number, file in enumerate(files)}
    return lambda finding: (order.get(finding.place.file or "", len(files)), finding.place.line or 0)


# --- errors of loading ---

# The start or end of an error message, and the rule that it belongs to.
_LOAD_RULES = (
    (re.compile(r"match image is invalid"), "pattern-unparsable"),
    (re.compile(r"there is no |.* is required( |$)|at least 1 item "), "missing-field"),
    (re.compile(r"strict decoding error: unknown field"), "unknown-field"),
    (re.compile(r"strict decoding error: "), "repeated-field"),
    (re.compile(r"plugin binary executable .* did not exist"), "binary-missing"),
    (re.compile(r"plugin binary directory "), "bin-dir-missing"),
    (re.compile(r"error inspecting binary executable "), "binary-not-executable"),
    (re.compile(r"duplicate provider name "), "duplicate-provider"),
    (re.compile(r"it is not JSON"), "not-json"),
)


def _load_finding(problem: Problem) -> LintFinding:
    rule = next((rule for form, rule in _LOAD_RULES if form.match(problem.message)), "does-not-load")
    fix = problem.hint or ""
    if "unquoted *" in fix:
        rule = "unquoted-star"
    return LintFinding(Severity.ERROR, rule, problem.place, problem.message, fix)


# --- one provider ---


def _provider_findings(provider: WrittenProvider) -> Iterator[LintFinding]:
    yield from _cache_findings(provider)
    attributes = provider.fields.get("tokenAttributes")
    if isinstance(attributes, dict):
        yield from _token_findings(provider, attributes)


def _cache_findings(provider: WrittenProvider) -> Iterator[LintFinding]:
    value = provider.fields.get("defaultCacheDuration")
    try:
        is_none = isinstance(value, str) and not parse_duration(value)
    except DurationError:
        return
    if is_none:
        message = "an answer without a cacheDuration is not cached: the provider runs at every pull"
        fix = 'write how long an answer holds when it does not say so itself, as in "10m"'
        place = provider.place("defaultCacheDuration")
        yield LintFinding(Severity.WARNING, "no-default-cache", place, message, fix)


def _token_findings(provider: WrittenProvider, attributes: Mapping[str, Json]) -> Iterator[LintFinding]:
    audience = attributes.get("serviceAccountTokenAudience")
    if isinstance(audience, str) and audience:
        message = (
            "the kubelet may ask for tokens of this audience only if the node is allowed to; else the provider "
            "is silently not run"
        )
        fix = (
            f'give the group system:nodes a ClusterRole with verbs: ["{AUDIENCE_VERB}"], apiGroups: [""], '
            f'resources: ["{printable(audience)}"]'
        )
        place = provider.place("tokenAttributes", "serviceAccountTokenAudience")
        yield LintFinding(Severity.INFO, "token-audience", place, message, fix)
    if attributes.get("cacheType") in ("ServiceAccount", "Token"):
        message = (
            f"cacheType: {attributes['cacheType']} is for this file alone; the provider's answer has a "
            "cacheKeyType, which must be Image, Registry or Global, or the whole answer goes unused"
        )
        fix = "see what it answers: ostiary registry check"
        yield LintFinding(Severity.INFO, "token-cache", provider.place("tokenAttributes", "cacheType"), message, fix)


# --- the executables ---


def _binary_findings(providers: Iterable[WrittenProvider], bin_dir: str) -> Iterator[LintFinding]:
    if _is_world_writable(bin_dir):
        message = f"every user of this machine may put programs into {printable(bin_dir)}, and the kubelet runs them"
        fix = f"chmod o-w {printable(bin_dir)}"
        yield LintFinding(Severity.ERROR, "binary-world-writable", Place(bin_dir), message, fix)
    for provider in providers:
        path = os.path.join(bin_dir, provider.name)
        if provider.name and "/" not in provider.name and os.path.isfile(path) and _is_world_writable(path):
            message = f"every user of this machine may change {printable(path)}, and the kubelet runs it"
            fix = f"chmod o-w {printable(path)}"
            yield LintFinding(Severity.ERROR, "binary-world-writable", provider.place("name"), message, fix)


def _is_world_writable(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    # In a directory with the sticky bit, other users can still add missing names.
    return bool(mode & stat.S_IWOTH)
