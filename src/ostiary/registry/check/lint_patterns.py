"""The rules of `lint` about patterns: each by itself, and all of them together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ostiary.core.text import printable
from ostiary.registry.check.lint_reading import LintFinding, Severity, WrittenPattern
from ostiary.registry.matching.go_url import ImageAddress
from ostiary.registry.matching.image_name import DOCKER_HUB, LOCALHOST, OLD_DOCKER_HUB
from ostiary.registry.matching.pattern_index import PatternIndex

HUB_PULL_HOST = "registry-1.docker.io"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_IP = re.compile(r"[0-9*]+(?:\.[0-9*]+){3}|\[.*\]")


def pattern_findings(pattern: WrittenPattern) -> Iterator[LintFinding]:
    address = pattern.address()
    if address is None:
        # `load` has told of it.
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
    # A star may also be written as an escape, and then there is none to cut at.
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
    # A pattern that matches the text of another one matches all that the other matches: where the other has a
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
