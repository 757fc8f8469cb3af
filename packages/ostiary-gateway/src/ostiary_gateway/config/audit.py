"""The settings ``audit``: which requests are recorded, and where."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ostiary.core.yaml import ConfigSection
from ostiary.errors import ConfigurationError
from ostiary_gateway.config.kinds import EntryName, ProviderEntries, TypeName
from ostiary_gateway.settings.declare import RawFields
from ostiary_gateway.settings.kinds import FilePath, Flag, unreadable
from ostiary_gateway.settings.sections import ProviderFlag, ProviderSettings
from ostiary_gateway.wire.audit_policy import load_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    name: Annotated[str, EntryName("small letters, digits and dashes; unique in its list")]
    type: Annotated[str, TypeName("a bundled type, or one of an installed package (entry point `ostiary.audit`)")]
    fields: Annotated[ConfigSection, RawFields] = field(compare=False)


@dataclass(frozen=True, slots=True)
class Audit:
    """Audit settings.

    `policy` None: every request at level Metadata. `stdout`, `log` and `webhook` are short for `sinks`.
    """

    policy: Annotated[Path | None, FilePath("an `audit.k8s.io/v1` Policy", unset="every request at level Metadata")] = (
        None
    )
    stdout: Annotated[bool, ProviderFlag("events go to standard output", "audit")] = False
    log: Annotated[ConfigSection | None, ProviderSettings("events go to a file", "audit", unset="none")] = field(
        default=None, compare=False
    )
    webhook: Annotated[ConfigSection | None, ProviderSettings("events go to another server", "audit", unset="none")] = (
        field(default=None, compare=False)
    )
    sinks: Annotated[
        tuple[AuditEntry, ...],
        ProviderEntries(
            "where else events go: [providers](providers.md#audit) of any type, each with its settings",
            AuditEntry,
            "One provider.",
            plugin_type="audit",
        ),
    ] = ()
    blocking: Annotated[
        bool,
        Flag(
            "no request passes whose record cannot be kept; each is recorded when it is received, whatever stages the"
            " policy omits"
        ),
    ] = False

    def check(self, fields: ConfigSection) -> None:
        if self.policy is None or unreadable(self.policy):
            return
        try:
            load_policy(self.policy)
        except ConfigurationError as error:
            for problem in error.problems:
                fields.problem(f"{error.summary}: {problem}", "policy", problem.hint)
