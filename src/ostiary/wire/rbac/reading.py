"""Reads RBAC manifests. Documents go in; values, and every mistake with its place, come out.

Manifests of other kinds are counted and left alone, because people keep them in the same files. Only what the API
server itself would refuse is a mistake here; what a rule means is decided by the rbac provider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from sys import intern
from typing import NamedTuple

from ostiary.core.config import Document, Fields, Node, Reading
from ostiary.core.rules import PolicyRule
from ostiary.errors import ConfigurationError
from ostiary.interfaces.authorization import Subject
from ostiary.model import Place, Problem, Requirement
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
    V1,
    Binding,
    LabelSelector,
    Manifests,
    Role,
    is_dns_name,
)
from ostiary.wire.rbac.regular_objects import read_regular_object
from ostiary.wire.request.selectors import SelectorError, check_label_key, check_label_values

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def read_manifests(documents: Iterable[Document]) -> Manifests:
    """Whatever *documents* hold. Mistakes do not stop the reading: the caller refuses them, or tells them all."""
    reader = _ManifestReader()
    for document in documents:
        reader.read(document)
    return Manifests(tuple(reader.roles), tuple(reader.bindings), reader.ignored, tuple(reader.problems))


def together(parts: Iterable[Manifests]) -> Manifests:
    """All of *parts* as one; an object that stands in two places is a mistake, because only one of them can count."""
    manifests = list(parts)
    roles = tuple(role for part in manifests for role in part.roles)
    bindings = tuple(binding for part in manifests for binding in part.bindings)
    problems = [problem for part in manifests for problem in part.problems]
    return Manifests(
        roles,
        bindings,
        sum(part.ignored for part in manifests),
        (*problems, *_repetitions(roles), *_repetitions(bindings)),
    )


def _repetitions(objects: Iterable[Role | Binding]) -> list[Problem]:
    first: dict[tuple[str, str, str], Place] = {}
    problems = []
    for item in objects:
        key = (item.kind, item.namespace, item.name)
        if key in first:
            problems.append(Problem(f"{item} stands here a second time; the first is at {first[key]}", item.place))
        else:
            first[key] = item.place
    return problems


class _ObjectMeta(NamedTuple):
    name: str
    namespace: str
    labels: tuple[tuple[str, str], ...]


class _ManifestReader:
    def __init__(self) -> None:
        self.roles: list[Role] = []
        self.bindings: list[Binding] = []
        self.problems: list[Problem] = []
        self.ignored = 0
        self._readers: dict[str, Callable[[Fields], None]] = {
            ROLE: lambda fields: self.roles.append(_role(fields, ROLE)),
            CLUSTER_ROLE: lambda fields: self.roles.append(_role(fields, CLUSTER_ROLE)),
            ROLE_BINDING: lambda fields: self.bindings.append(_binding(fields, ROLE_BINDING)),
            CLUSTER_ROLE_BINDING: lambda fields: self.bindings.append(_binding(fields, CLUSTER_ROLE_BINDING)),
        }

    def read(self, document: Document) -> None:
        if document.root.value is None or self._read_regular(document):
            return
        reading = Reading(document)
        is_ours = self._object(reading.root)
        try:
            # Strict: a misspelt resourceNames would otherwise be a restriction that silently restricts nothing.
            reading.finish("the RBAC manifests cannot be used", strict=is_ours)
        except ConfigurationError as error:
            self.problems += error.problems

    def _read_regular(self, document: Document) -> bool:
        """Read a document without anything unusual; says whether it was one."""
        root, file = document.root, document.file
        if document.duplicates:
            return False
        if (item := read_regular_object(root, file=file)) is not None:
            self._add(item)
            return True
        items = [
            read_regular_object(node, file=file, path=f"items[{number}]")
            for number, node in enumerate(_items_of_list(root))
        ]
        if not items or None in items:
            return False
        for item in items:
            if item is not None:
                self._add(item)
        return True

    def _add(self, item: Role | Binding) -> None:
        if isinstance(item, Role):
            self.roles.append(item)
        else:
            self.bindings.append(item)

    def _object(self, fields: Fields, *, kind: str = "", api_version: str = "") -> bool:
        """Read one object, or a list of them; *kind* and *api_version* are for the items of a typed list."""
        kind = fields.string("kind") or kind
        api_version = fields.string("apiVersion") or api_version
        if (api_version, kind) == ("v1", "List"):
            self._items(fields)
            return True
        if api_version.rpartition("/")[0] != GROUP:
            self.ignored += 1
            fields.ignore(*fields)
            return False
        if api_version not in API_VERSIONS:
            fields.ignore(*fields)
            fields.problem(f"this version is not understood; write {V1}", "apiVersion")
        elif kind in self._readers:
            self._readers[kind](fields)
        elif kind.removesuffix("List") in self._readers:
            self._items(fields, kind=kind.removesuffix("List"), api_version=api_version)
        else:
            fields.ignore(*fields)
            fields.problem(f"{GROUP} has no such kind", "kind", f"one of {', '.join(self._readers)}")
        return True

    def _items(self, fields: Fields, *, kind: str = "", api_version: str = "") -> None:
        fields.ignore("metadata")
        for item in fields.sections("items"):
            self._object(item, kind=kind, api_version=api_version)


def _items_of_list(root: Node) -> list[Node]:
    """The items of what ``kubectl get -o yaml`` prints; empty if it is anything else."""
    fields = root.value
    if not isinstance(fields, dict) or not fields.keys() <= {"apiVersion", "items", "kind", "metadata"}:
        return []
    texts = [fields[key].value for key in ("apiVersion", "kind") if key in fields]
    items = fields["items"].value if "items" in fields else None
    return items if texts == ["v1", "List"] and isinstance(items, list) else []


def _role(fields: Fields, kind: str) -> Role:
    metadata = _metadata(fields, namespaced=kind == ROLE)
    rules = tuple(_rule(rule, namespaced=kind == ROLE) for rule in fields.sections("rules"))
    aggregates = _aggregates(fields) if kind == CLUSTER_ROLE else None
    return Role(kind, metadata.name, metadata.namespace, rules, metadata.labels, aggregates, fields.place())


def _metadata(fields: Fields, *, namespaced: bool) -> _ObjectMeta:
    metadata = fields.section("metadata")
    name, namespace = metadata.string("name"), metadata.string("namespace")
    labels = metadata.section("labels")
    result = _ObjectMeta(
        name,
        # A ClusterRole with a namespace is a ClusterRole: the API server drops it, and so do we.
        intern(namespace) if namespaced else "",
        tuple(sorted((key, labels.string(key)) for key in labels)),
    )
    metadata.ignore(*metadata)
    _check_segment(metadata, "name", name)
    if namespaced and not namespace:
        metadata.problem("there is no namespace", "namespace", "say which one: here is no current namespace")
    elif namespaced and not is_dns_name(namespace):
        metadata.problem("it is not the name of a namespace", "namespace")
    return result


def _check_segment(fields: Fields, key: str, name: str) -> None:
    if not name:
        fields.problem("there is no name", key)
    elif name in (".", "..") or "/" in name or "%" in name:
        fields.problem('it cannot be part of a path: no "/", no "%", and neither "." nor ".."', key)


def _rule(fields: Fields, *, namespaced: bool) -> PolicyRule:
    rule = PolicyRule(
        verbs=fields.strings("verbs"),
        api_groups=fields.strings("apiGroups"),
        resources=fields.strings("resources"),
        resource_names=fields.strings("resourceNames"),
        non_resource_urls=fields.strings("nonResourceURLs"),
        place=fields.place(),
    )
    if not rule.verbs:
        fields.problem("a rule needs at least one verb", "verbs")
    if rule.non_resource_urls:
        _check_url_rule(fields, rule, namespaced)
        return rule
    if not rule.api_groups:
        fields.problem("a rule for resources needs at least one API group", "apiGroups", 'the core group is ""')
    if not rule.resources:
        fields.problem("a rule needs at least one resource, or one of nonResourceURLs", "resources")
    return rule


def _check_url_rule(fields: Fields, rule: PolicyRule, namespaced: bool) -> None:
    if namespaced:
        fields.problem("no path is in a namespace, so only a ClusterRole can have these", "nonResourceURLs")
    if rule.api_groups or rule.resources or rule.resource_names:
        fields.problem("a rule is either for resources or for paths", "nonResourceURLs", "make two rules of it")


def _aggregates(fields: Fields) -> tuple[LabelSelector, ...] | None:
    section = fields.optional_section("aggregationRule")
    if section is None:
        return None
    selectors = tuple(read_selector(selector) for selector in section.sections("clusterRoleSelectors"))
    if not selectors:
        section.problem("an aggregationRule needs at least one selector", "clusterRoleSelectors")
    return selectors


def read_selector(fields: Fields) -> LabelSelector:
    """A LabelSelector of Kubernetes; its mistakes are noted in *fields*."""
    labels = fields.section("matchLabels")
    requirements = [Requirement(key, "In", (labels.string(key),)) for key in labels]
    for requirement in requirements:
        _check_label(labels, requirement, requirement.key)
    return LabelSelector((*requirements, *map(_requirement, fields.sections("matchExpressions"))))


def _check_label(fields: Fields, requirement: Requirement, key: str | None = None) -> None:
    try:
        check_label_key(requirement.key)
        check_label_values(requirement.values)
    except SelectorError as error:
        fields.problem(str(error), key)


def _requirement(fields: Fields) -> Requirement:
    requirement = Requirement(fields.string("key"), fields.string("operator"), fields.strings("values"))
    if not requirement.key:
        fields.problem("there is no key", "key")
    if requirement.operator not in _OPERATORS:
        fields.problem("there is no such operator", "operator", f"one of {', '.join(_OPERATORS)}")
    elif bool(requirement.values) != (requirement.operator in ("In", "NotIn")):
        fields.problem("In and NotIn need values, Exists and DoesNotExist have none", "values")
    if requirement.key:
        _check_label(fields, requirement)
    return requirement


def _binding(fields: Fields, kind: str) -> Binding:
    metadata = _metadata(fields, namespaced=kind == ROLE_BINDING)
    role_kind, role_name = _role_ref(fields.section("roleRef"), kind)
    subjects = tuple(_subject(subject, metadata.namespace) for subject in fields.sections("subjects"))
    return Binding(kind, metadata.name, metadata.namespace, role_kind, role_name, subjects, fields.place())


def _role_ref(fields: Fields, binding_kind: str) -> tuple[str, str]:
    group, kind, name = fields.string("apiGroup"), fields.string("kind"), fields.string("name")
    kinds = (CLUSTER_ROLE,) if binding_kind == CLUSTER_ROLE_BINDING else (ROLE, CLUSTER_ROLE)
    if group not in ("", GROUP):
        fields.problem(f"roles are in the API group {GROUP}", "apiGroup")
    if kind not in kinds:
        fields.problem(f"a {binding_kind} refers to a {' or a '.join(kinds)}", "kind")
    _check_segment(fields, "name", name)
    return intern(kind), intern(name)


def _subject(fields: Fields, binding_namespace: str) -> Subject:
    kind, name = fields.string("kind"), fields.string("name")
    group, namespace = fields.string("apiGroup"), fields.string("namespace")
    if not name:
        fields.problem("there is no name", "name")
    if kind == SERVICE_ACCOUNT:
        _check_service_account(fields, name, group)
        if not namespace and not binding_namespace:
            fields.problem("a ServiceAccount needs its namespace in a ClusterRoleBinding", "namespace")
        return Subject(SERVICE_ACCOUNT, name, namespace or binding_namespace)
    if kind not in (USER, USER_GROUP):
        fields.problem("there is no such kind of subject", "kind", f"one of {USER}, {USER_GROUP}, {SERVICE_ACCOUNT}")
    elif group not in ("", GROUP):
        fields.problem(f"a {kind} is in the API group {GROUP}", "apiGroup")
    return Subject(intern(kind), intern(name))


def _check_service_account(fields: Fields, name: str, group: str) -> None:
    if name and not is_dns_name(name):
        fields.problem("it is not the name of a ServiceAccount", "name")
    if group:
        fields.problem('a ServiceAccount is in the core API group, ""', "apiGroup", "leave it out")
