"""Role-based access control with Kubernetes manifests.

load -> defaults -> aggregation -> index -> decide        explain, listing and lint describe what the index decides
"""

from __future__ import annotations

from ostiary_gateway.providers.rbac.provider import RbacAuthorization

__all__ = ["RbacAuthorization"]
