"""Sessions, decisions, explanations, quotas and replicas as JSON, for operators. Pure functions.

The operator API and the commands that read local files use the same functions, so that both print the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC

from ostiary.model import Attributes, Decision
from ostiary_gateway.audit.ended_requests import EndedRequest
from ostiary_gateway.authorization.chain import ChainExplanation, WhoCan
from ostiary_gateway.authorization.denials import Refusal
from ostiary_gateway.authorization.token_scope import explain_with_scope
from ostiary_gateway.interfaces.admission import SubjectUsage
from ostiary_gateway.interfaces.token_store import Revocation, RevocationKind, Session
from ostiary_gateway.replicas.drift import SeenReplica
from ostiary_gateway.wire.ostiary_dev import API_VERSION


def attributes_json(attributes: Attributes) -> dict[str, object]:
    user, info = attributes.user, attributes.request
    asked_for: dict[str, object] = {"verb": info.verb}
    if info.is_resource:
        asked_for |= {"group": info.api_group, "resource": info.resource, "subresource": info.subresource}
        asked_for |= {"namespace": info.namespace, "name": info.name}
    else:
        asked_for["path"] = info.path
    asked_for["upstream"] = info.upstream
    return {"user": user.username, "groups": list(user.groups), **{k: v for k, v in asked_for.items() if v}}


def decision_json(decision: Decision) -> dict[str, object]:
    return {"verdict": decision.verdict.value, "reason": decision.reason, "hidden": decision.hidden}


def explanation_json(explanation: ChainExplanation) -> dict[str, object]:
    steps = []
    for step in explanation.steps:
        row: dict[str, object] = {"provider": step.name}
        if step.error:
            row["error"] = step.error
        if step.explanation is not None:
            row |= decision_json(step.explanation.decision)
            row |= {key: getattr(step.explanation, key) for key in ("closest", "failed", "remedy")}
        steps.append(row)
    decision = None if explanation.decision is None else decision_json(explanation.decision)
    return {"decision": decision, "error": explanation.error, "steps": steps}


def sessions_json(sessions: Iterable[Session]) -> dict[str, object]:
    return {"kind": "SessionList", "apiVersion": API_VERSION, "items": [session_json(session) for session in sessions]}


def marks_json(marks: Iterable[Revocation]) -> dict[str, object]:
    return {"kind": "RevocationList", "apiVersion": API_VERSION, "items": [_mark_json(mark) for mark in marks]}


def _mark_json(mark: Revocation) -> dict[str, object]:
    # Enough to recognise a token, or the origin of a sign-in. The whole digest is not shown.
    is_digest = mark.kind in (RevocationKind.TOKEN, RevocationKind.ORIGIN)
    value = mark.value[:8] if is_digest else mark.value
    times = {"before": mark.at, "recorded": mark.recorded_at}
    row: dict[str, object] = {"type": mark.kind.value, "value": value, "by": mark.by, "sequence": mark.sequence}
    return row | {key: time.astimezone(UTC).isoformat() for key, time in times.items() if time is not None}


def who_can_json(result: WhoCan) -> dict[str, object]:
    subjects = [
        {"kind": subject.kind, "name": subject.name, "namespace": subject.namespace, "via": subject.via}
        for subject in result.subjects
    ]
    return {
        "kind": "SubjectSearch",
        "apiVersion": API_VERSION,
        "subjects": subjects,
        "unknown": list(result.unknown),
    }


def quotas_json(usage: Iterable[SubjectUsage]) -> dict[str, object]:
    """Return the usage of each subject of each limit, one item per row."""
    items = [
        {
            "limit": row.limit_name,
            "upstream": row.upstream,
            "subject": row.subject,
            "item": row.item,
            "used": row.used,
            "most": row.limit,
        }
        for row in usage
    ]
    return {"kind": "QuotaList", "apiVersion": API_VERSION, "items": items}


def replicas_json(replicas: Iterable[SeenReplica]) -> dict[str, object]:
    return {"kind": "ReplicaList", "apiVersion": API_VERSION, "items": [_replica_json(each) for each in replicas]}


def _replica_json(seen: SeenReplica) -> dict[str, object]:
    replica = seen.replica
    return {
        "name": seen.name,
        "id": replica.id,
        "host": replica.host,
        "pid": replica.pid,
        "version": replica.version,
        "interfacesVersion": replica.interfaces,
        "upSeconds": replica.up_seconds,
        "configuration": {
            "hash": replica.configuration,
            "compared": seen.configuration.value,
            "seconds": replica.configured_seconds,
        },
        "revocations": {
            "applied": replica.revocation,
            "head": replica.head,
            "confirmedSeconds": replica.confirmed_seconds,
            "maxStaleSeconds": replica.max_stale,
        },
        "load": {
            "requestsPerSecond": replica.requests_per_second,
            "inFlight": replica.in_flight,
            "openStreams": replica.open_streams,
            "tokens": replica.tokens,
        },
        "workers": replica.workers,
        "ready": not seen.trouble,
        "trouble": seen.trouble,
        "silentSeconds": round(seen.silent_seconds, 1),
    }


def decided_json(refusal: Refusal, now: ChainExplanation) -> dict[str, object]:
    """Return a past decision, and the decision as of now. A request denied by a token's scope is still denied."""
    now = explain_with_scope(now, refusal)
    return {
        "kind": "Decision",
        "apiVersion": API_VERSION,
        "id": refusal.id,
        "at": refusal.at.astimezone(UTC).isoformat(),
        "attributes": attributes_json(refusal.attributes),
        "then": decision_json(refusal.decision),
        "now": explanation_json(now),
        **({"scope": refusal.scope} if refusal.scope else {}),
    }


def ended_json(request: EndedRequest) -> dict[str, object]:
    """Return a request without a decision: what was requested, and how it ended."""
    details = {
        "user": request.username,
        "login": request.login,
        "provider": request.provider,
        "from": request.address,
        "reason": request.reason,
    }
    return {
        "kind": "SignIn" if request.login else "Request",
        "apiVersion": API_VERSION,
        "id": request.id,
        "at": request.at.astimezone(UTC).isoformat(),
        "method": request.method,
        "path": request.path,
        "status": request.status,
        **{key: value for key, value in details.items() if value},
    }


def session_json(session: Session) -> dict[str, object]:
    return {
        "id": session.id,
        "user": session.user.username,
        "groups": list(session.user.groups),
        "sources": dict(session.sources),
        "provider": session.provider,
        "client": session.client,
        "kind": session.kind.value,
        "name": session.name,
        "created": session.created_at.astimezone(UTC).isoformat(),
        "expires": session.expires_at.astimezone(UTC).isoformat(),
        "lastUsed": None if session.last_used_at is None else session.last_used_at.astimezone(UTC).isoformat(),
    }
