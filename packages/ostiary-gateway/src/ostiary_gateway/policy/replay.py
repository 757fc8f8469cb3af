"""Replay recorded requests against a candidate policy, and report what it would decide differently.

    audit logs  ->  RecordedRequest  ->  the candidate's chain  ->  Differences, equal ones counted together

A check before a policy is deployed. Unlike a comparison of two policies it covers real requests, with the users' real
groups, and works for any provider.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from ostiary.core.bounded_cache import Bounded
from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, RequestInfo
from ostiary_gateway.audit.recorded import RecordedRequest
from ostiary_gateway.authorization.capabilities import questions_of
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.capabilities import ability
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.interfaces.attributes import RequiresMore
from ostiary_gateway.policy.diff import Effect
from ostiary_gateway.proxy.reviews import is_self_review

# Bound of the decision cache.
_DECISIONS_KEPT = 200_000


@dataclass(frozen=True, slots=True)
class Difference:
    """Requests that the candidate decides differently. `example` is the id of one of them, `count` their number.

    `reason` is the candidate's. Object names are left out: a thousand pods are one difference.
    """

    effect: Effect
    username: str
    request: RequestInfo
    count: int
    example: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """The result: `asked` requests were decided, `free` ones need no decision, for `failed` ones the chain failed."""

    asked: int
    free: int
    differences: tuple[Difference, ...] = ()
    failed: int = 0
    error: str = ""


_Shared = tuple[object, ...]


@dataclass(slots=True)
class _DifferenceCount:
    """Differences that are reported as one; `record` is the first of them."""

    record: RecordedRequest
    effect: Effect
    reason: str
    count: int = 1


async def replay(
    records: Iterable[RecordedRequest], authorizer: Authorizer, requiring: Sequence[RequiresMore] = ()
) -> Replay:
    """Decide the recorded requests with *authorizer*.

    *requiring* are the mappers whose requests need more than one permission.

    Equal requests are decided once: a log has many of them.
    """
    decided = free = failed = 0
    error = ""
    decisions = _Decisions(authorizer)
    counted: dict[_Shared, _DifferenceCount] = {}
    for record in records:
        attributes = record.attributes
        if is_self_review(attributes.request) or record.refused_by_scope:
            # Self reviews are allowed to every authenticated user. No policy can allow what is out of a token's scope.
            free += 1
            continue
        decided += 1
        try:
            decision = await decisions.on_all(attributes, requiring)
        except ProviderError as failure:
            failed, error = failed + 1, error or f"{failure.summary}: {failure.cause}"
            continue
        if decision.allowed != record.decision.allowed:
            _count(counted, record, decision)
    differences = sorted(
        map(_difference, counted.values()),
        key=lambda difference: (difference.effect.value, -difference.count, difference.username),
    )
    return Replay(decided, free, tuple(differences), failed, error)


def requiring_more(config: GatewayConfig) -> tuple[RequiresMore, ...]:
    """Return the mappers of *config* whose requests may need more than one permission."""
    mappers = {upstream.attributes.type: upstream.attributes.instance for upstream in config.upstreams}
    requiring = (ability(mapper, RequiresMore) for mapper in mappers.values())
    return tuple(mapper for mapper in requiring if mapper is not None)


def stripped_prefixes(config: GatewayConfig) -> dict[str, str]:
    """Return, by upstream, the path prefix that clients send and that is stripped before authorization."""
    stripping = (each for each in config.upstreams if each.strip_prefix and each.is_kubernetes and each.prefix != "/")
    return {upstream.name: upstream.prefix for upstream in stripping}


class _Decisions:
    """Cache the decisions of one chain.

    Errors are cached too: a log must not wait for the same timeout a thousand times.
    """

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._kept: Bounded[Hashable, Decision | ProviderError] = Bounded(_DECISIONS_KEPT)

    async def on_all(self, attributes: Attributes, requiring: Sequence[RequiresMore]) -> Decision:
        """Return the decision on everything that such a request needs. Raises `ProviderError`."""
        request = attributes.request
        decision = await self._on(attributes)
        if request.capabilities:
            for needed in questions_of(request)[1:]:
                decision = await self._on(Attributes(attributes.user, needed)) if decision.allowed else decision
        for mapper in requiring:
            more = mapper.also_required(request)
            if more is not None and decision.allowed:
                decision = await self._on(Attributes(attributes.user, more))
        return decision

    async def _on(self, attributes: Attributes) -> Decision:
        key = self._authorizer.question_key(attributes)
        decision = self._kept.get(key)
        if decision is None:
            try:
                # Most providers decide synchronously, which is cheaper than awaiting them.
                decision = self._authorizer.decide(attributes) or await self._authorizer.authorize(attributes)
            except ProviderError as error:
                decision = error
            self._kept.keep(key, decision)
        if isinstance(decision, ProviderError):
            raise decision
        return decision


def _count(counted: dict[_Shared, _DifferenceCount], record: RecordedRequest, decision: Decision) -> None:
    username, asked = record.attributes.user.username, record.attributes.request
    # Without the fields that vary between similar requests. The path counts only for non-resource requests.
    key = (
        decision.allowed,
        username,
        asked.verb,
        asked.api_group,
        asked.api_version,
        asked.namespace,
        asked.resource,
        asked.subresource,
        asked.modifier,
        asked.capabilities,
        asked.upstream,
        "" if asked.is_resource else asked.path,
    )
    before = counted.get(key)
    if before is None:
        counted[key] = _DifferenceCount(record, Effect.GAIN if decision.allowed else Effect.LOSS, decision.reason)
    else:
        before.count += 1


def _difference(counted: _DifferenceCount) -> Difference:
    record = counted.record
    asked = record.attributes.request
    shared = replace(
        asked,
        name="",
        path="" if asked.is_resource else asked.path,
        method="",
        field_selector=None,
        label_selector=None,
    )
    return Difference(counted.effect, record.attributes.user.username, shared, counted.count, record.id, counted.reason)
