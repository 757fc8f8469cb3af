"""The settings of the mapper ``kubernetes``: which fields of objects are capabilities."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ostiary.core.config import Fields
from ostiary.core.settings.kinds import Names, OneOf, Text
from ostiary.core.settings.sections import OptionalSection, Sections
from ostiary.plugins.common.field_path import FieldPath
from ostiary.plugins.kubernetes.capabilities import CapabilityRules
from ostiary.plugins.kubernetes.field_rules import FieldRule, is_one_of, is_set
from ostiary.plugins.kubernetes.pod_security import pod_security_rules

_RESOURCE = r"[a-z0-9-]+(\.[a-z0-9.-]+)?(/[a-z0-9-]+)?"
_NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


class Preset(Enum):
    NONE = "none"
    POD_SECURITY = "podSecurity"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityEntry:
    """One capability of one's own."""

    name: Annotated[
        str, Text("its name", pattern=_NAME, mistake="it is not a name of lower-case letters, digits and dashes")
    ]
    resources: Annotated[
        tuple[str, ...],
        Names(
            "whose objects: `pods`, `deployments.apps`, `pods/ephemeralcontainers`",
            pattern=_RESOURCE,
            mistake="expected a resource, as in pods or deployments.apps",
            least=1,
        ),
    ]
    fields: Annotated[
        tuple[str, ...],
        Names("the fields, as in `spec.containers[*].securityContext.privileged`; one of them is enough", least=1),
    ]
    values: Annotated[
        tuple[str, ...],
        Names('the values that make it, as texts: `["true"]`, `["Unmasked"]`', unset="any value but null"),
    ] = ()

    def check(self, fields: Fields) -> None:
        for text in self.fields:
            try:
                FieldPath.parse(text)
            except ValueError as error:
                fields.problem(f"{text}: {error}", "fields", "names are separated by dots; [*] is every item of a list")

    def rules(self) -> list[FieldRule]:
        test = is_one_of(*self.values) if self.values else is_set
        return [FieldRule(self.name, FieldPath.parse(text).steps, test) for text in self.fields]


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilitySettings:
    preset: Annotated[
        Preset,
        OneOf(
            "`podSecurity`: what the Pod Security Standards call dangerous, in pods and in the templates of pods;"
            " `none`: only `entries`",
            Preset,
        ),
    ] = Preset.NONE
    entries: Annotated[
        tuple[CapabilityEntry, ...], Sections("capabilities of your own", CapabilityEntry, "One capability.")
    ] = ()

    def check(self, fields: Fields) -> None:
        if self.preset is Preset.NONE and not self.entries and fields.is_right("preset", "entries"):
            fields.problem("no capability is configured", None, "preset: podSecurity, or entries")

    def rules(self) -> CapabilityRules:
        rules = {name: list(each) for name, each in pod_security_rules().items()}
        if self.preset is Preset.NONE:
            rules = {}
        for entry in self.entries:
            for resource in entry.resources:
                rules.setdefault(resource, []).extend(entry.rules())
        return CapabilityRules(rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesAttributesSettings:
    """The settings of the mapper ``kubernetes``."""

    capabilities: Annotated[
        CapabilitySettings | None,
        OptionalSection(
            "fields of objects that need a right of their own: `use` of the resource `capabilities` in the group"
            " `ostiary.dev`; left out: none, and no body is read",
            CapabilitySettings,
        ),
    ] = None
