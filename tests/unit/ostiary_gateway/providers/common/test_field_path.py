"""Paths to fields: what they lead to, and what is no path."""

from __future__ import annotations

from typing import Any

import pytest

from ostiary_gateway.providers.common.field_path import FieldPath

POD: dict[str, Any] = {
    "spec": {
        "replicas": 3,
        "containers": [
            {"resources": {"requests": {"cpu": "1", "example.com/gpu": "2"}}},
            {"resources": {}},
            {"resources": {"requests": {"cpu": "500m"}}},
        ],
        "volumes": None,
    }
}


def test_a_path_leads_to_every_value_that_is_there(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[object]]] = [
        ("spec.replicas", [3]),
        ("spec.containers[*].resources.requests.cpu", ["1", "500m"]),
        ('spec.containers[*].resources.requests["example.com/gpu"]', ["2"]),
        ("spec.containers[*].resources.requests['example.com/gpu']", ["2"]),
        ("spec.missing.deeper", []),
        ("spec.volumes[*].size", []),
    ]
    for path, values in cases:
        with subtests.test(path=path, values=values):
            assert list(FieldPath.parse(path).values(POD)) == values


def test_what_is_no_path_is_refused(subtests: pytest.Subtests) -> None:
    for text in [
        "",
        ".",
        ".spec",
        "spec.",
        "spec..x",
        "[*]",
        "spec[0]",
        "spec[*",
        "spec x",
        'spec["a]',
        "spec[*]x",
        "a.b c",
    ]:
        with subtests.test(text=text), pytest.raises(ValueError, match=r"position|begin"):
            FieldPath.parse(text)


@pytest.mark.parametrize("path", ["spec.containers.name", "spec.replicas.x", "spec[*].x", "spec.replicas[*]"])
def test_something_else_at_a_place_is_an_error_and_not_zero(path: str) -> None:
    with pytest.raises(ValueError, match="it is not"):
        list(FieldPath.parse(path).values(POD))
