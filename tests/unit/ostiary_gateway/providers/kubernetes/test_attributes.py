"""The mapper for Kubernetes: what it adds to the reading of paths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ostiary_gateway import catalog
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.providers.kubernetes.attributes import KubernetesAttributes

MAPPER = KubernetesAttributes()


def test_a_terminal_opened_with_get_needs_create_too(subtests: pytest.Subtests) -> None:
    for subresource in ["exec", "attach", "portforward"]:
        for upgrade in ["websocket", "spdy/3.1", ""]:
            with subtests.test(subresource=subresource, upgrade=upgrade):
                path = f"/api/v1/namespaces/x/pods/p/{subresource}"
                info = MAPPER.request_info(RequestLine("GET", path, "command=sh", upgrade))
                assert info.verb == "get"
                assert MAPPER.also_required(info) == replace(info, verb="create")
                assert (
                    MAPPER.also_required(MAPPER.request_info(RequestLine("POST", path, "command=sh", upgrade))) is None
                )


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/x/pods/p",
        "/api/v1/namespaces/x/pods/p/log",
        "/api/v1/namespaces/x/services/p/exec",
        "/apis/metrics.k8s.io/v1/namespaces/x/pods/p/exec",
        "/exec",
    ],
)
def test_nothing_else_needs_more(path: str) -> None:
    assert MAPPER.also_required(MAPPER.request_info(RequestLine("GET", path, upgrade="websocket"))) is None


def test_it_is_found_in_the_catalog() -> None:
    """S49."""
    assert catalog.load("attributes", "kubernetes") is KubernetesAttributes
