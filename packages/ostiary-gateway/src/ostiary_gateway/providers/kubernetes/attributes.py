"""The attribute mapper ``kubernetes``: requests to a Kubernetes API server, or to any API with the same paths.

It is the default ``attributes`` of an upstream. With ``capabilities``, some fields of objects need a permission of
their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Self

from ostiary.core.yaml import ConfigSection
from ostiary.model import RequestInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.attributes import ObjectCapabilities, RequestContent, RequestLine
from ostiary_gateway.providers.common.field_path import FieldPath
from ostiary_gateway.providers.kubernetes.field_rules import FieldRule, LookedAt, is_one_of, is_set
from ostiary_gateway.providers.kubernetes.object_reading import Unreadable, read_object
from ostiary_gateway.providers.kubernetes.pod_security import pod_security_rules
from ostiary_gateway.settings.declare import read_settings
from ostiary_gateway.settings.kinds import Names, OneOf, Text
from ostiary_gateway.settings.sections import OptionalSection, Sections
from ostiary_gateway.wire.request_info import long_running, request_info

WRITES = frozenset(("create", "update", "patch"))
# Each name is a query to the policy. An object that needs more is in doubt.
MOST_NAMES = 32


def resource_name(info: RequestInfo) -> str:
    """Return the resource as written in settings: ``pods``, ``deployments.apps``, ``pods/ephemeralcontainers``."""
    resource = f"{info.resource}.{info.api_group}" if info.api_group else info.resource
    return f"{resource}/{info.subresource}" if info.subresource else resource


class CapabilityRules:
    """The capability rules of each resource. If an object cannot be read, it needs all names of its resource.

    body -> object_reading -> the rules of its resource (field_rules, pod_security) -> names
    """

    def __init__(self, rules: Mapping[str, Sequence[FieldRule]]) -> None:
        self._rules = {resource: tuple(each) for resource, each in rules.items()}
        self._names = {resource: tuple(sorted({rule.name for rule in each})) for resource, each in self._rules.items()}

    def cover(self, info: RequestInfo) -> bool:
        return info.verb in WRITES and info.is_resource and resource_name(info) in self._rules

    def read(self, info: RequestInfo, content: RequestContent) -> ObjectCapabilities:
        try:
            document = read_object(info.verb, content)
            rules = self._rules[resource_name(info)]
            looked_at = LookedAt()
            names = sorted({name for rule in rules for name in rule.capabilities(document, looked_at)})
        except Unreadable as error:
            return self.in_doubt(info, str(error))
        if len(names) > MOST_NAMES:
            return self.in_doubt(info, "it asks for too many")
        return ObjectCapabilities(tuple(names))

    def in_doubt(self, info: RequestInfo, doubt: str) -> ObjectCapabilities:
        return ObjectCapabilities(self._names[resource_name(info)], doubt)


_RESOURCE = r"[a-z0-9-]+(\.[a-z0-9.-]+)?(/[a-z0-9-]+)?"
_NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"


class Preset(Enum):
    NONE = "none"
    POD_SECURITY = "podSecurity"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapabilityEntry:
    """A custom capability."""

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

    def check(self, fields: ConfigSection) -> None:
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
    """The settings ``capabilities`` of an upstream."""

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

    def check(self, fields: ConfigSection) -> None:
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


# No percent-encoding, so that the text is the name. Excludes namespaces, which are resources inside themselves, and the
# old paths that begin with a verb.
_SEGMENT = r"[^/%]++"
_KIND = (
    rf"/(?:api/{_SEGMENT}|apis/{_SEGMENT}/{_SEGMENT})/(?:namespaces/{_SEGMENT}/)?"
    rf"(?!(?:namespaces|watch|proxy|status|finalize)(?:/|\Z)){_SEGMENT}"
)
_OBJECT_NAMES_NAME = r"[a-z0-9](?:[a-z0-9.\-]{0,251}[a-z0-9])?"
_OBJECT = re.compile(rf"({_KIND})(?:/({_OBJECT_NAMES_NAME})((?:/{_SEGMENT})?))?", re.ASCII)
# Whole parameters that differ only in the number; no decision depends on them.
_NUMBER = re.compile(r"(?<![^&])((?:resourceVersion|limit|timeoutSeconds)=)[0-9]{1,18}(?![^&])", re.ASCII)


def split_name(path: str, query: str) -> tuple[str, str, str] | None:
    """Split a path and query around the object name, the only part in which requests of a kind differ.

    Only the usual forms are split; None means "unknown". The result must agree with `request_info`, which reads the
    same path: a property test compares the two. See `ostiary_gateway.interfaces.attributes.SplitsNames`.
    """
    line = _OBJECT.fullmatch(path)
    if line is None:
        return None
    kind, name, after = line.groups()
    if name is not None:
        # The slash belongs to the part before the name, so that an object and a collection have nothing in common.
        return kind + "/", name, f"{after}?{_without_numbers(query)}" if query else after
    after = _without_numbers(query)
    # Without a number nothing could differ.
    return None if after == query else (path, "", "?" + after)


def _without_numbers(query: str) -> str:
    # Joined by a character that no query has: a parameter without a number differs from one with a number.
    return "#".join(_NUMBER.split(query))


_TERMINALS = frozenset(("exec", "attach", "portforward"))


class KubernetesAttributes:
    """Map requests to attributes as kube-apiserver does."""

    reads_kubernetes_paths = True
    split_name = staticmethod(split_name)
    # A pod or its template has a few kilobytes.
    largest_body = 256 * 1024

    def __init__(self, capabilities: CapabilityRules | None = None) -> None:
        self._capabilities = capabilities

    @classmethod
    def from_config(cls, fields: ConfigSection, context: Context) -> Self:
        capabilities = read_settings(KubernetesAttributesSettings, fields, context.directory).capabilities
        if capabilities is None or not fields.is_right("capabilities"):
            return cls()
        return cls(capabilities.rules())

    def request_info(self, line: RequestLine) -> RequestInfo:
        return request_info(line)

    def long_running(self, info: RequestInfo) -> bool:
        return long_running(info)

    @property
    def reads_bodies(self) -> bool:
        return self._capabilities is not None

    def in_body_of(self, info: RequestInfo) -> bool:
        return self._capabilities is not None and self._capabilities.cover(info)

    def capabilities_of(self, info: RequestInfo, content: RequestContent) -> ObjectCapabilities:
        assert self._capabilities is not None, "it covers the request"
        return self._capabilities.read(info, content)

    def in_doubt(self, info: RequestInfo, doubt: str) -> ObjectCapabilities:
        assert self._capabilities is not None, "it covers the request"
        return self._capabilities.in_doubt(info, doubt)

    def also_required(self, info: RequestInfo) -> RequestInfo | None:
        """A terminal opened with GET, as WebSockets must be, needs the permission for POST too.

        Otherwise a user with read access could run commands. Kubernetes requires this for WebSockets since 1.35; here
        it applies to every GET, because these subresources serve nothing but upgrades.
        """
        if info.verb != "get" or info.subresource not in _TERMINALS or info.resource != "pods" or info.api_group:
            return None
        return replace(info, verb="create")
