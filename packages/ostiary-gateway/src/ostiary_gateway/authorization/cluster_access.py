"""Whether somebody can use a cluster: whether it is offered to them on the page, and by ``ostiary kubeconfig --all``.

    the policy can tell          more than discovery somewhere in it: yes, else no
    it cannot (cedar, a review)  what most users of a cluster do is asked: yes; only discovery: perhaps; else no
    discovery is denied          no, whatever a later provider of the chain would allow

Called by `login.clusters`. It gives no permission: each request is decided as ever. It must not tell of a cluster where
the user has none, so what cannot be asked is no yes.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from ostiary.model import Attributes, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.wire.request_info import request_info


class ClusterUse(Enum):
    """UNKNOWN: the user may read what there is, and what else the policy cannot tell."""

    GRANTED = "granted"
    UNKNOWN = "unknown"
    NONE = "none"


async def use_of(authorizer: Authorizer, user: UserInfo, upstream: str) -> ClusterUse:
    """Raises `ProviderError` if a provider cannot be asked."""
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
