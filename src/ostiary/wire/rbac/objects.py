"""Roles, bindings and their rules, as values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ostiary.core.rules import PolicyRule
from ostiary.interfaces.authorization import Subject
from ostiary.model import Place, Problem, Requirement

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
        return f'{self.kind} "{_qualified_name(self.name, self.namespace)}"'


@dataclass(frozen=True, slots=True)
class Manifests:
    """What some files hold: roles and bindings, how many other objects, and all mistakes."""

    roles: tuple[Role, ...] = ()
    bindings: tuple[Binding, ...] = ()
    ignored: int = 0
    problems: tuple[Problem, ...] = ()


def is_dns_name(text: str) -> bool:
    """Whether a namespace or a ServiceAccount can be called so."""
    return _DNS_NAME.fullmatch(text) is not None


def describe(subject: Subject) -> str:
    """As Kubernetes writes a subject in its reasons."""
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
