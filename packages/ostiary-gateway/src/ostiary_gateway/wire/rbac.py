"""``rbac.authorization.k8s.io``: read and write manifests of roles and bindings. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from sys import intern
from typing import NamedTuple, TypeAlias, cast

from ostiary.core.policy_rules import PolicyRule
from ostiary.core.yaml import ConfigReader, ConfigSection, Document, Node
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem, Requirement
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.wire.selectors import SelectorError, check_label_key, check_label_values

# Values.

GROUP = "rbac.authorization.k8s.io"
V1 = f"{GROUP}/v1"
API_VERSIONS = (V1, f"{GROUP}/v1beta1")

ROLE, CLUSTER_ROLE = "Role", "ClusterRole"
ROLE_BINDING, CLUSTER_ROLE_BINDING = "RoleBinding", "ClusterRoleBinding"
USER, USER_GROUP, SERVICE_ACCOUNT = "User", "Group", "ServiceAccount"

_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Conditions on labels, all of which must hold. One without conditions selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def selects(self, labels: tuple[tuple[str, str], ...]) -> bool:
        values = dict(labels)
        return all(_holds(requirement, values) for requirement in self.requirements)


@dataclass(frozen=True, slots=True)
class Role:
    """A Role, or a ClusterRole, whose namespace is empty.

    `aggregates` selects the ClusterRoles whose rules this one has; None for a role that has its own.
    """

    kind: str
    name: str
    namespace: str = ""
    rules: tuple[PolicyRule, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    aggregates: tuple[LabelSelector, ...] | None = None
    place: Place = field(default=Place(), compare=False, repr=False)

    def __str__(self) -> str:
        return f'{self.kind} "{_qualified_name(self.name, self.namespace)}"'


@dataclass(frozen=True, slots=True)
class Binding:
    """A RoleBinding, or a ClusterRoleBinding, whose namespace is empty: grants a role to subjects."""

    kind: str
    name: str
    namespace: str = ""
    role_kind: str = CLUSTER_ROLE
    role_name: str = ""
    subjects: tuple[Subject, ...] = ()
    place: Place = field(default=Place(), compare=False, repr=False)

    @property
    def role(self) -> str:
        """The role it refers to, as in the reasons of Kubernetes."""
        return f'{self.role_kind} "{self.role_name}"'

    def __str__(self) -> str:
        """The kind, the name and the namespace, as in the reasons of Kubernetes."""
        return f'{self.kind} "{_qualified_name(self.name, self.namespace)}"'


@dataclass(frozen=True, slots=True)
class Manifests:
    """The content of files: roles, bindings, the number of other objects, and all errors."""

    roles: tuple[Role, ...] = ()
    bindings: tuple[Binding, ...] = ()
    ignored: int = 0
    problems: tuple[Problem, ...] = ()


def is_dns_name(text: str) -> bool:
    """Whether *text* is a valid name of a namespace or a ServiceAccount."""
    return _DNS_NAME.fullmatch(text) is not None


def describe(subject: Subject) -> str:
    """Return *subject* as in the reasons of Kubernetes."""
    return f'{subject.kind} "{_qualified_name(subject.name, subject.namespace)}"'


def _qualified_name(name: str, namespace: str) -> str:
    return f"{name}/{namespace}" if namespace else name


def _holds(requirement: Requirement, labels: dict[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case _:
            return value is None


# Writing manifests.


def as_yaml(item: Role | Binding) -> str:
    """Return the shortest manifest of *item*. Every value is quoted: YAML reads ``y`` and ``012`` otherwise."""
    lines = [f"apiVersion: {V1}", f"kind: {item.kind}", "metadata:", f"  name: {_quote(item.name)}"]
    if item.namespace:
        lines.append(f"  namespace: {_quote(item.namespace)}")
    lines += _role_lines(item) if isinstance(item, Role) else _binding_lines(item)
    return "\n".join(lines) + "\n"


def _role_lines(role: Role) -> list[str]:
    lines = ["rules:"]
    for rule in role.rules:
        parts = {
            "verbs": rule.verbs,
            "apiGroups": rule.api_groups,
            "resources": rule.resources,
            "resourceNames": rule.resource_names,
            "nonResourceURLs": rule.non_resource_urls,
        }
        rows = [f"{key}: [{', '.join(map(_quote, values))}]" for key, values in parts.items() if values]
        lines += [f"{'  ' if number else '- '}{row}" for number, row in enumerate(rows)]
    return lines


def _binding_lines(binding: Binding) -> list[str]:
    lines = [
        "roleRef:",
        f"  apiGroup: {GROUP}",
        f"  kind: {binding.role_kind}",
        f"  name: {_quote(binding.role_name)}",
    ]
    lines.append("subjects:")
    for subject in binding.subjects:
        lines += [f"- kind: {subject.kind}", f"  name: {_quote(subject.name)}"]
        if subject.kind == SERVICE_ACCOUNT:
            lines.append(f"  namespace: {_quote(subject.namespace)}")
        else:
            lines.append(f"  apiGroup: {GROUP}")
    return lines


def _quote(text: str) -> str:
    # JSON's escapes are valid in YAML, except surrogate pairs, which JSON uses outside of the basic plane.
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)


# Fast path for reading regular objects, in a fifth of the time. For anything unexpected, invalid or merely rare, it
# returns None, and the object is read field by field. Errors are therefore reported in one place only.

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
    """Return the object at *node*, or None if it is irregular. A typed list gives *kind* and *api_version*."""
    try:
        fields = _mapping(node)
        kind = _text(fields, "kind") or kind
        if (_text(fields, "apiVersion") or api_version) not in API_VERSIONS:
            return None
        place = Place(file, path, node.line)
        if kind in _ROLE_KINDS:
            return _regular_objects_binding(fields, kind, place)
        return _regular_objects_role(fields, kind, place) if kind in (ROLE, CLUSTER_ROLE) else None
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


def _regular_objects_metadata(fields: _Fields, *, namespaced: bool) -> tuple[str, str, tuple[tuple[str, str], ...]]:
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


def _regular_objects_binding(fields: _Fields, kind: str, place: Place) -> Binding:
    if not fields.keys() <= _BINDING_FIELDS:
        raise _Unusual
    name, namespace, _ = _regular_objects_metadata(fields, namespaced=kind == ROLE_BINDING)
    reference = _known_mapping(fields.get("roleRef"), _REFERENCE_FIELDS)
    role_kind, role_name = _text(reference, "kind"), _text(reference, "name")
    if role_kind not in _ROLE_KINDS[kind] or not _is_segment(role_name) or _text(reference, "apiGroup") not in _GROUPS:
        raise _Unusual
    subjects = tuple([_regular_objects_subject(node, namespace) for node in _items(fields, "subjects")])
    return Binding(intern(kind), name, namespace, intern(role_kind), intern(role_name), subjects, place)


def _regular_objects_subject(node: Node, binding_namespace: str) -> Subject:
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


def _regular_objects_role(fields: _Fields, kind: str, place: Place) -> Role:
    if not fields.keys() <= _ROLE_FIELDS:
        raise _Unusual
    name, namespace, labels = _regular_objects_metadata(fields, namespaced=kind == ROLE)
    within = f"{place.path}." if place.path else ""
    rules = [
        _regular_objects_rule(node, Place(place.file, f"{within}rules[{number}]", node.line), namespaced=kind == ROLE)
        for number, node in enumerate(_items(fields, "rules"))
    ]
    return Role(intern(kind), name, namespace, tuple(rules), labels, None, place)


def _regular_objects_rule(node: Node, place: Place, *, namespaced: bool) -> PolicyRule:
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


# Reading manifests. Objects of other kinds are counted and ignored, because manifests are often in the same files. Only
# what the API server itself would reject is an error here; the rbac provider decides what a rule means.

_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def read_manifests(documents: Iterable[Document]) -> Manifests:
    """Read all objects in *documents*. Errors do not stop the reading; the caller decides how to report them."""
    reader = _ManifestReader()
    for document in documents:
        reader.read(document)
    return Manifests(tuple(reader.roles), tuple(reader.bindings), reader.ignored, tuple(reader.problems))


def together(parts: Iterable[Manifests]) -> Manifests:
    """Merge *parts*. An object that occurs twice is an error, because only one of them can take effect."""
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
        self._readers: dict[str, Callable[[ConfigSection], None]] = {
            ROLE: lambda fields: self.roles.append(_role(fields, ROLE)),
            CLUSTER_ROLE: lambda fields: self.roles.append(_role(fields, CLUSTER_ROLE)),
            ROLE_BINDING: lambda fields: self.bindings.append(_binding(fields, ROLE_BINDING)),
            CLUSTER_ROLE_BINDING: lambda fields: self.bindings.append(_binding(fields, CLUSTER_ROLE_BINDING)),
        }

    def read(self, document: Document) -> None:
        if document.root.value is None or self._read_regular(document):
            return
        reading = ConfigReader(document)
        is_ours = self._object(reading.root)
        try:
            # Strict: a misspelt resourceNames would otherwise be a restriction that silently has no effect.
            reading.finish("the RBAC manifests cannot be used", strict=is_ours)
        except ConfigurationError as error:
            self.problems += error.problems

    def _read_regular(self, document: Document) -> bool:
        """Read a document if all of its objects are regular; return whether it was."""
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

    def _object(self, fields: ConfigSection, *, kind: str = "", api_version: str = "") -> bool:
        """Read one object, or a list of them. A typed list gives *kind* and *api_version* of its items."""
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

    def _items(self, fields: ConfigSection, *, kind: str = "", api_version: str = "") -> None:
        fields.ignore("metadata")
        for item in fields.sections("items"):
            self._object(item, kind=kind, api_version=api_version)


def _items_of_list(root: Node) -> list[Node]:
    """Return the items of a ``v1`` List, as ``kubectl get -o yaml`` prints it; empty if it is anything else."""
    fields = root.value
    if not isinstance(fields, dict) or not fields.keys() <= {"apiVersion", "items", "kind", "metadata"}:
        return []
    texts = [fields[key].value for key in ("apiVersion", "kind") if key in fields]
    items = fields["items"].value if "items" in fields else None
    return items if texts == ["v1", "List"] and isinstance(items, list) else []


def _role(fields: ConfigSection, kind: str) -> Role:
    metadata = _metadata(fields, namespaced=kind == ROLE)
    rules = tuple(_rule(rule, namespaced=kind == ROLE) for rule in fields.sections("rules"))
    aggregates = _aggregates(fields) if kind == CLUSTER_ROLE else None
    return Role(kind, metadata.name, metadata.namespace, rules, metadata.labels, aggregates, fields.place())


def _metadata(fields: ConfigSection, *, namespaced: bool) -> _ObjectMeta:
    metadata = fields.section("metadata")
    name, namespace = metadata.string("name"), metadata.string("namespace")
    labels = metadata.section("labels")
    result = _ObjectMeta(
        name,
        # The API server drops the namespace of a ClusterRole.
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


def _check_segment(fields: ConfigSection, key: str, name: str) -> None:
    if not name:
        fields.problem("there is no name", key)
    elif name in (".", "..") or "/" in name or "%" in name:
        fields.problem('it cannot be part of a path: no "/", no "%", and neither "." nor ".."', key)


def _rule(fields: ConfigSection, *, namespaced: bool) -> PolicyRule:
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


def _check_url_rule(fields: ConfigSection, rule: PolicyRule, namespaced: bool) -> None:
    if namespaced:
        fields.problem("no path is in a namespace, so only a ClusterRole can have these", "nonResourceURLs")
    if rule.api_groups or rule.resources or rule.resource_names:
        fields.problem("a rule is either for resources or for paths", "nonResourceURLs", "make two rules of it")


def _aggregates(fields: ConfigSection) -> tuple[LabelSelector, ...] | None:
    section = fields.optional_section("aggregationRule")
    if section is None:
        return None
    selectors = tuple(read_selector(selector) for selector in section.sections("clusterRoleSelectors"))
    if not selectors:
        section.problem("an aggregationRule needs at least one selector", "clusterRoleSelectors")
    return selectors


def read_selector(fields: ConfigSection) -> LabelSelector:
    """Read a Kubernetes LabelSelector; errors are reported to *fields*."""
    labels = fields.section("matchLabels")
    requirements = [Requirement(key, "In", (labels.string(key),)) for key in labels]
    for requirement in requirements:
        _check_label(labels, requirement, requirement.key)
    return LabelSelector((*requirements, *map(_requirement, fields.sections("matchExpressions"))))


def _check_label(fields: ConfigSection, requirement: Requirement, key: str | None = None) -> None:
    try:
        check_label_key(requirement.key)
        check_label_values(requirement.values)
    except SelectorError as error:
        fields.problem(str(error), key)


def _requirement(fields: ConfigSection) -> Requirement:
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


def _binding(fields: ConfigSection, kind: str) -> Binding:
    metadata = _metadata(fields, namespaced=kind == ROLE_BINDING)
    role_kind, role_name = _role_ref(fields.section("roleRef"), kind)
    subjects = tuple(_subject(subject, metadata.namespace) for subject in fields.sections("subjects"))
    return Binding(kind, metadata.name, metadata.namespace, role_kind, role_name, subjects, fields.place())


def _role_ref(fields: ConfigSection, binding_kind: str) -> tuple[str, str]:
    group, kind, name = fields.string("apiGroup"), fields.string("kind"), fields.string("name")
    kinds = (CLUSTER_ROLE,) if binding_kind == CLUSTER_ROLE_BINDING else (ROLE, CLUSTER_ROLE)
    if group not in ("", GROUP):
        fields.problem(f"roles are in the API group {GROUP}", "apiGroup")
    if kind not in kinds:
        fields.problem(f"a {binding_kind} refers to a {' or a '.join(kinds)}", "kind")
    _check_segment(fields, "name", name)
    return intern(kind), intern(name)


def _subject(fields: ConfigSection, binding_namespace: str) -> Subject:
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


def _check_service_account(fields: ConfigSection, name: str, group: str) -> None:
    if name and not is_dns_name(name):
        fields.problem("it is not the name of a ServiceAccount", "name")
    if group:
        fields.problem('a ServiceAccount is in the core API group, ""', "apiGroup", "leave it out")
