"""Read from the audit events of shadow mode where the gateway and a cluster decide differently.

audit logs  ->  events of the stage ShadowReview  ->  Disagreements, equal ones counted together
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from ostiary_gateway.audit.log_files import Counts, LogPath, lines
from ostiary_gateway.audit.recorded import EventReader, RecordedRequest
from ostiary_gateway.policy.shadow import ShadowOutcome
from ostiary_gateway.wire.audit import decode_event, decode_notes
from ostiary_gateway.wire.audit_policy import SHADOW, SHADOW_REASON, SHADOW_STAGE

_STAGE = SHADOW_STAGE.encode()
_OUTCOMES = frozenset(outcome.value for outcome in ShadowOutcome)


@dataclass(slots=True, eq=False)
class Disagreement:
    """Requests that only the gateway or only the cluster allows. `example` is the latest of them.

    Object names are left out: a thousand pods are one disagreement.
    """

    gateway_allows: bool
    example: RecordedRequest
    first: datetime
    last: datetime
    gateway_reason: str
    cluster_reason: str
    count: int = 1

    @property
    def text(self) -> str:
        """The user, and the action."""
        request = self.example.attributes.request
        if not request.is_resource:
            what = request.path
        else:
            kind = f"{request.resource}.{request.api_group}" if request.api_group else request.resource
            kind = f"{kind}/{request.subresource}" if request.subresource else kind
            what = f'{kind} in namespace "{request.namespace}"' if request.namespace else f"{kind} in the whole cluster"
        at = f' at upstream "{request.upstream}"' if request.upstream else ""
        return f'User "{self.example.attributes.user.username}" to {request.verb} {what}{at}'


@dataclass(slots=True)
class Comparisons:
    """Totals of a comparison.

    The cluster's decision on `unknown` requests could not be determined; `unknown_reason` is why, for the last one.
    """

    agreed: int = 0
    unknown: int = 0
    unknown_reason: str = ""
    disagreements: list[Disagreement] = field(default_factory=list)


def read_comparisons(
    paths: Iterable[LogPath], counts: Counts, *, since: datetime | None = None, upstream: str = ""
) -> Comparisons:
    """Summarize the logs. Raises `ConfigurationError` if one cannot be read."""
    reader, compared = EventReader(), Comparisons()
    together: dict[tuple[object, ...], Disagreement] = {}
    for path in paths:
        for number, line in lines(path, counts):
            # Few events of a log have this stage. Skip the others without decoding them, even if they are corrupt.
            if _STAGE not in line:
                continue
            event = decode_event(line)
            if event is None:
                counts.count_unreadable(path, number)
                continue
            if event.stage != SHADOW_STAGE:
                continue
            request, notes = reader.request_of(event), decode_notes(bytes(event.annotations))
            if request is None or notes.get(SHADOW) not in _OUTCOMES:
                # Possibly of a later version: an unknown outcome must not count as agreement.
                counts.count_unreadable(path, number)
                continue
            if since is not None and request.at < since:
                continue
            if upstream and request.attributes.upstream not in ("", upstream):
                continue
            _take(compared, together, request, notes)
    compared.disagreements = sorted(
        together.values(), key=lambda each: (not each.gateway_allows, -each.count, each.text)
    )
    return compared


def _take(
    compared: Comparisons,
    together: dict[tuple[object, ...], Disagreement],
    record: RecordedRequest,
    notes: dict[str, str],
) -> None:
    outcome, cluster_reason = notes.get(SHADOW), notes.get(SHADOW_REASON, "")
    if outcome == ShadowOutcome.AGREE.value:
        compared.agreed += 1
    elif outcome == ShadowOutcome.UNKNOWN.value:
        compared.unknown += 1
        compared.unknown_reason = cluster_reason
    else:
        _count(together, record, cluster_reason, gateway_allows=outcome == ShadowOutcome.GATEWAY_ALLOWS.value)


def _count(
    together: dict[tuple[object, ...], Disagreement],
    record: RecordedRequest,
    cluster_reason: str,
    *,
    gateway_allows: bool,
) -> None:
    request = record.attributes.request
    key = (
        gateway_allows,
        record.attributes.user.username,
        request.upstream,
        request.verb,
        request.api_group,
        request.resource,
        request.subresource,
        request.namespace,
        "" if request.is_resource else request.path,
    )
    before = together.get(key)
    if before is None:
        together[key] = Disagreement(
            gateway_allows, record, record.at, record.at, record.decision.reason, cluster_reason
        )
        return
    before.count += 1
    if record.at >= before.last:
        # Rotated logs are often passed newest first.
        before.example, before.gateway_reason, before.cluster_reason = record, record.decision.reason, cluster_reason
    before.first, before.last = min(before.first, record.at), max(before.last, record.at)
