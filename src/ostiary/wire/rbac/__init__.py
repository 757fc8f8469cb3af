"""``rbac.authorization.k8s.io``: Role, ClusterRole, RoleBinding and ClusterRoleBinding, read and written. Pure.

Used by the rbac provider, by whoever examines a policy, and by whoever writes one.
"""

from __future__ import annotations

from ostiary.core.rules import ANY, PolicyRule
from ostiary.wire.rbac.objects import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    GROUP,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    USER,
    USER_GROUP,
    Binding,
    LabelSelector,
    Manifests,
    Role,
    describe,
    is_dns_name,
)
from ostiary.wire.rbac.reading import (
    read_manifests,
    read_selector,
    together,
)
from ostiary.wire.rbac.writing import (
    as_yaml,
)

__all__ = [
    "ANY",
    "CLUSTER_ROLE",
    "CLUSTER_ROLE_BINDING",
    "GROUP",
    "ROLE",
    "ROLE_BINDING",
    "SERVICE_ACCOUNT",
    "USER",
    "USER_GROUP",
    "Binding",
    "LabelSelector",
    "Manifests",
    "PolicyRule",
    "Role",
    "as_yaml",
    "describe",
    "is_dns_name",
    "read_manifests",
    "read_selector",
    "together",
]
