"""What a candidate policy would have decided about recorded requests.

    audit logs  ->  RecordedRequest  ->  the candidate's chain  ->  Differences, equal ones counted together

Called by ``ostiary policy replay``, as a gate before a policy is put into force. Unlike a comparison of two policies
it sees what people really do, with their real groups, and works for any provider.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ostiary.core.abilities import ability
from ostiary.errors import ProviderError
from ostiary.gateway.audit.recorded import RecordedRequest
from ostiary.gateway.authorize.capabilities import questions_of
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.policy.diff import Effect
from ostiary.gateway.request.own.reviews import is_self_review
from ostiary.interfaces.attributes import RequiresMore
from ostiary.model import Attributes, RequestInfo


@dataclass(frozen=True, slots=True)
class Difference:
    """A question that is answered differently now. `example` is the id of one such request, `count` how many.

    `reason` is the candidate's. Names of objects are left out: a thousand pods are one difference.
    """

    effect: Effect
    username: str
    request: RequestInfo
    count: int
    example: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """`asked` requests were decided anew, `free` ones need no decision, `failed` could not be asked."""

    asked: int
    free: int
    differences: tuple[Difference, ...] = ()
    failed: int = 0
    error: str = ""


async def replay(
    records: Iterable[RecordedRequest], authorizer: Authorizer, requiring: Sequence[RequiresMore] = ()
) -> Replay:
    """Ask *authorizer* what was asked then. *requiring* are the mappers that know when one permission is not enough."""
    decided = free = failed = 0
    error = ""
    by_question: dict[tuple[Effect, str, RequestInfo], Difference] = {}
    for record in records:
        if is_self_review(record.attributes.request) or record.refused_by_scope:
            # The gateway answers self reviews to everybody who is signed in. What a token is not for, no policy gives.
            free += 1
            continue
        decided += 1
        try:
            allowed, reason = await _decide(record.attributes, authorizer, requiring)
        except ProviderError as failure:
            failed, error = failed + 1, error or f"{failure.summary}: {failure.cause}"
            continue
        if allowed != record.decision.allowed:
            _count(by_question, record, Effect.GAIN if allowed else Effect.LOSS, reason)
    differences = sorted(
        by_question.values(), key=lambda difference: (difference.effect.value, -difference.count, difference.username)
    )
    return Replay(decided, free, tuple(differences), failed, error)


def requiring_more(config: GatewayConfig) -> tuple[RequiresMore, ...]:
    """The mappers of *config* that know requests for which one permission is not enough."""
    mappers = {upstream.attributes.type: upstream.attributes.instance for upstream in config.upstreams}
    requiring = (ability(mapper, RequiresMore) for mapper in mappers.values())
    return tuple(mapper for mapper in requiring if mapper is not None)


async def _decide(
    attributes: Attributes, authorizer: Authorizer, requiring: Sequence[RequiresMore]
) -> tuple[bool, str]:
    also_required = (mapper.also_required(attributes.request) for mapper in requiring)
    needed = (*questions_of(attributes.request), *(more for more in also_required if more is not None))
    for request in needed:
        decision = await authorizer.authorize(Attributes(attributes.user, request))
        if not decision.allowed:
            return False, decision.reason
    return True, decision.reason


def _count(
    by_question: dict[tuple[Effect, str, RequestInfo], Difference], record: RecordedRequest, effect: Effect, reason: str
) -> None:
    username, info = record.attributes.user.username, record.attributes.request
    # What differs from request to request is left out. The path counts only where there is no resource.
    shared = replace(
        info,
        name="",
        path="" if info.is_resource else info.path,
        method="",
        field_selector=None,
        label_selector=None,
    )
    key = (effect, username, shared)
    if key in by_question:
        by_question[key] = replace(by_question[key], count=by_question[key].count + 1)
    else:
        by_question[key] = Difference(effect, username, shared, 1, record.id, reason)
