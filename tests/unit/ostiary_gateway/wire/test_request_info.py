"""What a request asks of a Kubernetes API, case by case."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import RequestInfo, Requirement
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.wire.request_info import first_values, long_running, request_info


def asked(method: str, target: str) -> RequestInfo:
    path, _, query = target.partition("?")
    return request_info(RequestLine(method, path, query))


# method, target, verb, group, version, namespace, resource, subresource, name
RESOURCES = [
    # namespaces are in themselves
    ("GET", "/api/v1/namespaces", "list", "", "v1", "", "namespaces", "", ""),
    ("GET", "/api/v1/namespaces/other", "get", "", "v1", "other", "namespaces", "", "other"),
    ("PUT", "/api/v1/namespaces/other/finalize", "update", "", "v1", "other", "namespaces", "finalize", "other"),
    ("PATCH", "/api/v1/namespaces/other/status", "patch", "", "v1", "other", "namespaces", "status", "other"),
    ("DELETE", "/api/v1/namespaces/other", "delete", "", "v1", "other", "namespaces", "", "other"),
    ("POST", "/api/v1/namespaces", "create", "", "v1", "", "namespaces", "", ""),
    # what lies in them
    ("GET", "/api/v1/namespaces/other/pods", "list", "", "v1", "other", "pods", "", ""),
    ("GET", "/api/v1/namespaces/other/pods/", "list", "", "v1", "other", "pods", "", ""),
    ("GET", "/api/v1/namespaces/other/pods/web", "get", "", "v1", "other", "pods", "", "web"),
    ("HEAD", "/api/v1/namespaces/other/pods/web", "get", "", "v1", "other", "pods", "", "web"),
    ("HEAD", "/api/v1/namespaces/other/pods", "list", "", "v1", "other", "pods", "", ""),
    ("POST", "/api/v1/namespaces/other/pods", "create", "", "v1", "other", "pods", "", ""),
    ("PUT", "/api/v1/namespaces/other/pods/web", "update", "", "v1", "other", "pods", "", "web"),
    ("PATCH", "/api/v1/namespaces/other/pods/web", "patch", "", "v1", "other", "pods", "", "web"),
    ("DELETE", "/api/v1/namespaces/other/pods/web", "delete", "", "v1", "other", "pods", "", "web"),
    ("DELETE", "/api/v1/namespaces/other/pods", "deletecollection", "", "v1", "other", "pods", "", ""),
    ("DELETE", "/api/v1/nodes", "deletecollection", "", "v1", "", "nodes", "", ""),
    # across namespaces
    ("GET", "/api/v1/pods", "list", "", "v1", "", "pods", "", ""),
    ("GET", "/api/v1/nodes/n1", "get", "", "v1", "", "nodes", "", "n1"),
    # subresources, and what follows them
    ("GET", "/api/v1/namespaces/other/pods/web/log", "get", "", "v1", "other", "pods", "log", "web"),
    ("PUT", "/api/v1/namespaces/other/pods/web/status", "update", "", "v1", "other", "pods", "status", "web"),
    ("POST", "/api/v1/namespaces/other/pods/web/exec", "create", "", "v1", "other", "pods", "exec", "web"),
    (
        "GET",
        "/api/v1/namespaces/x/services/https:s:443/proxy/a",
        "get",
        "",
        "v1",
        "x",
        "services",
        "proxy",
        "https:s:443",
    ),
    ("POST", "/api/v1/namespaces/x/services/s/proxy/pods/p", "create", "", "v1", "x", "services", "proxy", "s"),
    ("GET", "/api/v1/nodes/n1/proxy/metrics", "get", "", "v1", "", "nodes", "proxy", "n1"),
    # verbs in the path
    ("GET", "/api/v1/watch/pods", "watch", "", "v1", "", "pods", "", ""),
    ("GET", "/api/v1/watch/namespaces/other/pods", "watch", "", "v1", "other", "pods", "", ""),
    ("GET", "/api/v1/watch/namespaces/other/pods/web", "watch", "", "v1", "other", "pods", "", "web"),
    ("GET", "/api/v1/watch/namespaces/other", "watch", "", "v1", "other", "namespaces", "", "other"),
    ("POST", "/api/v1/watch/pods", "watch", "", "v1", "", "pods", "", ""),
    ("GET", "/api/v1/proxy/namespaces/other/pods/web", "proxy", "", "v1", "other", "pods", "", "web"),
    ("GET", "/api/v1/proxy/namespaces/other/pods/web/status", "proxy", "", "v1", "other", "pods", "", "web"),
    ("DELETE", "/api/v1/proxy/nodes/n1/a/b", "proxy", "", "v1", "", "nodes", "", "n1"),
    # groups
    ("GET", "/apis/apps/v1/deployments", "list", "apps", "v1", "", "deployments", "", ""),
    ("POST", "/apis/apps/v1/namespaces/x/deployments", "create", "apps", "v1", "x", "deployments", "", ""),
    ("PUT", "/apis/apps/v1/namespaces/x/deployments/d/scale", "update", "apps", "v1", "x", "deployments", "scale", "d"),
    ("GET", "/apis/apps/v1/watch/deployments", "watch", "apps", "v1", "", "deployments", "", ""),
    ("GET", "/apis/x.example/v2/namespaces", "list", "x.example", "v2", "", "namespaces", "", ""),
    # names are decoded once
    ("GET", "/api/v1/namespaces/x/pods/a%20b", "get", "", "v1", "x", "pods", "", "a b"),
    (
        "GET",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
        "get",
        "rbac.authorization.k8s.io",
        "v1",
        "",
        "clusterroles",
        "",
        "system:node",
    ),
    # other methods mean nothing to Kubernetes
    ("OPTIONS", "/api/v1/pods", "", "", "v1", "", "pods", "", ""),
    ("get", "/api/v1/pods", "", "", "v1", "", "pods", "", ""),
]


def test_a_request_for_a_resource(subtests: pytest.Subtests) -> None:
    """S12, S43, S46."""
    for row in RESOURCES:
        with subtests.test(f"{row[0]} {row[1]}"):
            method, target, verb, group, version, namespace, resource, subresource, name = row
            info = asked(method, target)
            assert info.is_resource
            assert (info.verb, info.api_group, info.api_version) == (verb, group, version)
            assert (info.namespace, info.resource, info.subresource, info.name) == (
                namespace,
                resource,
                subresource,
                name,
            )
            assert info.method == method


PATHS = ["/", "/api", "/api/", "/api/v1", "/api/v1/", "/apis", "/apis/apps", "/apis/apps/v1", "/apis/version/resource"]
PATHS += ["/version", "/healthz/ping", "/metrics", "/openapi/v3/apis/apps/v1", "/API/v1/pods", "/foo/v1/pods/web", "*"]


def test_every_other_path_is_a_path(subtests: pytest.Subtests) -> None:
    """S46: the method is always there, and the verb is the same in lower case."""
    for path in PATHS:
        for method in ["GET", "POST", "OPTIONS", "BREW"]:
            with subtests.test(path=path, method=method):
                assert asked(method, f"{path}?watch=1") == RequestInfo(method.lower(), method, path, of_kubernetes=True)


def test_a_path_that_is_no_resource_is_decoded_too() -> None:
    assert asked("GET", "/a%20b/").path == "/a b/"


@pytest.mark.parametrize("path", ["/api/v1/watch", "/api/v1/proxy", "/apis/apps/v1/watch/"])
def test_a_verb_in_the_path_without_a_resource_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="no resource"):
        asked("GET", path)


def test_a_watch_is_one_if_kubernetes_takes_it_for_one(subtests: pytest.Subtests) -> None:
    """S49, P4."""
    cases = [
        ("", "list"),
        ("watch", "watch"),
        ("watch=", "watch"),
        ("watch=1", "watch"),
        ("watch=true", "watch"),
        ("watch=yes", "watch"),
        ("watch=0", "list"),
        ("watch=false", "list"),
        ("watch=FALSE", "list"),
        ("Watch=true", "list"),
        ("x=watch", "list"),
        # the first of several counts
        ("watch=0&watch=1", "list"),
        ("watch=1&watch=0", "watch"),
        # names are decoded like values
        ("w%61tch=1", "watch"),
        ("watch=%66alse", "list"),
        ("watch=+", "watch"),
        # pairs that cannot be decoded are none
        ("watch=%zz", "list"),
        ("watch=%zz&watch=1", "watch"),
        ("watch=1;x", "list"),
        ("a&&=&watch=1", "watch"),
        # options that cannot be decoded leave the watch
        ("watch=1&limit=x", "watch"),
        ("watch=true&labelSelector=a+b", "watch"),
        ("watch=0&fieldSelector=nonsense", "list"),
        ("limit=x", "list"),
    ]
    for query, verb in cases:
        with subtests.test(query=query, verb=verb):
            info = asked("GET", f"/api/v1/namespaces/x/pods?{query}")
            assert info.verb == verb
            assert info.modifier == ("Watch" if verb == "watch" else "")


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_watch_says_nothing_where_an_object_is_named(method: str) -> None:
    assert asked(method, "/api/v1/namespaces/x/pods/web?watch=1").modifier == ""
    assert asked(method, "/api/v1/namespaces/x/pods/web?watch=1").verb != "watch"


def test_the_modifier_tells_watches_and_proxies(subtests: pytest.Subtests) -> None:
    """S46, S49."""
    cases = [
        ("/api/v1/pods?watch=1", "Watch"),
        ("/api/v1/watch/pods", "Watch"),
        ("/api/v1/proxy/nodes/n", "Proxy"),
        ("/api/v1/nodes/n/proxy/x", "Proxy"),
        ("/api/v1/nodes/n", ""),
        ("/metrics", ""),
    ]
    for target, modifier in cases:
        with subtests.test(target=target, modifier=modifier):
            info = asked("GET", target)
            assert (info.method, info.modifier) == ("GET", modifier)


def test_the_documents_namespace_is_empty_for_a_namespace() -> None:
    """S47, S48: and it is set for a list within one, where no name is."""
    assert asked("GET", "/api/v1/namespaces/x").object_namespace == ""
    assert asked("GET", "/api/v1/nodes/n").object_namespace == ""
    listed = asked("GET", "/api/v1/namespaces/x/pods")
    assert (listed.object_namespace, listed.name) == ("x", "")


def test_a_selector_that_leaves_one_object_names_it(subtests: pytest.Subtests) -> None:
    cases = [
        ("fieldSelector=metadata.name%3Dweb", "web"),
        ("fieldSelector=metadata.name%3D%3Dweb", "web"),
        ("fieldSelector=metadata.name=web&watch=1", "web"),
        ("fieldSelector=a%3Db,metadata.name%3Dweb", "web"),
        ("fieldSelector=metadata.name!%3Dweb", ""),
        ("fieldSelector=metadata.namespace%3Dweb", ""),
        ("fieldSelector=metadata.name%3Da/b", ""),
        ("fieldSelector=metadata.name%3D..", ""),
        ("fieldSelector=metadata.name%3D.", ""),
        ("fieldSelector=metadata.name%3Da%2525", ""),
        ("fieldSelector=metadata.name%3D%ff", ""),
        ("fieldSelector=metadata.name%3D", ""),
        ("fieldSelector=x%3D1&fieldSelector=metadata.name%3Dweb", ""),
        ("fieldSelector=metadata.name%3Dweb&fieldSelector=x%3D1", "web"),
        # options that cannot be decoded give no name
        ("fieldSelector=metadata.name%3Dweb&limit=x", ""),
        ("fieldSelector=metadata.name%3Dweb&limit=", ""),
        ("fieldSelector=metadata.name%3Dweb&limit=99999999999999999999", ""),
        ("fieldSelector=metadata.name%3Dweb&timeoutSeconds=1s", ""),
        ("fieldSelector=metadata.name%3Dweb&limit=500", "web"),
        ("fieldSelector=metadata.name%3Dweb&labelSelector=!!", ""),
        ("fieldSelector=metadata.name%3Dweb,", "web"),
        ("fieldSelector=metadata.name%3Dweb,x", ""),
    ]
    for query, name in cases:
        with subtests.test(query=query, name=name):
            assert asked("GET", f"/api/v1/namespaces/x/pods?{query}").name == name
            deleted = asked("DELETE", f"/api/v1/namespaces/x/pods?{query}")
            assert (deleted.verb, deleted.name) == ("deletecollection", "")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_selectors_narrow_lists_watches_and_mass_deletions(method: str) -> None:
    query = urlencode({"fieldSelector": "spec.nodeName=n1", "labelSelector": "app in (b,a),!old", "limit": "x"})
    info = asked(method, f"/api/v1/pods?{query}&fieldSelector=b%3Dc")
    assert info.field_selector == (Requirement("spec.nodeName", "In", ("n1",)),)
    assert info.label_selector == (Requirement("app", "In", ("a", "b")), Requirement("old", "DoesNotExist"))


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/api/v1/pods/p"),
        ("POST", "/api/v1/pods"),
        ("GET", "/api/v1/watch/pods"),
        ("GET", "/api/v1/watch/pods/p"),
        ("DELETE", "/api/v1/pods/p"),
    ],
)
def test_selectors_count_nowhere_else(method: str, target: str) -> None:
    info = asked(method, f"{target}?labelSelector=a%3Db&fieldSelector=metadata.name%3Dp2")
    assert info.label_selector is None
    assert info.field_selector is None
    assert info.name != "p2"


@pytest.mark.parametrize(
    "query", ["", "labelSelector=", "labelSelector=a+b", "labelSelector=%ff", "labelSelector=a%3E5"]
)
def test_a_selector_that_says_nothing_or_cannot_be_read_narrows_nothing(query: str) -> None:
    assert asked("GET", f"/api/v1/pods?{query}").label_selector is None


def test_long_running_is_what_kubernetes_sets_no_time_limit_for(subtests: pytest.Subtests) -> None:
    cases = [
        ("GET", "/api/v1/pods?watch=1", True),
        ("GET", "/api/v1/watch/pods", True),
        ("GET", "/api/v1/proxy/nodes/n", True),
        ("GET", "/api/v1/nodes/n/proxy/x", True),
        ("GET", "/api/v1/namespaces/x/pods/p/log", True),
        ("POST", "/api/v1/namespaces/x/pods/p/exec", True),
        ("POST", "/api/v1/namespaces/x/pods/p/attach", True),
        ("POST", "/api/v1/namespaces/x/pods/p/portforward", True),
        ("GET", "/debug/pprof/profile", True),
        ("GET", "/debug/pprof", False),
        ("GET", "/api/v1/pods", False),
        ("GET", "/api/v1/namespaces/x/pods/p/status", False),
        ("GET", "/exec", False),
    ]
    for method, target, expected in cases:
        with subtests.test(method=method, target=target, expected=expected):
            assert long_running(asked(method, target)) is expected


@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), max_size=6))
@settings(max_examples=100, deadline=None)
def test_the_query_that_a_client_encodes_is_read_back(pairs: list[tuple[str, str]]) -> None:
    """P4."""
    expected: dict[str, Any] = {}
    for name, value in pairs:
        expected.setdefault(name, value)
    assert first_values(urlencode(pairs)) == expected
