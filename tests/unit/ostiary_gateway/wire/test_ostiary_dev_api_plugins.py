"""What somebody sends to register an API plugin is read, or refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.wire.ostiary_dev import PluginRequest, decode_plugin_request

SPEC: dict[str, Any] = {
    "upstream": "cluster",
    "group": "builds.example.com",
    "versions": ["v1"],
    "server": "https://127.0.0.1:1",
}


def test_all_fields_are_read() -> None:
    more = {"ca": "PEM", "pins": ["ab"], "serverName": "builds", "health": "/readyz"}
    body = {"kind": "APIPlugin", "metadata": {"name": "cluster.builds.example.com"}, "spec": {**SPEC, **more}}
    assert decode_plugin_request(body) == PluginRequest(
        "cluster.builds.example.com",
        "cluster",
        "builds.example.com",
        ("v1",),
        "https://127.0.0.1:1",
        "PEM",
        ("ab",),
        "builds",
        "/readyz",
    )


def test_what_is_none_is_refused_with_its_reason(subtests: pytest.Subtests) -> None:
    cases: list[tuple[object, str]] = [
        (None, "spec.upstream is missing"),
        ([], "not a JSON object"),
        ({"kind": "Pod"}, "kind"),
        ({"spec": {**SPEC, "insecure": True}}, "unknown field"),
        ({"spec": {**SPEC, "group": 7}}, "not a string"),
        ({"spec": {**SPEC, "server": "x" * 2000}}, "longer"),
        ({"spec": {**SPEC, "versions": "v1"}}, "not a list"),
        ({"spec": {**SPEC, "versions": ["v1"] * 100}}, "not a list"),
        ({"spec": {**SPEC, "pins": [7]}}, "not a list"),
        ({"spec": {**SPEC, "ca": "x" * 100_000}}, "not PEM"),
        ({"spec": {**SPEC, "ca": "é"}}, "not PEM"),
        ({"spec": {**SPEC, "ca": 7}}, "not PEM"),
    ]
    for body, reason in cases:
        with subtests.test(body=body, reason=reason), pytest.raises(ValueError, match=reason):
            decode_plugin_request(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SPEC, "spec", "kind", "ca"]), inner),
    max_leaves=8,
)


@given(JSON)
def test_anything_is_read_or_refused(value: object) -> None:
    try:
        request = decode_plugin_request(value)
    except ValueError:
        return
    assert request.upstream
    assert request.server
