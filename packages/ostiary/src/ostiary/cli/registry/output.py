"""Print the results of the registry tools as text, and convert them to JSON."""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING

from ostiary.cli.output import Style, paint, print_json, rows
from ostiary.conformance.lint import Lint
from ostiary.conformance.probe import Answered, ProbeResult
from ostiary.core.go_text import bytes_of
from ostiary.core.text import printable
from ostiary.registry.credentials import ImageCredential
from ostiary.registry.explain import CredentialCandidate, ImageExplanation, PatternVerdict, ProviderTrace, SourceTrace
from ostiary.registry.keyring import Lookup
from ostiary.registry.lint_document import LintFinding, Severity

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WIDTH = 10
STYLES = {Severity.ERROR: Style.BAD, Severity.WARNING: Style.DOUBTFUL, Severity.INFO: Style.FAINT}
ANSWER_STYLES = {
    Answered.ACCEPTED: Style.GOOD,
    Answered.REJECTED: Style.BAD,
    Answered.FAILED: Style.BAD,
    Answered.NOT_TRIED: Style.DOUBTFUL,
}
OUTCOME_STYLES = {"failed": Style.BAD, "ran": Style.GOOD, "cached": Style.GOOD}


def as_json(value: DataclassInstance) -> dict[str, object]:
    """Convert *value*, a dataclass without secrets, to JSON with camelCase field names."""
    return {_camel(member.name): _json_value(getattr(value, member.name)) for member in fields(value)}


def _json_value(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return as_json(value)
    if isinstance(value, (tuple, list)):
        return [_json_value(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def _print_rows(parts: Iterable[tuple[str, str]]) -> None:
    for row in rows(parts, stream=sys.stdout, width=WIDTH):
        print(row)


# --- get ---


def print_lookup(lookup: Lookup, *, as_json: bool) -> None:
    """Print the credentials, including secrets."""
    if as_json:
        print_json({"image": lookup.repository, "credentials": [found_json(credential) for credential in lookup]})
        return
    for number, credential in enumerate(lookup, 1):
        print(f"{number}. {printable(credential.key)}, from {printable(str(credential.source))}")
        _print_rows(found_rows(credential))


def found_rows(found: ImageCredential) -> Iterator[tuple[str, str]]:
    if found.username or found.password:
        yield _text_or_base64("username", found.username, " (base64)")
        yield _text_or_base64("password", found.password.reveal(), " (base64)")
    for name, token in (("identity", found.identity_token), ("registry", found.registry_token)):
        if token:
            yield f"{name} token", token.reveal()


def _text_or_base64(name: str, text: str, suffix: str) -> tuple[str, str]:
    """Return *name* and *text*. A docker login that is not UTF-8 is returned in base64, under another name."""
    data = bytes_of(text)
    try:
        return name, data.decode("utf-8")
    except UnicodeDecodeError:
        return f"{name}{suffix}", b64encode(data).decode("ascii")


def found_json(found: ImageCredential) -> dict[str, object]:
    fields = {
        "username": found.username,
        "password": found.password.reveal(),
        "identityToken": found.identity_token.reveal(),
        "registryToken": found.registry_token.reveal(),
    }
    where = {"key": found.key, "source": {"kind": found.source.kind.value, "name": found.source.name}}
    return {**where, **dict(_text_or_base64(name, text, "Base64") for name, text in fields.items() if text)}


# --- explain ---


def print_explanation(told: ImageExplanation) -> None:
    print(f"image {told.image.given}")
    config = ", ".join((*told.config_files, told.config_hash)) if told.config_hash else "none"
    _print_rows([("looked up", told.image.repository), ("config", config)])
    for source in told.sources:
        _print_source(source)
    for provider in told.providers:
        _print_provider(provider)
    print()
    print_candidates(told)


def print_candidates(told: ImageExplanation) -> None:
    print(told.conclusion)
    for candidate in told.candidates:
        print(f"  {_candidate(candidate)}")


def _candidate(candidate: CredentialCandidate) -> str:
    user = f" of {candidate.username}" if candidate.username else ""
    return f"{candidate.position}. {candidate.form}{user}, under {candidate.key}, from {candidate.source}"


def _print_source(source: SourceTrace) -> None:
    print(f"\n{source.source}")
    if source.error:
        _print_rows([("problem", source.error)])
    _print_verdicts("key", source.keys)


def _print_provider(trace: ProviderTrace) -> None:
    outcome = paint(trace.outcome, OUTCOME_STYLES.get(trace.outcome, Style.FAINT), sys.stdout)
    print(f"\nprovider {printable(trace.name)}: {outcome}")
    _print_verdicts("pattern", trace.patterns)
    _print_rows(_provider_rows(trace))
    _print_verdicts("key", trace.keys)


def _provider_rows(trace: ProviderTrace) -> Iterator[tuple[str, str]]:
    if trace.outcome == "no-match":
        yield "where", trace.where
        return
    for state in trace.cache:
        cached = "nothing kept" if state.seconds_left is None else f"kept, {state.seconds_left:.0f} s left"
        yield "cache", f"{state.scope} {printable(state.key)}: {cached}"
    took = "" if trace.seconds is None else f", in {trace.seconds:.2f} s"
    yield trace.outcome, f"{trace.detail}{took}"
    if trace.hint:
        yield "hint", trace.hint
    if trace.code:
        yield "code", trace.code
    yield "executable", printable(trace.executable)
    yield "where", trace.where


def _print_verdicts(name: str, verdicts: Iterable[PatternVerdict]) -> None:
    for verdict in verdicts:
        parts = [f"{verdict.pattern}  {'matches' if verdict.matches else 'does not match'}"]
        parts += [text for text in (verdict.message, f"hint: {verdict.hint}" if verdict.hint else "") if text]
        _print_rows([(name, "\n  ".join(parts))])


# --- lint ---


def print_lint(found: Lint) -> None:
    for finding in found.findings:
        _print_finding(finding)
    counts = [f"{found.count(severity)} {severity.value}" for severity in Severity if found.count(severity)]
    files = "1 file" if len(found.files) == 1 else f"{len(found.files)} files"
    loads = "" if found.loads else "; the kubelet would not start with it"
    print(f"{files}: {', '.join(counts) or 'no problems'}{loads}")


def _print_finding(finding: LintFinding) -> None:
    severity = paint(finding.severity.value.upper(), STYLES[finding.severity], sys.stdout)
    print(f"{severity} {finding.rule}  {printable(str(finding.place))}")
    _print_rows([("what", finding.message), *([("fix", finding.fix)] if finding.fix else [])])
    print()


# --- probe ---


def print_probe(told: ProbeResult) -> None:
    print(f"{told.registry} for {told.repository}: {told.message}")
    for attempt in told.attempts:
        verdict = paint(attempt.answered.value, ANSWER_STYLES[attempt.answered], sys.stdout)
        user = f"{attempt.username or '(no username)'}, under {attempt.key}, from {printable(attempt.source)}"
        print(f"\n{user if attempt.source else 'without a credential'}: {verdict}")
        _print_rows([("why", attempt.message)])
