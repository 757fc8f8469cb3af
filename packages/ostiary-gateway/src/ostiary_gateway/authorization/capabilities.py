"""The permissions that a request requires if its object uses capabilities.

They are queries that every provider supports: the request itself, with the capabilities among its attributes, and the
verb "use" for each capability.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ostiary.model import RequestInfo
from ostiary_gateway.authorization.cached_decision import CachedDecision

VERB, RESOURCE, API_GROUP = "use", "capabilities", "ostiary.dev"
_NOTHING = RequestInfo("", "", "")


@dataclass(frozen=True, slots=True, eq=False)
class CapabilityRefused(CachedDecision):
    """A denial because of a capability. `question` has the denied attributes.

    The reason may be sent to the author of the object: it contains only what the object does.
    """

    question: RequestInfo = _NOTHING


def questions_about(info: RequestInfo, names: tuple[str, ...]) -> tuple[RequestInfo, ...]:
    """Return all queries that must be allowed for *info* if its object uses the capabilities *names*."""
    return (replace(info, capabilities=names), *(_use_of(name, info) for name in names))


def questions_of(info: RequestInfo) -> tuple[RequestInfo, ...]:
    """Like `questions_about`, for the capabilities in *info*; only *info* itself if it has none."""
    return questions_about(info, info.capabilities)


def _use_of(name: str, info: RequestInfo) -> RequestInfo:
    return RequestInfo(
        VERB,
        "",
        "",
        is_resource=True,
        api_group=API_GROUP,
        api_version="v1",
        namespace=info.namespace,
        resource=RESOURCE,
        name=name,
        upstream=info.upstream,
    )
