"""Which providers of a configuration are switched off, for `lint`: what was a roll-back may have been forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ostiary.core.provider_switches import ALL, Switches
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.model import Place
from ostiary.registry.check.lint_reading import LintFinding, Severity, WrittenProvider


def switch_findings(providers: Iterable[WrittenProvider], switches: Switches) -> Iterator[LintFinding]:
    """Each provider that is off, and each name that is off and that no provider has."""
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
