"""Explain why a request is allowed or what it lacks: the closest rule, the failed conditions, and a remedy.

For operators, never on the path of a request: it looks at every binding. The result names bindings, rules and other
users, so it must not be shown to the caller.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ostiary.core.policy_rules import ANY, PolicyRule, resource_keys, url_matches
from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.authorization.implied_groups import AUTHENTICATED, UNAUTHENTICATED
from ostiary_gateway.interfaces.authorization import Explanation, Subject
from ostiary_gateway.providers.rbac.defaults import DEFAULT_BINDINGS, DEFAULT_ROLES
from ostiary_gateway.providers.rbac.index import MASTERS, Index, holder_of, is_implied, with_namespace
from ostiary_gateway.providers.rbac.lookup import CompiledRole
from ostiary_gateway.wire.rbac import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    USER,
    USER_GROUP,
    Binding,
    Role,
    as_yaml,
    describe,
    is_dns_name,
)

# How far a rule is from allowing a request, by the failed condition. A rule for another user is further away than one
# for this user with one failure, or with two minor ones: in every cluster some subject may do everything.
_DISTANCE = {
    "resourceName": 1,
    "verb": 2,
    "subresource": 2,
    "apiGroup": 3,
    "namespace": 3,
    "resource": 4,
    "path": 4,
    "role": 4,
    "subject": 6,
}
# By identity: an object with the same content in a manifest is not built in.
_BUILT_IN = frozenset((*map(id, DEFAULT_BINDINGS), *(id(rule) for role in DEFAULT_ROLES for rule in role.rules)))
_SERVICE_ACCOUNT_NAME = re.compile(r"system:serviceaccount:([^:]+):([^:]+)")
_MOST_TOLD = 4


class _Failure(NamedTuple):
    condition: str
    text: str


class _Candidate(NamedTuple):
    """A rule of a binding, the conditions that fail, and whether the binding is for this user."""

    binding: Binding
    rule: PolicyRule | None
    failures: tuple[_Failure, ...]
    by_name: bool

    @property
    def rank(self) -> tuple[int, ...]:
        distance = sum(_DISTANCE[failure.condition] for failure in self.failures)
        # If equally close: prefer bindings for this user, then those from manifests over built-in ones.
        built_in = sum(id(part) in _BUILT_IN for part in (self.binding, self.rule))
        stars = 0 if self.rule is None else sum(values.count(ANY) for values in _lists(self.rule))
        return distance, len(self.failures), not self.by_name, built_in, stars


def explain(index: Index, user: UserInfo, request: RequestInfo) -> Explanation:
    decision = index.decide(user, request)
    if not decision.allowed:
        closest = min(_candidates(index, user, request), key=lambda candidate: candidate.rank, default=None)
        if closest is None:
            return Explanation(decision, failed="subject: there are no bindings", remedy=remedy(user, request))
        failed = "; ".join(f"{failure.condition}: {failure.text}" for failure in closest.failures)
        return Explanation(decision, _describe_grant(closest.binding, closest.rule), failed, remedy(user, request))
    grant = index.grant_for(user, request)
    if MASTERS in user.groups or grant is None:
        return Explanation(decision, f'{USER_GROUP} "{MASTERS}"')
    return Explanation(decision, _describe_grant(grant.binding, grant.role.rule_for(request)))


def _describe_grant(binding: Binding, rule: PolicyRule | None) -> str:
    text = f"{binding} of {binding.role}"
    if binding.place.file is not None:
        text += f" ({binding.place})"
    if rule is None:
        return text
    return f"{text}, rule {_rule_text(rule)}" + (f" ({rule.place})" if rule.place.file is not None else "")


def _rule_text(rule: PolicyRule) -> str:
    if rule.non_resource_urls:
        return f"{_list(rule.verbs)} on {_list(rule.non_resource_urls)}"
    text = f"{_list(rule.verbs)} on {_list(rule.resources)} of API group {_list(rule.api_groups)}"
    return f"{text} named {_list(rule.resource_names)}" if rule.resource_names else text


def _list(values: Sequence[str]) -> str:
    listed = ", ".join(f'"{value}"' for value in values[:_MOST_TOLD])
    return f"{listed} and {len(values) - _MOST_TOLD} more" if len(values) > _MOST_TOLD else listed


def _lists(rule: PolicyRule) -> tuple[tuple[str, ...], ...]:
    return rule.verbs, rule.api_groups, rule.resources, rule.non_resource_urls


# --- the closest rule ---


def _candidates(index: Index, user: UserInfo, request: RequestInfo) -> Iterator[_Candidate]:
    # Many bindings share a role, so find the best rule of each role once.
    best: dict[CompiledRole, tuple[PolicyRule, tuple[_Failure, ...]] | None] = {}
    for binding in index.bindings:
        around = (*_subject_failure(binding, user), *_namespace_failure(binding, request))
        by_name = _names(binding, user)
        role = index.role_of(binding)
        if role is None:
            yield _Candidate(binding, None, (_Failure("role", f"{binding.role} does not exist"), *around), by_name)
            continue
        if role not in best:
            best[role] = _best_rule(role, request)
        candidate = best[role]
        if candidate is not None:
            yield _Candidate(binding, candidate[0], (*candidate[1], *around), by_name)


def _best_rule(role: CompiledRole, request: RequestInfo) -> tuple[PolicyRule, tuple[_Failure, ...]] | None:
    def distance(found: tuple[PolicyRule, tuple[_Failure, ...]]) -> int:
        return sum(_DISTANCE[failure.condition] for failure in found[1])

    judged = ((rule, tuple(_rule_failures(rule, request))) for rule in role.rules)
    return min(judged, key=distance, default=None)


def _rule_failures(rule: PolicyRule, request: RequestInfo) -> Iterator[_Failure]:
    if request.verb not in rule.verbs and ANY not in rule.verbs:
        yield _Failure("verb", f'the rule allows {_list(rule.verbs)} and not "{request.verb}"')
    if not request.is_resource:
        if not any(url_matches(url, request.path) for url in rule.non_resource_urls):
            allowed = f"is for {_list(rule.non_resource_urls)}" if rule.non_resource_urls else "is for resources"
            yield _Failure("path", f'the rule {allowed} and not for "{request.path}"')
        return
    if request.api_group not in rule.api_groups and ANY not in rule.api_groups:
        yield _Failure(
            "apiGroup", f'the rule is for {_list(rule.api_groups) or "paths"} and not for "{request.api_group}"'
        )
    yield from _resource_failure(rule, request)
    if rule.resource_names and request.name not in rule.resource_names:
        requested = f'not "{request.name}"' if request.name else "the request names no object"
        yield _Failure("resourceName", f"the rule is for objects named {_list(rule.resource_names)}, and {requested}")


def _resource_failure(rule: PolicyRule, request: RequestInfo) -> Iterator[_Failure]:
    keys = resource_keys(request.resource, request.subresource)
    if any(key in rule.resources for key in keys):
        return
    is_near = any(resource.partition("/")[0] == request.resource for resource in rule.resources)
    text = f'the rule is for {_list(rule.resources) or "paths"} and not for "{keys[0]}"'
    yield _Failure("subresource" if is_near else "resource", text)


def _subject_failure(binding: Binding, user: UserInfo) -> Iterator[_Failure]:
    subjects = [with_namespace(subject, binding) for subject in binding.subjects]
    if not any(_is(subject, user) for subject in subjects):
        names = ", ".join(map(describe, subjects[:_MOST_TOLD])) or "nobody"
        yield _Failure("subject", f'the binding is for {names} and not for User "{user.username}"')


def _names(binding: Binding, user: UserInfo) -> bool:
    """Whether the binding is for this user, or for a group that does not include all users."""
    subjects = (with_namespace(subject, binding) for subject in binding.subjects)
    return any(_is(each, user) and each.name not in (AUTHENTICATED, UNAUTHENTICATED) for each in subjects)


def _is(subject: Subject, user: UserInfo) -> bool:
    kind, name = holder_of(subject, "")
    if kind == USER_GROUP:
        return name in user.groups or is_implied(name, user)
    return bool(name) and name == user.username


def _namespace_failure(binding: Binding, request: RequestInfo) -> Iterator[_Failure]:
    if binding.namespace and (not request.is_resource or binding.namespace != request.namespace):
        requested = f'in "{request.namespace}"' if request.namespace else "in no namespace"
        yield _Failure("namespace", f'the binding is for "{binding.namespace}", and the request is {requested}')


# --- remedy ---


def remedy(user: UserInfo, request: RequestInfo) -> str:
    """Return the smallest role and binding that allow *request* to *user*; empty if no valid manifest could."""
    namespace = request.namespace if request.is_resource else ""
    if not user.username or (namespace and not is_dns_name(namespace)):
        return ""
    rule = _smallest_rule(request)
    name = _name(user, request)
    role_kind, binding_kind = (ROLE, ROLE_BINDING) if namespace else (CLUSTER_ROLE, CLUSTER_ROLE_BINDING)
    role = Role(role_kind, name, namespace, (rule,))
    binding = Binding(binding_kind, name, namespace, role_kind, name, (_subject(user),))
    return f"{as_yaml(role)}---\n{as_yaml(binding)}"


def _smallest_rule(request: RequestInfo) -> PolicyRule:
    if not request.is_resource:
        return PolicyRule((request.verb,), non_resource_urls=(request.path,))
    resource = resource_keys(request.resource, request.subresource)[0]
    return PolicyRule((request.verb,), (request.api_group,), (resource,), (request.name,) if request.name else ())


def _name(user: UserInfo, request: RequestInfo) -> str:
    """A descriptive and unique name: applying the remedy must not replace another object."""
    what = f"{request.verb} {request.resource or request.path} {request.subresource}"
    readable = re.sub(r"[^a-z0-9]+", "-", what.lower()).strip("-")
    facts = repr((user.username, request.namespace, request.api_group, request.name, what))
    return f"{readable}-{hashlib.sha256(facts.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def _subject(user: UserInfo) -> Subject:
    match = _SERVICE_ACCOUNT_NAME.fullmatch(user.username)
    if match is not None and is_dns_name(match[1]) and is_dns_name(match[2]):
        return Subject(SERVICE_ACCOUNT, match[2], match[1])
    return Subject(USER, user.username)
