"""Which upstream serves a host and a path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ostiary_gateway.config import settings
from ostiary_gateway.interfaces.attributes import AttributesMapper
from ostiary_gateway.providers.http import HttpAttributes
from ostiary_gateway.proxy.routes import Routes
from ostiary_gateway.proxy.upstreams import Upstream
from ostiary_gateway.testing import FakeClock


def upstream(name: str, *, kind: str = "http", mapper: AttributesMapper | None = None, **options: Any) -> Upstream:
    attributes: settings.Provider[AttributesMapper] = settings.Provider(name, kind, mapper or HttpAttributes())
    configured = settings.UpstreamConfig(name=name, server="http://127.0.0.1:1", attributes=attributes, **options)
    return Upstream(configured, asyncio.get_running_loop(), FakeClock())


async def test_the_host_goes_before_the_prefix_and_the_longest_prefix_wins(subtests: pytest.Subtests) -> None:
    cases = [
        ("any.test", "/", "root"),
        ("any.test", "/shop", "shop"),
        ("any.test", "/shop/cart", "shop"),
        ("any.test", "/shopping", "root"),
        ("any.test", "/shop/admin/users", "admin"),
        ("named.test", "/shop", "named"),
        ("NAMED.test:8443", "/", "named"),
        ("[2001:db8::1]:8443", "/", "by address"),
        ("[2001:db8::1]", "/", "by address"),
        ("other.named.test", "/", "root"),
    ]
    for host, path, name in cases:
        with subtests.test(host=host, path=path, name=name):
            routes = Routes(
                [
                    upstream("root"),
                    upstream("shop", prefix="/shop"),
                    upstream("admin", prefix="/shop/admin"),
                    upstream("named", hosts=("named.test",)),
                    upstream("by address", hosts=("[2001:db8::1]",)),
                ]
            )
            serving = routes.find(host, path)
            assert serving is not None
            assert serving.name == name


async def test_a_path_below_no_prefix_has_no_upstream() -> None:
    assert Routes([upstream("shop", prefix="/shop")]).find("any.test", "/other") is None
