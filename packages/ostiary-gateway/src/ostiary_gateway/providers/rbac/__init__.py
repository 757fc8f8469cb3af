"""Role-based access control, as Kubernetes does it: the manifests that people have decide here too.

load -> defaults -> aggregation -> index -> decide        explain, listing and lint tell what the index would do
"""

from __future__ import annotations

from ostiary_gateway.providers.rbac.provider import RbacAuthorization

__all__ = ["RbacAuthorization"]
