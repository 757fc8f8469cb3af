"""Which part of a request line is the name of an object: it must be what the whole line is read as."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.providers.kubernetes.attributes import split_name
from ostiary_gateway.wire.request_info import long_running, request_info

PODS = "/api/v1/namespaces/shop/pods"
SEGMENTS = (
    "api",
    "apis",
    "v1",
    "apps",
    "namespaces",
    "shop",
    "pods",
    "web-1",
    "status",
    "finalize",
    "watch",
    "proxy",
    "log",
)
QUERIES = (
    *("", "resourceVersion=5", "limit=500&resourceVersion=5", "watch=1&limit=2", "limit=5&limit=x", "limit=x&limit=5"),
    *("fieldSelector=metadata.name%3Dweb-1&limit=7", "timeoutSeconds=9&labelSelector=a", "resourceVersion=5;limit=2"),
    *("fieldSelector=metadata.name%3Dweb-1&limit=&resourceVersion=5", "limit=&resourceVersion=5"),
)


@pytest.mark.parametrize(
    ("path", "query", "parts"),
    [
        (f"{PODS}/web-1", "", (f"{PODS}/", "web-1", "")),
        (f"{PODS}/web-1/log", "limit=5", (f"{PODS}/", "web-1", "/log?#limit=#")),
        ("/api/v1/nodes/n1.example", "", ("/api/v1/nodes/", "n1.example", "")),
        (
            "/apis/apps/v1/namespaces/shop/deployments/web",
            "",
            ("/apis/apps/v1/namespaces/shop/deployments/", "web", ""),
        ),
        (PODS, "limit=500&resourceVersion=71", (PODS, "", "?#limit=#&#resourceVersion=#")),
    ],
)
def test_usual_lines_are_split(path: str, query: str, parts: tuple[str, str, str]) -> None:
    assert split_name(path, query) == parts


def test_what_could_be_something_else_is_not_split(subtests: pytest.Subtests) -> None:
    cases = [
        *(
            "/",
            "/healthz",
            "/api/v1",
            "/api/v1/namespaces",
            "/api/v1/namespaces/shop",
            "/api/v1/namespaces/shop/status",
        ),
        *("/api/v1/watch/pods/web-1", "/api/v1/proxy/pods/web-1", f"{PODS}/", f"{PODS}/web-1/", f"{PODS}/Web", PODS),
        *(
            f"{PODS}/web%2D1",
            f"{PODS}/%61",
            f"{PODS}/a_b",
            f"{PODS}/ost_{'A' * 40}",
            f"{PODS}/web-1/proxy/x",
            f"{PODS}/x;y",
        ),
        *("/api/v1/namespaces/sho%70/pods/web-1", f"{PODS}/-web", f"{PODS}/web-", f"{PODS}/{'x' * 254}", f"{PODS}/é"),
    ]
    for path in cases:
        with subtests.test(path=path):
            assert split_name(path, "") is None


def test_one_object_and_all_objects_have_nothing_in_common() -> None:
    one, every = split_name(f"{PODS}/web-1", "limit=5"), split_name(PODS, "limit=5")
    assert one is not None
    assert every is not None
    assert (one[0], one[2]) != (every[0], every[2])


@pytest.mark.parametrize("path", [PODS, f"{PODS}/web-1"])
def test_a_number_and_none_have_nothing_in_common(path: str) -> None:
    """Without a number Kubernetes cannot read the options, and takes no name from the selector."""
    query = "fieldSelector=metadata.name%3Dweb-1&limit={}&resourceVersion=5"
    assert split_name(path, query.format("")) != split_name(path, query.format("7"))


_paths = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=9).map(lambda parts: "/" + "/".join(parts))
_beginning = st.sampled_from((PODS, "/api/v1", "/api/v1/nodes", "/apis/apps/v1/namespaces/shop/deployments", ""))
_names = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,8}[a-z0-9])?", fullmatch=True)


@given(
    st.sampled_from(("GET", "DELETE", "PATCH", "HEAD")),
    _beginning,
    _paths,
    st.sampled_from(QUERIES),
    _names,
    st.integers(0, 10**18 - 1),
)
def test_lines_with_the_same_parts_ask_for_the_same(
    method: str, beginning: str, rest: str, query: str, name: str, number: int
) -> None:
    path = beginning + rest
    parts = split_name(path, query)
    if parts is None:
        return
    info = request_info(RequestLine(method, path, query))
    assert (info.name, info.path) == (parts[1], path) or not parts[1]
    # Another name in its place, and other numbers.
    other_path = f"{parts[0]}{name}{parts[2].partition('?')[0]}" if parts[1] else path
    other_query = re.sub(r"#(\w+=)#", rf"\g<1>{number}", parts[2].partition("?")[2])
    other_parts = split_name(other_path, other_query)
    if other_parts is None or (other_parts[0], other_parts[2]) != (parts[0], parts[2]):
        return
    other = request_info(RequestLine(method, other_path, other_query))
    expected_name = name if parts[1] else info.name
    assert other == replace(info, name=expected_name, path=other_path)
    assert long_running(other) == long_running(info)
