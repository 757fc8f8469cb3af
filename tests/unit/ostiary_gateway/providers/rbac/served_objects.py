"""Roles and bindings as an API server would serve them, made from our own."""

from __future__ import annotations

from typing import Any

import yaml

from ostiary_gateway.providers.rbac.defaults import DEFAULT_BINDINGS, DEFAULT_ROLES
from ostiary_gateway.providers.rbac.policy import aggregate_roles
from ostiary_gateway.wire.rbac import Binding, Manifests, Role, as_yaml
from tests.support.rbac_cluster import Object, RbacCluster

Key = tuple[str, str, str]


def as_served(item: Role | Binding) -> Object:
    served: dict[str, Any] = yaml.safe_load(as_yaml(item))
    return {name: value for name, value in served.items() if name not in ("kind", "apiVersion", "aggregationRule")}


def cluster_of(manifests: Manifests) -> dict[Key, Object]:
    """What a cluster has after these were applied: its own roles, and aggregated ones with their rules filled in."""
    roles = {(role.kind, role.namespace, role.name): role for role in (*DEFAULT_ROLES, *manifests.roles)}
    items: tuple[Role | Binding, ...] = (*aggregate_roles(roles.values()), *DEFAULT_BINDINGS, *manifests.bindings)
    return {(item.kind, item.namespace, item.name): as_served(item) for item in items}


def change_to(cluster: RbacCluster, objects: dict[Key, Object]) -> None:
    """Create, change and delete what differs, one after the other, as people do."""
    for kind, namespace, name in [key for key in cluster.state.objects if key not in objects]:
        cluster.delete(kind, name, namespace)
    for key, item in objects.items():
        if cluster.stored(*key) != item:
            cluster.put(key[0], item)
