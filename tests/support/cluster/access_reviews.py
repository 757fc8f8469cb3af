"""The SubjectAccessReviews of the tests' API server: whom they are about, and a policy that decides as a cluster's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.providers.rbac import RbacAuthorization
from tests.support.cluster.resources import Asked
from tests.support.cluster.status import bad_request


def reviewed_user(spec: dict[str, Any]) -> UserInfo:
    """As kube-apiserver checks it: somebody must be named, and one of the two kinds of attributes."""
    username, groups = spec.get("user", ""), tuple(spec.get("groups") or ())
    if not username and not groups:
        raise bad_request("spec.user: Invalid value: at least one of user or group must be specified")
    if ("resourceAttributes" in spec) == ("nonResourceAttributes" in spec):
        raise bad_request("spec.resourceAttributes: Invalid value: exactly one of the attributes must be specified")
    extra = tuple(sorted((key, tuple(values)) for key, values in (spec.get("extra") or {}).items()))
    return UserInfo(username, spec.get("uid", ""), groups, extra)


def refuse_by(policy: RbacAuthorization) -> Callable[[UserInfo, Asked], str | None]:
    """A `Cluster.refuse` that decides by a policy, as the RBAC authorizer of a cluster does."""

    def refuse(user: UserInfo, asked: Asked) -> str | None:
        request = RequestInfo(
            asked.verb,
            "",
            asked.path,
            is_resource=bool(asked.resource),
            api_group=asked.group,
            api_version=asked.version,
            namespace=asked.namespace,
            resource=asked.resource,
            subresource=asked.subresource,
            name=asked.name,
        )
        decision = policy.decide(Attributes(user, request))
        return None if decision.allowed else decision.reason or "no rule"

    return refuse
