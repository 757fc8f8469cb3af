"""Calls the Cedar engine with the policies that can concern a user, and with the request in Cedar's words.

Called by the cedar provider for each decision. The engine evaluates every policy that it is given, so it gets only
those that can apply to the user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import cedarpy

from ostiary.core.text import printable
from ostiary.core.users.implied_groups import implied_groups
from ostiary.errors import ProviderError
from ostiary.model import Attributes, Place, RequestInfo, UserInfo, Verdict

USER, GROUP, ACTION, RESOURCE, PATH, NAMESPACE = "User", "Group", "Action", "Resource", "Path", "Namespace"
PERMIT, FORBID = "permit", "forbid"

# How many different sets of policies are kept ready. Users with the same groups share one.
SLICES = 1024

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CedarPolicy:
    """One statement. `who` is the entity that its principal must be or be in, as (type, id); None for everybody."""

    id: str
    effect: str
    who: tuple[str, str] | None
    body: Body = field(hash=False, repr=False)
    place: Place = field(default=Place(), compare=False, repr=False)


class Slice:
    """The policies that can concern some users, ready for the engine."""

    __slots__ = ("_all", "_forbids", "has_permit", "policies")

    def __init__(self, policies: tuple[CedarPolicy, ...]) -> None:
        self.policies = policies
        self.has_permit = any(policy.effect == PERMIT for policy in policies)
        self._all = policy_set(policies)
        self._forbids = policy_set(policy for policy in policies if policy.effect == FORBID)

    def decide(self, attributes: Attributes) -> tuple[Verdict, list[str]]:
        """The verdict, and the ids of the policies that made it; raises `ProviderError`."""
        if not self.policies:
            return Verdict.NO_OPINION, []
        verdict, ids, errors = evaluate(self._all, attributes)
        if errors and verdict is not Verdict.DENY:
            # The engine leaves out a policy that fails. That is safe for a permit, and never for a forbid.
            _, _, errors = evaluate(self._forbids, attributes)
            if errors:
                raise ProviderError("a forbid policy cannot be evaluated", cause=printable("; ".join(errors)))
        return verdict, ids


class CedarPolicies:
    """A whole policy, indexed by principal. Only its cache of slices ever changes."""

    def __init__(self, policies: Iterable[CedarPolicy]) -> None:
        self.all = tuple(policies)
        self._of: dict[tuple[str, str] | None, list[CedarPolicy]] = {}
        for policy in self.all:
            self._of.setdefault(policy.who, []).append(policy)
        self.groups = frozenset(
            name for policy in self.all for kind, name in entities_in(policy.body) if kind == GROUP
        )  # fmt: skip
        self._slices: dict[tuple[tuple[str, str], ...], Slice] = {}

    def names_with_permit(self, kind: str) -> list[str]:
        """The users or groups that some permit names in its principal."""
        permitted = (who for who, policies in self._of.items() if any(policy.effect == PERMIT for policy in policies))
        return sorted(who[1] for who in permitted if who is not None and who[0] == kind)

    def slice_for(self, user: UserInfo) -> Slice:
        every = [(USER, user.username), *sorted((GROUP, group) for group in {*user.groups, *implied_groups(user)})]
        key = tuple(who for who in every if who in self._of)
        policies = self._slices.get(key)
        if policies is None:
            if len(self._slices) >= SLICES:
                del self._slices[next(iter(self._slices))]
            concerned: Iterator[tuple[str, str] | None] = iter((None, *key))
            policies = Slice(tuple(policy for who in concerned for policy in self._of.get(who, ())))
            self._slices[key] = policies
        return policies


def entities_in(value: object) -> Iterator[tuple[str, str]]:
    """Every entity that a policy names, wherever it does, as (type, id)."""
    if isinstance(value, dict):
        if isinstance(value.get("type"), str) and isinstance(value.get("id"), str):
            yield value["type"], value["id"]
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from entities_in(part)


def policy_set(policies: Iterable[CedarPolicy]) -> cedarpy.PolicySet:
    bodies = {policy.id: policy.body for policy in policies}
    return cedarpy.PolicySet.from_json_str(
        json.dumps({"staticPolicies": bodies, "templates": {}, "templateLinks": []})
    )  # fmt: skip


def evaluate(policies: cedarpy.PolicySet, attributes: Attributes) -> tuple[Verdict, list[str], list[str]]:
    """Verdict, ids, and the errors of policies that could not be evaluated; raises `ProviderError`."""
    user, info = attributes.user, attributes.request
    principal = {"type": USER, "id": user.username}
    resource = {"type": RESOURCE, "id": ""} if info.is_resource else {"type": PATH, "id": info.path}
    request = {
        "principal": principal,
        "action": {"type": ACTION, "id": info.verb},
        "resource": resource,
        "context": {
            "modifier": info.modifier,
            "upstream": info.upstream,
            "capabilities": list(info.capabilities),
        },
    }
    groups = [{"type": GROUP, "id": group} for group in (*user.groups, *implied_groups(user))]
    namespaces = [{"type": NAMESPACE, "id": info.namespace}] if info.namespace else []
    entities = [
        {"uid": principal, "attrs": {"name": user.username, "uid": user.uid}, "parents": groups},
        {"uid": resource, "attrs": _attributes(info), "parents": namespaces},
    ]
    result = cedarpy.is_authorized(request, policies, entities)
    ids, errors = sorted(result.diagnostics.reasons), list(result.diagnostics.errors)
    if result.decision is cedarpy.Decision.Allow:
        return Verdict.ALLOW, ids, errors
    if result.decision is not cedarpy.Decision.Deny:
        raise ProviderError("the Cedar engine cannot read this request", cause=printable("; ".join(errors)))
    return (Verdict.DENY if ids else Verdict.NO_OPINION), ids, errors


def _attributes(asked: RequestInfo) -> dict[str, str]:
    return {
        "apiGroup": asked.api_group,
        "apiVersion": asked.api_version,
        "resource": asked.resource,
        "subresource": asked.subresource,
        "namespace": asked.namespace,
        "name": asked.name,
        "path": path_of(asked),
    }


def path_of(asked: RequestInfo) -> str:
    # A review of a resource has no path. So no request for a resource has one: the webhook and the proxy decide alike.
    return "" if asked.is_resource else asked.path
