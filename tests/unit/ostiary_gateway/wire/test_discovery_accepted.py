from __future__ import annotations

import pytest

from ostiary_gateway.wire.discovery import accepted_json

V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def test_what_is_json_is_asked_for_as_it_stands(subtests: pytest.Subtests) -> None:
    cases = [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        (f"{V2},application/json", f"{V2},application/json"),
        (f"application/vnd.kubernetes.protobuf, {V2}", V2),
        ("application/vnd.kubernetes.protobuf,*/*", "application/json"),
        ("application/vnd.kubernetes.protobuf", ""),
        ("application/com.github.proto-openapi.spec.v2.v1.0+protobuf", ""),
        ("text/html;q=0.9, application/*;q=0.8", "application/json"),
    ]
    for accept, expected in cases:
        with subtests.test(accept=accept, expected=expected):
            assert accepted_json(accept) == expected
