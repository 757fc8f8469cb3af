"""Small policies and requests for the tests of the rbac provider."""

from __future__ import annotations

from collections.abc import Iterable

from ostiary.core.policy_rules import PolicyRule
from ostiary.core.yaml import parse_all
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.wire.rbac import Binding, Manifests, Role, read_manifests

HEADER = "apiVersion: rbac.authorization.k8s.io/v1\n"


def rule(verbs: str, groups: str = "", resources: str = "", names: str = "") -> PolicyRule:
    """Lists are written with blanks; the core group is ``core``."""
    return PolicyRule(
        tuple(verbs.split()),
        tuple("" if group == "core" else group for group in (groups or "core").split()),
        tuple(resources.split()),
        tuple(names.split()),
    )


def urls(verbs: str, paths: str) -> PolicyRule:
    return PolicyRule(tuple(verbs.split()), non_resource_urls=tuple(paths.split()))


def subject(text: str, namespace: str = "") -> Subject:
    """``User:alice``, ``Group:devs`` or ``ServiceAccount:robot``."""
    kind, _, name = text.partition(":")
    return Subject(kind, name, namespace)


def cluster_role(name: str, *rules: PolicyRule) -> Role:
    return Role("ClusterRole", name, rules=rules)


def role(name: str, namespace: str, *rules: PolicyRule) -> Role:
    return Role("Role", name, namespace, rules)


def bind(role_name: str, *subjects: str | Subject, namespace: str = "", role_kind: str = "ClusterRole") -> Binding:
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    found = tuple(subject(one) if isinstance(one, str) else one for one in subjects)
    return Binding(kind, f"bind-{role_name}", namespace, role_kind, role_name, found)


def policy(*items: Role | Binding) -> Manifests:
    roles = tuple(item for item in items if isinstance(item, Role))
    return Manifests(roles, tuple(item for item in items if isinstance(item, Binding)))


def rbac(*items: Role | Binding, defaults: bool = False) -> RbacAuthorization:
    return RbacAuthorization(policy=policy(*items), defaults=defaults)


def read(text: str) -> Manifests:
    found = read_manifests(parse_all(text))
    assert not found.problems, found.problems
    return found


def ask(
    verb: str,
    resource: str,
    namespace: str = "",
    name: str = "",
    *,
    user: str = "alice",
    groups: Iterable[str] = (),
    group: str = "",
) -> Attributes:
    resource, _, subresource = resource.partition("/")
    request = RequestInfo(
        verb,
        "GET",
        "",
        is_resource=True,
        api_group=group,
        namespace=namespace,
        resource=resource,
        subresource=subresource,
        name=name,
    )
    return Attributes(UserInfo(user, groups=tuple(groups)), request)


def ask_path(verb: str, path: str, *, user: str = "alice", groups: Iterable[str] = ()) -> Attributes:
    return Attributes(UserInfo(user, groups=tuple(groups)), RequestInfo(verb, verb.upper(), path))
