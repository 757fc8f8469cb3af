"""Where the gateway and a cluster decided differently, read from audit logs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ostiary_gateway.audit.log_files import Counts
from ostiary_gateway.policy.disagreements import Comparisons, read_comparisons


def event(outcome: str, *, at: str = "2026-01-01T00:00:00Z", **changes: Any) -> str:
    return json.dumps(
        {
            "kind": "Event",
            "auditID": "id",
            "stage": "ShadowReview",
            "verb": "get",
            "requestURI": "/api/v1/namespaces/team/pods/web",
            "user": {"username": "alice"},
            "objectRef": {"resource": "pods", "namespace": "team", "name": "web", "apiVersion": "v1"},
            "requestReceivedTimestamp": at,
            "annotations": {
                "authorization.k8s.io/decision": "allow" if outcome == "only_gateway_allows" else "forbid",
                "authorization.k8s.io/reason": "ours",
                "ostiary.dev/shadow": outcome,
                "ostiary.dev/shadow-reason": "theirs",
            },
            **changes,
        }
    )


def compared(folder: Path, *events: str, **options: Any) -> tuple[Comparisons, Counts]:
    log, counts = folder / "log", Counts()
    log.write_text("".join(f"{line}\n" for line in events))
    return read_comparisons([log], counts, **options), counts


def test_equal_disagreements_are_told_once_with_first_and_last(tmp_path: Path) -> None:
    other_pod = {"objectRef": {"resource": "pods", "namespace": "team", "name": "db", "apiVersion": "v1"}}
    told, _ = compared(
        tmp_path,
        event("only_gateway_allows", at="2026-01-02T00:00:00Z", auditID="second", **other_pod),
        event("only_gateway_allows", at="2026-01-01T00:00:00Z", auditID="first"),
        event("only_cluster_allows"),
        event("agree"),
        event("unknown"),
        event("only_gateway_allows", stage="ResponseComplete"),
        event("only_gateway_allows", user={"username": "bob"}),
    )
    assert (told.agreed, told.unknown, told.unknown_reason) == (1, 1, "theirs")
    first, second, third = told.disagreements
    assert (first.count, first.gateway_allows, first.gateway_reason, first.cluster_reason) == (
        2,
        True,
        "ours",
        "theirs",
    )
    assert (first.first.day, first.last.day) == (1, 2)
    assert first.text == 'User "alice" to get pods in namespace "team"'
    assert (second.text.split('"')[1], second.gateway_allows) == ("bob", True)
    assert not third.gateway_allows


def test_broken_lines_are_counted_and_other_events_are_not_even_decoded(tmp_path: Path) -> None:
    told, counts = compared(tmp_path, event("agree"), event("agree")[:-5], "not an event")
    assert (told.agreed, counts.unreadable, counts.places) == (1, 1, [f"{tmp_path / 'log'}:2"])


def test_a_time_and_an_upstream_choose(tmp_path: Path) -> None:
    annotations = json.loads(event("agree"))["annotations"]
    there = event("agree", annotations={**annotations, "audit.ostiary.dev/upstream": "prod"})
    events = (event("agree"), event("agree", at="2026-02-01T00:00:00Z"), there)
    assert compared(tmp_path, *events, since=datetime(2026, 1, 15, tzinfo=UTC))[0].agreed == 1
    assert compared(tmp_path, *events, upstream="dev")[0].agreed == 2
    assert compared(tmp_path, *events, upstream="prod")[0].agreed == 3


def test_paths_and_subresources_are_told(tmp_path: Path) -> None:
    told, _ = compared(
        tmp_path,
        event("only_gateway_allows", objectRef=None, requestURI="/metrics"),
        event(
            "only_gateway_allows",
            requestURI="/apis/apps/v1/deployments/web/scale",
            objectRef={"resource": "deployments", "apiGroup": "apps", "subresource": "scale", "apiVersion": "v1"},
        ),
    )
    assert sorted(each.text for each in told.disagreements) == [
        'User "alice" to get /metrics',
        'User "alice" to get deployments.apps/scale in the whole cluster',
    ]


def test_what_is_not_understood_is_counted_and_no_agreement(tmp_path: Path) -> None:
    told, counts = compared(tmp_path, event("agree"), event("perhaps"), event("agree", user={}))
    assert (told.agreed, told.disagreements, counts.unreadable) == (1, [], 2)


def test_the_example_is_the_latest_in_whatever_order_logs_are_read(tmp_path: Path) -> None:
    told, _ = compared(
        tmp_path,
        event("only_gateway_allows", at="2026-01-02T00:00:00Z", auditID="second"),
        event("only_gateway_allows", at="2026-01-01T00:00:00Z", auditID="first"),
    )
    assert [each.example.id for each in told.disagreements] == ["second"]
