"""The settings of tracing: their defaults, and every mistake with its place and without what is secret."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.config import loads
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.tracing import Parents, Tracing

ENDPOINT = "https://collector.example.com:4318/v1/traces"
API_KEY = "key-of-the-collector"


def configured(folder: Path, **tracing: Any) -> GatewayConfig:
    (folder / "headers").write_text(f"X-Api-Key: {API_KEY}\n")
    (folder / "wrong-headers").write_text(f"X-Api-Key {API_KEY}\n")
    text = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "all", "type": "allow_all"}]},
        **({"tracing": tracing} if tracing else {}),
    }
    return loads(json.dumps(text), directory=folder)


def test_nothing_is_traced_unless_it_is_written(tmp_path: Path) -> None:
    assert configured(tmp_path).tracing is None


def test_an_endpoint_is_all_that_must_be_written(tmp_path: Path) -> None:
    tracing = configured(tmp_path, endpoint=ENDPOINT).tracing
    assert tracing == Tracing(ENDPOINT)
    assert (tracing.ratio, tracing.parents, tracing.user_names) == (1.0, Parents.TRUSTED_PROXIES, False)
    assert (tracing.wait, tracing.timeout) == (timedelta(seconds=5), timedelta(seconds=10))


def test_what_is_right_is_taken(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    for endpoint in ["http://127.0.0.1:4318/v1/traces", "http://localhost/", "https://[::1]:1/x?y=1"]:
        for ratio in [0, 0.25, 1]:
            with subtests.test(endpoint=endpoint, ratio=ratio):
                tmp_path = tmp_path_factory.mktemp("case")
                more = {"ratio": ratio, "headersFile": "headers", "parents": "Always", "batch": 9, "buffer": 9}
                tracing = configured(tmp_path, endpoint=endpoint, **more).tracing
                assert tracing is not None
                assert (tracing.endpoint, tracing.ratio, tracing.parents) == (endpoint, ratio, Parents.ALWAYS)


def test_each_mistake_is_told_with_its_place(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"endpoint": "http://collector.example.com/v1/traces"}, "endpoint", "spans would cross the network in plain"),
        ({"endpoint": "collector"}, "endpoint", "it is not a URL"),
        ({"endpoint": "https://"}, "endpoint", "it is not a URL"),
        ({"ratio": 1.01}, "ratio", "it must be a number from 0 to 1"),
        ({"ratio": -0.01}, "ratio", "it must be a number from 0 to 1"),
        ({"ratio": "1"}, "ratio", ""),
        ({"batch": 10, "buffer": 9}, "batch", "a batch cannot be larger than the buffer"),
        ({"headersFile": "wrong-headers"}, "headersFile", "line 1 is not a header"),
        ({"headersFile": "missing"}, "headersFile", "No such file"),
        ({"parents": "Everybody"}, "parents", "unknown value"),
        ({"tls": {"pins": ["0" * 64]}}, "tls", "pins"),
        ({"tls": {"ca": "headers"}}, "tls.ca", ""),
    ]
    for change, place, mistake in cases:
        with subtests.test(change=change, place=place, mistake=mistake):
            tmp_path = tmp_path_factory.mktemp("case")
            with pytest.raises(ConfigurationError) as caught:
                configured(tmp_path, **{"endpoint": ENDPOINT, **change})
            text = str(caught.value)
            assert f"tracing.{place}" in text
            assert mistake in text
            assert API_KEY not in text


def test_without_the_extra_the_start_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigurationError, match="not installed") as caught:
        configured(tmp_path, endpoint=ENDPOINT)
    assert "pip install 'ostiary-gateway[otel]'" in str(caught.value)
