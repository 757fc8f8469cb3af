"""What must be allowed for a request whose object asks for capabilities. Pure.

Called by `request.objects.capabilities` and, when a request is judged again, by `request.judge`. Every provider can
answer it: the request itself, with the capabilities among its attributes, and the right to use each of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ostiary.model import RequestInfo
from ostiary_gateway.authorization.cached_decision import CachedDecision

VERB, RESOURCE, API_GROUP = "use", "capabilities", "ostiary.dev"
_NOTHING = RequestInfo("", "", "")


@dataclass(frozen=True, slots=True, eq=False)
class CapabilityRefused(CachedDecision):
    """A refusal because of what the object asks for; `question` is what is not allowed.

    Its reason is for whoever sent the object: it says nothing that is not in it.
    """

    question: RequestInfo = _NOTHING


def questions_about(info: RequestInfo, names: tuple[str, ...]) -> tuple[RequestInfo, ...]:
    """All that must be allowed for *info* if its object asks for the capabilities *names*."""
    return (replace(info, capabilities=names), *(_use_of(name, info) for name in names))


def questions_of(info: RequestInfo) -> tuple[RequestInfo, ...]:
    """The same for a request whose capabilities are known: itself alone if it has none."""
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
