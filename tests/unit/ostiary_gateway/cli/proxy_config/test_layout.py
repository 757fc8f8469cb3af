"""Which upstream a proxy must serve at which host: as the gateway routes."""

from __future__ import annotations

import re
from itertools import product
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.cli.proxy_config.layout import ANY_HOST, Backend, Layout
from ostiary_gateway.proxy.routes import Routes

URL = urlsplit("http://127.0.0.1:1")
SETS = [
    [("a", ("x.example",), "/"), ("b", (), "/api")],
    [("a", ("x.example",), "/api"), ("b", (), "/")],
    [("a", ("x.example",), "/api/v1"), ("b", (), "/api"), ("c", ("y.example", "x.example"), "/other")],
    [("a", (), "/"), ("b", (), "/api")],
    [("a", ("x.example",), "/")],
]


@pytest.mark.parametrize("entries", SETS)
def test_the_longest_prefix_at_a_host_is_what_the_gateway_would_choose(entries: list[tuple[str, Any, str]]) -> None:
    backends = tuple(Backend(name, hosts, prefix, URL) for name, hosts, prefix in entries)
    settings = [SimpleNamespace(name=each.name, settings=each) for each in backends]
    routes = Routes(cast("Any", settings))
    layout = Layout(door=cast("Any", None), source="", listen_host="", listen_port=1, gateway=URL, backends=backends)
    sites = layout.sites()
    for host, path in product(("x.example", "y.example", "z.example"), ("/", "/api", "/api/v1", "/other/x", "/apis")):
        site = sites.get(host, sites.get(ANY_HOST, []))
        chosen = next((each.name for each in site if _is_below(path, each.prefix)), None)
        expected = routes.find(host, path)
        assert chosen == (None if expected is None else expected.name), (host, path)


def _is_below(path: str, prefix: str) -> bool:
    return prefix == "/" or path == prefix or path.startswith(prefix + "/")


segments = st.lists(st.text("aA.~-_1", min_size=1, max_size=3), min_size=1, max_size=3)


@given(prefix=segments, more=st.text("aA.~-_1/", max_size=4), cut=st.integers(0, 3))
def test_a_prefix_as_a_pattern_is_the_prefix_of_the_gateway(prefix: list[str], more: str, cut: int) -> None:
    backend = Backend("a", (), "/" + "/".join(prefix), URL)
    path = backend.prefix[: len(backend.prefix) - cut] + more
    assert bool(re.match(backend.prefix_pattern, path)) == _is_below(path, backend.prefix)
