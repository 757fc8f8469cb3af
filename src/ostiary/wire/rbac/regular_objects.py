"""Reads RBAC objects that have nothing unusual, in a fifth of the time. Called by `reading` for each object first.

Whatever is not as expected, be it wrong or merely rare, gives None, and the object is read field by field. So nothing
here has to say what is wrong with it.
"""

from __future__ import annotations

from sys import intern
from typing import TypeAlias, cast

from ostiary.core.config import Node
from ostiary.core.rules import PolicyRule
from ostiary.interfaces.authorization import Subject
from ostiary.model import Place
from ostiary.wire.rbac.objects import (
    API_VERSIONS,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    GROUP,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    USER,
    USER_GROUP,
    Binding,
    Role,
    is_dns_name,
)

_Fields: TypeAlias = dict[str, Node]

_BINDING_FIELDS = frozenset(("apiVersion", "kind", "metadata", "roleRef", "subjects"))
_ROLE_FIELDS = frozenset(("apiVersion", "kind", "metadata", "rules"))
_REFERENCE_FIELDS = frozenset(("apiGroup", "kind", "name"))
_SUBJECT_FIELDS = frozenset(("apiGroup", "kind", "name", "namespace"))
_RULE_FIELDS = frozenset(("apiGroups", "nonResourceURLs", "resourceNames", "resources", "verbs"))
_ROLE_KINDS = {ROLE_BINDING: (ROLE, CLUSTER_ROLE), CLUSTER_ROLE_BINDING: (CLUSTER_ROLE,)}
_GROUPS = ("", GROUP)


class _Unusual(Exception):
    pass


def read_regular_object(
    node: Node, *, file: str | None, path: str = "", kind: str = "", api_version: str = ""
) -> Role | Binding | None:
    """The object at *node*; *kind* and *api_version* are for the items of a typed list. None if it is unusual."""
    try:
        fields = _mapping(node)
        kind = _text(fields, "kind") or kind
        if (_text(fields, "apiVersion") or api_version) not in API_VERSIONS:
            return None
        place = Place(file, path, node.line)
        if kind in _ROLE_KINDS:
            return _binding(fields, kind, place)
        return _role(fields, kind, place) if kind in (ROLE, CLUSTER_ROLE) else None
    except _Unusual:
        return None


def _mapping(node: Node | None) -> _Fields:
    if node is None or type(node.value) is not dict or node.repeated:
        raise _Unusual
    return node.value


def _known_mapping(node: Node | None, known: frozenset[str]) -> _Fields:
    fields = _mapping(node)
    if not fields.keys() <= known:
        raise _Unusual
    return fields


def _text(fields: _Fields, key: str) -> str:
    node = fields.get(key)
    if node is None:
        return ""
    if type(node.value) is not str:
        raise _Unusual
    return node.value


def _items(fields: _Fields, key: str) -> list[Node]:
    node = fields.get(key)
    if node is None:
        return []
    if type(node.value) is not list:
        raise _Unusual
    return node.value


def _texts(fields: _Fields, key: str) -> tuple[str, ...]:
    values = tuple([node.value for node in _items(fields, key)])
    if not all(type(value) is str for value in values):
        raise _Unusual
    return cast("tuple[str, ...]", values)


def _metadata(fields: _Fields, *, namespaced: bool) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    metadata = _mapping(fields.get("metadata"))
    name, namespace = _text(metadata, "name"), _text(metadata, "namespace")
    if not _is_segment(name) or (namespaced and not is_dns_name(namespace)):
        raise _Unusual
    labels: tuple[tuple[str, str], ...] = ()
    if "labels" in metadata:
        values = _mapping(metadata["labels"])
        labels = tuple(sorted((key, _text(values, key)) for key in values))
    return name, intern(namespace) if namespaced else "", labels


def _is_segment(name: str) -> bool:
    return bool(name) and name not in (".", "..") and "/" not in name and "%" not in name


def _binding(fields: _Fields, kind: str, place: Place) -> Binding:
    if not fields.keys() <= _BINDING_FIELDS:
        raise _Unusual
    name, namespace, _ = _metadata(fields, namespaced=kind == ROLE_BINDING)
    reference = _known_mapping(fields.get("roleRef"), _REFERENCE_FIELDS)
    role_kind, role_name = _text(reference, "kind"), _text(reference, "name")
    if role_kind not in _ROLE_KINDS[kind] or not _is_segment(role_name) or _text(reference, "apiGroup") not in _GROUPS:
        raise _Unusual
    subjects = tuple([_subject(node, namespace) for node in _items(fields, "subjects")])
    return Binding(intern(kind), name, namespace, intern(role_kind), intern(role_name), subjects, place)


def _subject(node: Node, binding_namespace: str) -> Subject:
    fields = _known_mapping(node, _SUBJECT_FIELDS)
    kind, name = _text(fields, "kind"), _text(fields, "name")
    group, namespace = _text(fields, "apiGroup"), _text(fields, "namespace")
    if kind == SERVICE_ACCOUNT:
        namespace = namespace or binding_namespace
        if not is_dns_name(name) or group or not namespace:
            raise _Unusual
        return Subject(SERVICE_ACCOUNT, name, namespace)
    if kind not in (USER, USER_GROUP) or not name or group not in _GROUPS:
        raise _Unusual
    return Subject(intern(kind), intern(name))


def _role(fields: _Fields, kind: str, place: Place) -> Role:
    if not fields.keys() <= _ROLE_FIELDS:
        raise _Unusual
    name, namespace, labels = _metadata(fields, namespaced=kind == ROLE)
    within = f"{place.path}." if place.path else ""
    rules = [
        _rule(node, Place(place.file, f"{within}rules[{number}]", node.line), namespaced=kind == ROLE)
        for number, node in enumerate(_items(fields, "rules"))
    ]
    return Role(intern(kind), name, namespace, tuple(rules), labels, None, place)


def _rule(node: Node, place: Place, *, namespaced: bool) -> PolicyRule:
    fields = _known_mapping(node, _RULE_FIELDS)
    rule = PolicyRule(
        _texts(fields, "verbs"),
        _texts(fields, "apiGroups"),
        _texts(fields, "resources"),
        _texts(fields, "resourceNames"),
        _texts(fields, "nonResourceURLs"),
        place,
    )
    if rule.non_resource_urls:
        is_right = not (namespaced or rule.api_groups or rule.resources or rule.resource_names)
    else:
        is_right = bool(rule.api_groups and rule.resources)
    if not rule.verbs or not is_right:
        raise _Unusual
    return rule
