"""What an upstream makes of a path below its prefix."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ostiary_gateway.config import settings
from ostiary_gateway.interfaces.attributes import AttributesMapper
from ostiary_gateway.providers.http import HttpAttributes
from ostiary_gateway.providers.kubernetes.attributes import KubernetesAttributes
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.testing import FakeClock


def upstream(name: str, mapper: AttributesMapper | None = None, **options: Any) -> Upstream:
    attributes = settings.Provider(name, "a type", mapper or HttpAttributes())
    configured = settings.UpstreamConfig(name=name, server="http://127.0.0.1:1", attributes=attributes, **options)
    return Upstream(configured, asyncio.get_running_loop(), FakeClock())


@pytest.mark.parametrize(
    ("strip", "target", "forwarded"),
    [
        (False, b"/shop/cart?a=b", b"/shop/cart?a=b"),
        (True, b"/shop/cart?a=b", b"/cart?a=b"),
        (True, b"/shop", b"/"),
        (True, b"/shop?a=b", b"/?a=b"),
    ],
)
async def test_a_prefix_is_stripped_where_it_is_to_be(strip: bool, target: bytes, forwarded: bytes) -> None:
    assert upstream("shop", prefix="/shop", strip_prefix=strip).forwarded_target(target) == forwarded


async def test_decisions_are_made_on_the_stripped_path_of_a_cluster_only() -> None:
    cluster = upstream("cluster", KubernetesAttributes(), prefix="/c1", strip_prefix=True)
    assert cluster.mapped_path("/c1/api/v1/pods") == "/api/v1/pods"
    assert cluster.mapped_path("/c1") == "/"
    assert upstream("shop", prefix="/shop", strip_prefix=True).mapped_path("/shop/cart") == "/shop/cart"
