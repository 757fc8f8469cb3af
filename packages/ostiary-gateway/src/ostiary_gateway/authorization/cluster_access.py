"""Whether a user can access a cluster, and is therefore offered it on the page and by ``ostiary kubeconfig --all``.

    the policy can list rights          GRANTED if there is more than discovery, otherwise NONE
    it cannot (Cedar, access reviews)   query typical requests: GRANTED; only discovery: UNKNOWN; otherwise NONE
    discovery is denied                 NONE, whatever a later provider of the chain would allow

This grants nothing: each request is authorized as usual. A cluster must not be revealed to users without rights there,
so an error is never GRANTED.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from ostiary.model import Attributes, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.wire.request_info import request_info


class ClusterUse(Enum):
    """UNKNOWN: the user may use discovery, and the policy cannot list further rights."""

    GRANTED = "granted"
    UNKNOWN = "unknown"
    NONE = "none"


async def use_of(authorizer: Authorizer, user: UserInfo, upstream: str) -> ClusterUse:
    """Return the user's access to *upstream*; raises `ProviderError` if a provider fails."""
    rights = authorizer.gives_rights(user, upstream=upstream)
    if rights is False:
        return ClusterUse.NONE
    discovery = await authorizer.authorize(Attributes(user, _reading("/api", upstream)))
    if discovery.verdict is Verdict.DENY:
        return ClusterUse.NONE
    if rights:
        return ClusterUse.GRANTED
    for path in ("/api/v1/namespaces", "/api/v1/pods"):
        if (await authorizer.authorize(Attributes(user, _reading(path, upstream)))).allowed:
            return ClusterUse.GRANTED
    return ClusterUse.UNKNOWN if discovery.allowed else ClusterUse.NONE


def _reading(path: str, upstream: str) -> RequestInfo:
    return replace(request_info(RequestLine("GET", path)), upstream=upstream)
