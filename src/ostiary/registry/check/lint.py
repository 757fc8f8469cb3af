"""Finds what is wrong, or merely not what was meant, in a provider configuration, and says how to mend it.

    files -> whatever can be read of them -> each rule looks at each pattern and provider -> Lint

A pattern that can never match is no mistake to the kubelet: the provider is silently not run. Here it is one.
A configuration that does not load is looked at all the same; then the reasons are findings among the others.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ostiary.core.config import Json
from ostiary.core.go.duration import DurationError, parse_duration
from ostiary.core.provider_switches import Switches
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem
from ostiary.registry.check.lint_patterns import overlap_findings, pattern_findings
from ostiary.registry.check.lint_reading import LintFinding, Severity, WrittenProvider, WrittenProviders
from ostiary.registry.check.lint_switches import switch_findings
from ostiary.registry.kubelet.config import config_files, load

__all__ = ["Lint", "LintFinding", "Severity", "lint"]

AUDIENCE_VERB = "request-serviceaccounts-token-audience"


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


def lint(
    path: str | os.PathLike[str], *, bin_dir: str | os.PathLike[str] | None = None, switches: Switches | None = None
) -> Lint:
    """Judge the configuration at *path*, a file or a directory; with a *bin_dir* the executables too.

    With *switches* it says which of the providers are switched off.

    Never raises for what is wrong with the configuration.
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
    # In a directory with the sticky bit, others can still add names that are missing.
    return bool(mode & stat.S_IWOTH)
