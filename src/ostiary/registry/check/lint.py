"""Finds what is wrong, or merely not what was meant, in a provider configuration, and says how to mend it.

    files -> whatever can be read of them -> each rule looks at each pattern and provider -> Lint

A pattern that can never match is no mistake to the kubelet: the provider is silently not run. Here it is one.
A configuration that does not load is looked at all the same; then the reasons are findings among the others.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ostiary.core.config import KUBELET, MAX_BYTES, Document, parse_all
from ostiary.core.go.duration import DurationError, parse_duration
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem
from ostiary.registry.kubelet.config import config_files, load
from ostiary.registry.kubelet.document import PROPOSAL_KINDS
from ostiary.registry.matching.go_url import Address, UnparsableAddress, parse_address
from ostiary.registry.matching.image_match import PatternIndex
from ostiary.registry.matching.image_name import DOCKER_HUB, LOCALHOST, OLD_DOCKER_HUB

HUB_PULL_HOST = "registry-1.docker.io"
AUDIENCE_VERB = "request-serviceaccounts-token-audience"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_USERINFO = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://)?[^/?#]*@")
_IP = re.compile(r"[0-9*]+(?:\.[0-9*]+){3}|\[.*\]")


class Severity(Enum):
    """ERROR: it does not work as written. WARNING: it likely does something else than was meant."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class LintFinding:
    severity: Severity
    rule: str
    place: Place
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Lint:
    """The findings, in the order of the files and their lines. `loads`: a kubelet would start with it."""

    files: tuple[str, ...]
    loads: bool
    findings: tuple[LintFinding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings do not count."""
        return self.count(Severity.ERROR) == 0

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


def lint(path: str | os.PathLike[str], *, bin_dir: str | os.PathLike[str] | None = None) -> Lint:
    """Judge the configuration at *path*, a file or a directory; with a *bin_dir* the executables too.

    Never raises for what is wrong with the configuration.
    """
    try:
        load(path, bin_dir=bin_dir)
    except ConfigurationError as error:
        problems = error.problems
    else:
        problems = ()
    found = [_load_finding(problem) for problem in problems]
    reading = _Reading()
    try:
        files = tuple(config_files(os.fspath(path)))
    except ConfigurationError:
        files = ()
    for file in files:
        reading.read(file)
    found += reading.findings
    found += [finding for pattern in reading.patterns for finding in _pattern_findings(pattern)]
    found += _patterns_findings(reading.patterns)
    found += [finding for provider in reading.providers for finding in _provider_findings(provider)]
    if bin_dir is not None:
        found += _binary_findings(reading.providers, os.fspath(bin_dir))
    return Lint(files, not problems, tuple(sorted(dict.fromkeys(found), key=_position(files))))


def _position(files: tuple[str, ...]) -> Callable[[LintFinding], tuple[int, int]]:
    order = {file: number for number, file in enumerate(files)}
    return lambda finding: (order.get(finding.place.file or "", len(files)), finding.place.line or 0)


# --- why it does not load ---

# What the message of a problem begins or ends with, and the rule that it breaks.
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


# --- whatever can be read ---


@dataclass(frozen=True, slots=True)
class _Pattern:
    """`text` is without userinfo, which matching ignores and which may hold a password.

    `any_port`: the dialect of the proposal, in which the port counts only if the pattern has one.
    """

    text: str
    place: Place
    provider: str
    any_port: bool = False

    def address(self) -> Address | None:
        try:
            return parse_address(self.text)
        except UnparsableAddress:
            return None

    @property
    def shown(self) -> str:
        return printable(self.text)


def without_userinfo(pattern: str) -> str:
    """*pattern* as it may be shown: without what stands before an @ of its host."""
    return _USERINFO.sub(r"\1", pattern)


@dataclass(frozen=True, slots=True)
class _Provider:
    name: str
    fields: dict[str, Any] = field(repr=False)
    document: Document
    index: int
    is_proposed: bool = False

    def place(self, *steps: str | int) -> Place:
        return self.document.place("providers", self.index, *steps)


class _Reading:
    """Takes from the files what has the shape of a provider, and minds nothing else."""

    def __init__(self) -> None:
        self.providers: list[_Provider] = []
        self.patterns: list[_Pattern] = []
        self.findings: list[LintFinding] = []

    def read(self, file: str) -> None:
        try:
            with open(file, "rb") as opened:
                documents = parse_all(opened.read(MAX_BYTES + 1), file=file, dialect=KUBELET)
            first = next(documents, None)
        except (OSError, ConfigurationError):
            # `load` has told of it.
            return
        if first is None:
            return
        self._take(first)
        if first.more:
            self.findings.append(_second_document(documents, file))

    def _take(self, document: Document) -> None:
        root = document.value
        if not isinstance(root, dict):
            return
        is_proposed = root.get("kind") in PROPOSAL_KINDS
        if is_proposed:
            message = "it is written in the dialect of the first proposal, which no kubelet reads"
            self._add(Severity.WARNING, "proposal-dialect", document.place("kind"), message, "ostiary registry migrate")
        providers = root.get("providers")
        for index, fields in enumerate(providers if isinstance(providers, list) else ()):
            if isinstance(fields, dict):
                self._take_provider(_Provider(str(fields.get("name") or ""), fields, document, index, is_proposed))

    def _take_provider(self, provider: _Provider) -> None:
        self.providers.append(provider)
        for key in ("matchImages", "imageMatchers"):
            patterns = provider.fields.get(key)
            for number, text in enumerate(patterns if isinstance(patterns, list) else ()):
                if isinstance(text, str):
                    place, any_port = provider.place(key, number), provider.is_proposed
                    self.patterns.append(_Pattern(without_userinfo(text), place, provider.name, any_port))

    def _add(self, severity: Severity, rule: str, place: Place, message: str, fix: str) -> None:
        self.findings.append(LintFinding(severity, rule, place, message, fix))


def _second_document(documents: Iterator[Document], file: str) -> LintFinding:
    try:
        line = next(documents).root.line
    except ConfigurationError:
        # Nobody reads it, so nobody minds that it is broken.
        line = None
    message = "only the first YAML document of a file is read, and this one is silently ignored"
    fix = "put it into a file of its own, in a directory that is given as the configuration"
    return LintFinding(Severity.WARNING, "second-document", Place(file, line=line), message, fix)


# --- one pattern ---


def _pattern_findings(pattern: _Pattern) -> Iterator[LintFinding]:
    address = pattern.address()
    if address is None:
        # `load` has told of it.
        return
    if scheme := _SCHEME.match(pattern.text):
        fix = f'write "{printable(pattern.text[scheme.end() :])}"'
        message = f'"{pattern.shown}" has a scheme, and is compared as if "{scheme[0][:-3]}" were the host'
        yield LintFinding(Severity.ERROR, "scheme-in-pattern", pattern.place, message, fix)
        return
    for rule in (_star_in_path, _upper_case, _docker_hub, _star_alone, _open_prefix, _default_port, _local_port):
        finding = rule(pattern, address)
        if finding is not None:
            yield finding


def _star_in_path(pattern: _Pattern, address: Address) -> LintFinding | None:
    if b"*" not in address.path:
        return None
    head, _, path = pattern.text.partition("/")
    # A star may also be written as an escape, and then there is none to cut at.
    kept = f"{head}/{path.partition('*')[0].partition('%')[0]}"
    message = f'"{pattern.shown}" never matches: in a path, * stands for itself, and no image has it in its name'
    fix = f'write "{printable(head if kept == f"{head}/" else kept)}": a path matches all that begins with it'
    return LintFinding(Severity.ERROR, "star-in-path", pattern.place, message, fix)


def _upper_case(pattern: _Pattern, address: Address) -> LintFinding | None:
    fix = f'write "{printable(pattern.text.lower())}"'
    if address.path.lower() != address.path:
        message = f'"{pattern.shown}" never matches: repositories are in lower case'
        return LintFinding(Severity.ERROR, "upper-case-path", pattern.place, message, fix)
    if address.host.lower() != address.host:
        message = f'"{pattern.shown}" matches only images whose host is written with the same capitals'
        return LintFinding(Severity.WARNING, "upper-case-host", pattern.place, message, fix)
    return None


def _docker_hub(pattern: _Pattern, address: Address) -> LintFinding | None:
    host = address.host.decode("utf-8", "replace")
    fix = f'write "{printable(pattern.text.replace(host, DOCKER_HUB, 1))}"'
    if host == OLD_DOCKER_HUB:
        message = f'"{pattern.shown}" never matches: images of Docker Hub are looked up as {DOCKER_HUB}'
        return LintFinding(Severity.ERROR, "docker-hub-name", pattern.place, message, fix)
    if host == HUB_PULL_HOST:
        message = f'"{pattern.shown}" matches only images written with this host; the others are {DOCKER_HUB}/...'
        return LintFinding(Severity.WARNING, "docker-hub-name", pattern.place, message, fix)
    return None


def _star_alone(pattern: _Pattern, address: Address) -> LintFinding | None:
    if len(address.labels) > 1 or b"*" not in address.labels[0]:
        return None
    message = f'"{pattern.shown}" matches only hosts of a single label, such as {LOCALHOST}'
    fix = 'a * stands for one label: write "*.*" for docker.io, "*.*.*" for registry.example.com, and so on'
    return LintFinding(Severity.WARNING, "star-alone", pattern.place, message, fix)


def _open_prefix(pattern: _Pattern, address: Address) -> LintFinding | None:
    if not address.path.strip(b"/") or address.path.endswith(b"/") or b"*" in address.path:
        return None
    message = (
        f'"{pattern.shown}" also matches {printable(pattern.text)}bar: a path is a prefix of text, not of segments'
    )
    fix = f'end it with a slash, "{printable(pattern.text)}/", unless it names one repository'
    return LintFinding(Severity.WARNING, "open-path-prefix", pattern.place, message, fix)


def _default_port(pattern: _Pattern, address: Address) -> LintFinding | None:
    if address.port != b"443":
        return None
    message = f'"{pattern.shown}" does not match images without a port: ports are compared as text'
    fix = f'add "{printable(pattern.text.replace(":443", "", 1))}"'
    return LintFinding(Severity.WARNING, "port-twin", pattern.place, message, fix)


def _local_port(pattern: _Pattern, address: Address) -> LintFinding | None:
    host = b".".join(address.labels).decode("utf-8", "replace")
    if address.port or pattern.any_port or not (host == LOCALHOST or _IP.fullmatch(host)):
        return None
    message = f'"{pattern.shown}" matches only images without a port, and a registry there usually has one'
    fix = f'add "{printable(host)}:5000", with the port that its images are written with'
    return LintFinding(Severity.INFO, "port-twin", pattern.place, message, fix)


# --- all patterns together ---


def _patterns_findings(patterns: list[_Pattern]) -> Iterator[LintFinding]:
    # A pattern that matches the text of another one matches all that the other matches: where the other has a
    # star, only a star can have matched it.
    index = PatternIndex(((pattern.text, pattern) for pattern in patterns), any_port=lambda pattern: pattern.any_port)
    for pattern in patterns:
        covering = (other for other in index.find(pattern.text) if other is not pattern)
        for other in covering:
            finding = _covered(pattern, other)
            if finding is not None:
                yield finding
                break
    yield from _port_twins(patterns)


def _covered(pattern: _Pattern, other: _Pattern) -> LintFinding | None:
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


def _port_twins(patterns: Iterable[_Pattern]) -> Iterator[LintFinding]:
    addresses = [(pattern, address) for pattern in patterns if (address := pattern.address()) is not None]
    without_port = {address.labels for _, address in addresses if not address.port}
    for pattern, address in addresses:
        if address.port and address.port != b"443" and address.labels not in without_port:
            host = printable(b".".join(address.labels).decode("utf-8", "replace"))
            message = f'"{pattern.shown}" matches only images with this port; none of {host} without a port'
            fix = f'add "{host}" if the registry is also reached without a port'
            yield LintFinding(Severity.INFO, "port-twin", pattern.place, message, fix)


# --- one provider ---


def _provider_findings(provider: _Provider) -> Iterator[LintFinding]:
    yield from _cache_findings(provider)
    attributes = provider.fields.get("tokenAttributes")
    if isinstance(attributes, dict):
        yield from _token_findings(provider, attributes)


def _cache_findings(provider: _Provider) -> Iterator[LintFinding]:
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


def _token_findings(provider: _Provider, attributes: dict[str, Any]) -> Iterator[LintFinding]:
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


def _binary_findings(providers: Iterable[_Provider], bin_dir: str) -> Iterator[LintFinding]:
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
    # In a directory with the sticky bit, others can still add names that are missing.
    return bool(mode & stat.S_IWOTH)
