"""An audit policy: how much of a request is recorded. Pure, and by Kubernetes' own rules.

Asked by `ostiary.gateway.audit` for every request that is unlike earlier ones. The first rule that matches decides; a
request that no rule matches is not recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostiary.model import RequestInfo, UserInfo
from ostiary.wire.audit.levels import AuditLevel, Stage


@dataclass(frozen=True, slots=True)
class GroupResources:
    """Resources of one API group, or of all (``*``). No resources means all of it; no names means all objects."""

    group: str = ""
    resources: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()

    def matches(self, request: RequestInfo) -> bool:
        if self.group not in (request.api_group, "*"):
            return False
        if not self.resources:
            return True
        if self.names and request.name not in self.names:
            return False
        return any(_resource_matches(pattern, request) for pattern in self.resources)


@dataclass(frozen=True, slots=True)
class AuditRule:
    """What it says, and about which requests; an empty condition is met by every request."""

    level: AuditLevel
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    verbs: frozenset[str] = frozenset()
    resources: tuple[GroupResources, ...] = ()
    namespaces: frozenset[str] = frozenset()
    urls: tuple[str, ...] = ()
    omit_stages: frozenset[Stage] = frozenset()
    omit_managed_fields: bool | None = None

    def matches(self, request: RequestInfo, user: UserInfo | None) -> bool:
        if self.users and (user is None or user.username not in self.users):
            return False
        if self.groups and (user is None or self.groups.isdisjoint(user.groups)):
            return False
        if self.verbs and request.verb not in self.verbs:
            return False
        if self.namespaces or self.resources:
            return request.is_resource and self._resource_matches(request)
        if self.urls:
            return not request.is_resource and any(_url_matches(pattern, request.path) for pattern in self.urls)
        return True

    def _resource_matches(self, request: RequestInfo) -> bool:
        if self.namespaces and request.namespace not in self.namespaces:
            return False
        return not self.resources or any(group.matches(request) for group in self.resources)


@dataclass(frozen=True, slots=True)
class AuditScope:
    """What the policy wants to know of one request."""

    level: AuditLevel
    omit_stages: frozenset[Stage] = frozenset()
    omit_managed_fields: bool = False


@dataclass(frozen=True, slots=True)
class Policy:
    rules: tuple[AuditRule, ...]
    omit_stages: frozenset[Stage] = frozenset()
    omit_managed_fields: bool = False

    @property
    def has_names(self) -> bool:
        """Whether what is recorded depends on the names of objects."""
        return any(group.names for rule in self.rules for group in rule.resources)

    def scope(self, request: RequestInfo, user: UserInfo | None) -> AuditScope:
        """The first rule that matches decides. *user* is None when nobody could be identified."""
        for rule in self.rules:
            if rule.matches(request, user):
                own = rule.omit_managed_fields
                without_managed_fields = self.omit_managed_fields if own is None else own
                return AuditScope(rule.level, self.omit_stages | rule.omit_stages, without_managed_fields)
        return AuditScope(AuditLevel.NONE, self.omit_stages, self.omit_managed_fields)


# Every request once, when it is over: what the gateway records when it is given no policy file.
DEFAULT_POLICY = Policy((AuditRule(AuditLevel.METADATA),), omit_stages=frozenset({Stage.RECEIVED}))


def _resource_matches(pattern: str, request: RequestInfo) -> bool:
    resource, subresource = request.resource, request.subresource
    if pattern in ("*", f"{resource}/{subresource}" if subresource else resource):
        return True
    if subresource and pattern.startswith("*/"):
        return pattern[2:] == subresource
    # Unlike in RBAC, this form covers the resource itself too.
    return pattern.endswith("/*") and pattern[:-2] == resource


def _url_matches(pattern: str, path: str) -> bool:
    if pattern in ("*", path):
        return True
    return pattern.endswith("*") and path.startswith(pattern.rstrip("*"))
