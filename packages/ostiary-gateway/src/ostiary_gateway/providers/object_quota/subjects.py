"""Determine which limits cover a request, and which subjects it is charged to."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ostiary.model import Attributes, RequestInfo
from ostiary_gateway.providers.object_quota.settings import GROUP, NAMESPACE, USER, ObjectLimit

CHANGING_VERBS = frozenset(("create", "update", "patch", "delete", "deletecollection"))
DELETING_VERBS = frozenset(("delete", "deletecollection"))
EVICTION, STATUS = "eviction", "status"


@dataclass(frozen=True, slots=True)
class ObjectOwner:
    """The user who created an object."""

    username: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuotaSubject:
    """What a count belongs to: a namespace, a user, a group, or a combination. Parts that do not matter are empty."""

    limit: str
    upstream: str
    namespace: str = ""
    user: str = ""
    group: str = ""

    @property
    def key(self) -> str:
        # JSON is unambiguous, whatever characters the names have.
        return json.dumps((self.limit, self.upstream, self.namespace, self.user, self.group))

    def __str__(self) -> str:
        parts = {"namespace": self.namespace, "user": self.user, "group": self.group}
        return ", ".join(f"{name} {text}" for name, text in parts.items() if text) or "everyone"


def resource_name(info: RequestInfo) -> str:
    """Return the resource as written in limits: ``pods``, ``deployments.apps``."""
    return f"{info.resource}.{info.api_group}" if info.api_group else info.resource


def covers(limit: ObjectLimit, attributes: Attributes) -> bool:
    """Whether *limit* applies to what this request changes, and to its user."""
    info, user = attributes.request, attributes.user
    if info.verb not in CHANGING_VERBS or not info.is_resource or resource_name(info) not in limit.resources:
        return False
    if not _concerns(limit, info):
        return False
    if limit.namespaces and info.namespace not in limit.namespaces:
        return False
    if deletes(info) or (limit.counts_by_owner and info.verb != "create"):
        # Any user may delete a counted object. Changes to an object count for its owner.
        return True
    return is_for(limit, user.username, user.groups)


def is_for(limit: ObjectLimit, username: str, groups: Iterable[str]) -> bool:
    """Whether *limit* applies to a user: the requester or, if the limit counts by owner, the object's owner."""
    return not (limit.users or limit.groups) or username in limit.users or not limit.groups.isdisjoint(groups)


def _concerns(limit: ObjectLimit, info: RequestInfo) -> bool:
    if not info.subresource:
        return True
    if info.verb == "create":
        return info.subresource == EVICTION
    if info.subresource == STATUS:
        return any(each.path.steps[0] == STATUS for each in limit.sums)
    # Scale, resize and other subresources may change a field that is summed.
    return bool(limit.sums) and info.verb in ("update", "patch")


def deletes(info: RequestInfo) -> bool:
    return info.verb in DELETING_VERBS or info.subresource == EVICTION


def subjects(limit: ObjectLimit, *, upstream: str, namespace: str, owner: ObjectOwner | None) -> list[QuotaSubject]:
    """Return the subjects that an object in *namespace* counts for.

    Empty if the limit is per user or group and *owner* is unknown.
    """
    if limit.counts_by_owner and (owner is None or not is_for(limit, owner.username, owner.groups)):
        return []
    place = namespace if NAMESPACE in limit.per else ""
    user = owner.username if owner is not None and USER in limit.per else ""
    groups: Iterable[str] = ("",)
    if GROUP in limit.per:
        groups = sorted(limit.groups.intersection(owner.groups if owner is not None else ()))
    return [QuotaSubject(limit.name, upstream, place, user, group) for group in groups]


def needs_content(limits: Sequence[ObjectLimit]) -> bool:
    """Whether the content or the name of the object matters, and not only that there is one more."""
    return any(limit.sums or limit.counts_by_owner for limit in limits)
