"""``rbac.authorization.k8s.io``: Role, ClusterRole, RoleBinding and ClusterRoleBinding, read and written.

Pure functions: documents go in, frozen values and every mistake with its place come out. What a rule means is decided
by the rbac provider; here is only what the API server itself would refuse. Manifests of other kinds are counted and
left alone, because people keep them in the same files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from sys import intern
from typing import NamedTuple

from ostiary.core.config import Document, Fields, Reading
from ostiary.errors import ConfigurationError
from ostiary.interfaces.authorization import Subject
from ostiary.model import Place, Problem, Requirement
from ostiary.wire.request.selectors import SelectorError, check_label_key, check_label_values

GROUP = "rbac.authorization.k8s.io"
V1 = f"{GROUP}/v1"
API_VERSIONS = (V1, f"{GROUP}/v1beta1")

ROLE, CLUSTER_ROLE = "Role", "ClusterRole"
ROLE_BINDING, CLUSTER_ROLE_BINDING = "RoleBinding", "ClusterRoleBinding"
USER, USER_GROUP, SERVICE_ACCOUNT = "User", "Group", "ServiceAccount"

ANY = "*"
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """What is allowed: verbs on resources, or verbs on paths that are no resource's."""

    verbs: tuple[str, ...]
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    non_resource_urls: tuple[str, ...] = ()
    place: Place = field(default=Place(), compare=False, repr=False)


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
        return f'{self.kind} "{_qualified(self.name, self.namespace)}"'


@dataclass(frozen=True, slots=True)
class Binding:
    """A RoleBinding, or a ClusterRoleBinding, whose namespace is empty: who has which role."""

    kind: str
    name: str
    namespace: str = ""
    role_kind: str = CLUSTER_ROLE
    role_name: str = ""
    subjects: tuple[Subject, ...] = ()
    place: Place = field(default=Place(), compare=False, repr=False)

    @property
    def role(self) -> str:
        """The role it refers to, as Kubernetes writes it in its reasons."""
        return f'{self.role_kind} "{self.role_name}"'

    def __str__(self) -> str:
        """As Kubernetes writes it in its reasons: the name, then the namespace."""
        return f'{self.kind} "{_qualified(self.name, self.namespace)}"'


@dataclass(frozen=True, slots=True)
class Manifests:
    """What some files hold: roles and bindings, how many other objects, and all mistakes."""

    roles: tuple[Role, ...] = ()
    bindings: tuple[Binding, ...] = ()
    ignored: int = 0
    problems: tuple[Problem, ...] = ()


def together(parts: Iterable[Manifests]) -> Manifests:
    """All of *parts* as one; an object that stands in two places is a mistake, because only one of them can count."""
    found = list(parts)
    roles = tuple(role for part in found for role in part.roles)
    bindings = tuple(binding for part in found for binding in part.bindings)
    problems = [problem for part in found for problem in part.problems]
    return Manifests(
        roles,
        bindings,
        sum(part.ignored for part in found),
        (*problems, *_repeated(roles), *_repeated(bindings)),
    )


def read_manifests(documents: Iterable[Document]) -> Manifests:
    """Whatever *documents* hold. Mistakes do not stop the reading: the caller refuses them, or tells them all."""
    reader = _Reader()
    for document in documents:
        reader.read(document)
    return Manifests(tuple(reader.roles), tuple(reader.bindings), reader.ignored, tuple(reader.problems))


def is_dns_name(text: str) -> bool:
    """Whether a namespace or a ServiceAccount can be called so."""
    return _DNS_NAME.fullmatch(text) is not None


def describe(subject: Subject) -> str:
    """As Kubernetes writes a subject in its reasons."""
    return f'{subject.kind} "{_qualified(subject.name, subject.namespace)}"'


def _qualified(name: str, namespace: str) -> str:
    return f"{name}/{namespace}" if namespace else name


def _repeated(objects: Iterable[Role | Binding]) -> list[Problem]:
    first: dict[tuple[str, str, str], Place] = {}
    problems = []
    for item in objects:
        key = (item.kind, item.namespace, item.name)
        if key in first:
            problems.append(Problem(f"{item} stands here a second time; the first is at {first[key]}", item.place))
        else:
            first[key] = item.place
    return problems


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


# --- reading ---


class _Metadata(NamedTuple):
    name: str
    namespace: str
    labels: tuple[tuple[str, str], ...]


class _Reader:
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
        if document.root.value is None:
            return
        reading = Reading(document)
        is_ours = self._object(reading.root)
        try:
            # Strict: a misspelt resourceNames would otherwise be a restriction that silently restricts nothing.
            reading.finish("the RBAC manifests cannot be used", strict=is_ours)
        except ConfigurationError as error:
            self.problems += error.problems

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


def _role(fields: Fields, kind: str) -> Role:
    metadata = _metadata(fields, namespaced=kind == ROLE)
    rules = tuple(_rule(rule, namespaced=kind == ROLE) for rule in fields.sections("rules"))
    aggregates = _aggregates(fields) if kind == CLUSTER_ROLE else None
    return Role(kind, metadata.name, metadata.namespace, rules, metadata.labels, aggregates, fields.place())


def _metadata(fields: Fields, *, namespaced: bool) -> _Metadata:
    metadata = fields.section("metadata")
    name, namespace = metadata.string("name"), metadata.string("namespace")
    labels = metadata.section("labels")
    found = _Metadata(
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
    return found


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
    wanted = [Requirement(key, "In", (labels.string(key),)) for key in labels]
    for one in wanted:
        _check_label(labels, one, one.key)
    return LabelSelector((*wanted, *map(_requirement, fields.sections("matchExpressions"))))


def _check_label(fields: Fields, requirement: Requirement, key: str | None = None) -> None:
    try:
        check_label_key(requirement.key)
        check_label_values(requirement.values)
    except SelectorError as error:
        fields.problem(str(error), key)


def _requirement(fields: Fields) -> Requirement:
    found = Requirement(fields.string("key"), fields.string("operator"), fields.strings("values"))
    if not found.key:
        fields.problem("there is no key", "key")
    if found.operator not in _OPERATORS:
        fields.problem("there is no such operator", "operator", f"one of {', '.join(_OPERATORS)}")
    elif bool(found.values) != (found.operator in ("In", "NotIn")):
        fields.problem("In and NotIn need values, Exists and DoesNotExist have none", "values")
    if found.key:
        _check_label(fields, found)
    return found


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


# --- writing ---


def as_yaml(item: Role | Binding) -> str:
    """The manifest of *item*, as short as can be. Every value is in quotes: YAML reads ``y`` and ``012`` otherwise."""
    lines = [f"apiVersion: {V1}", f"kind: {item.kind}", "metadata:", f"  name: {_quoted(item.name)}"]
    if item.namespace:
        lines.append(f"  namespace: {_quoted(item.namespace)}")
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
        rows = [f"{key}: [{', '.join(map(_quoted, values))}]" for key, values in parts.items() if values]
        lines += [f"{'  ' if number else '- '}{row}" for number, row in enumerate(rows)]
    return lines


def _binding_lines(binding: Binding) -> list[str]:
    lines = [
        "roleRef:",
        f"  apiGroup: {GROUP}",
        f"  kind: {binding.role_kind}",
        f"  name: {_quoted(binding.role_name)}",
    ]
    lines.append("subjects:")
    for subject in binding.subjects:
        lines += [f"- kind: {subject.kind}", f"  name: {_quoted(subject.name)}"]
        if subject.kind == SERVICE_ACCOUNT:
            lines.append(f"  namespace: {_quoted(subject.namespace)}")
        else:
            lines.append(f"  apiGroup: {GROUP}")
    return lines


def _quoted(text: str) -> str:
    # JSON's escapes are YAML's too, but for characters outside of the basic plane, which JSON spells as two.
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)
