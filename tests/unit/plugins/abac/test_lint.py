"""What ``ostiary policy lint`` finds in an abac policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary.plugins.abac.authorization import AbacAuthorization
from ostiary.plugins.abac.reading import API_VERSION


def policy_file(tmp_path: Path, *specs: dict[str, Any] | str) -> Path:
    path = tmp_path / "p.jsonl"
    lines = [
        one if isinstance(one, str) else json.dumps({"apiVersion": API_VERSION, "kind": "Policy", "spec": one})
        for one in specs
    ]
    path.write_text("\n".join(lines))
    return path


def test_it_finds_what_allows_nothing_or_too_much(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[list[Any], list[tuple[str, str, int]]]] = [
        ([{"user": "alice", "resource": "pods"}], []),
        (["{"], [("invalid", "error", 1)]),
        ([{"user": "a", "resource": "pods"}, {"user": "a", "resource": "pods"}], [("duplicate-line", "warning", 2)]),
        ([{"resource": "pods"}], [("no-subject", "error", 1)]),
        ([{"user": "a"}], [("no-object", "error", 1)]),
        ([{"user": "*", "resource": "*"}], [("wide-grant", "warning", 1)]),
        ([{"user": "*", "resource": "*", "readonly": True}], []),
        ([{"group": "system:unauthenticated", "nonResourcePath": "*"}], [("wide-grant", "error", 1)]),
    ]
    for specs, expected in cases:
        with subtests.test(specs=specs, expected=expected):
            tmp_path = tmp_path_factory.mktemp("case")
            found = AbacAuthorization.lint([policy_file(tmp_path, *specs)])
            assert [(one.rule, one.level.value, one.problem.place.line) for one in found] == expected


def test_a_file_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    (finding,) = AbacAuthorization.lint([tmp_path / "gone.jsonl"])
    assert finding.rule == "invalid"
