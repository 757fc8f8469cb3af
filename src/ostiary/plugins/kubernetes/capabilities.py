"""Which capabilities the object in a request asks for, as the settings say. Pure; called by the mapper.

body -> object_reading -> the rules of its resource (field_rules, pod_security) -> names, or all of them in doubt
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ostiary.interfaces.attributes import ObjectCapabilities, RequestContent
from ostiary.model import RequestInfo
from ostiary.plugins.kubernetes.field_rules import FieldRule, LookedAt
from ostiary.plugins.kubernetes.object_reading import Unreadable, read_object

WRITES = frozenset(("create", "update", "patch"))
# Each is a question to the policy. An object that asks for more is in doubt.
MOST_NAMES = 32


def resource_name(info: RequestInfo) -> str:
    """As settings write it: ``pods``, ``deployments.apps``, ``pods/ephemeralcontainers``."""
    resource = f"{info.resource}.{info.api_group}" if info.api_group else info.resource
    return f"{resource}/{info.subresource}" if info.subresource else resource


class CapabilityRules:
    """The rules by resource, and by that all names that such a request could have."""

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
