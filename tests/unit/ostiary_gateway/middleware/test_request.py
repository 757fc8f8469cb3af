"""What a request asks for, and which paths need no token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.middleware.request import BackendQuestions, BackendRequest, PathsWithoutToken, path_of
from ostiary_gateway.providers.http import HttpAttributes
from ostiary_gateway.providers.kubernetes.attributes import KubernetesAttributes
from ostiary_gateway.proxy.target import AmbiguousRequest


def test_the_upstream_is_part_of_the_question() -> None:
    """Decision 0028."""
    questions = BackendQuestions(HttpAttributes(templates=["/v1/{namespace}/{resource}"]), "shop")
    (info,) = questions.requirements_of(BackendRequest("GET", b"/v1/team/carts?labelSelector=a%3Db"))
    assert (info.upstream, info.verb, info.resource, info.namespace) == ("shop", "list", "carts", "team")


def test_a_mapper_may_require_more() -> None:
    questions = BackendQuestions(KubernetesAttributes(), "")
    required = questions.requirements_of(
        BackendRequest("GET", b"/api/v1/namespaces/a/pods/b/exec", upgrade="websocket")
    )
    assert [info.verb for info in required] == ["get", "create"]
    assert questions.is_long_running(required[0])


def test_a_path_with_two_readings_is_refused(subtests: pytest.Subtests) -> None:
    """P1, P2."""
    for target in [b"/a//b", b"/a/../b", b"/a;b", b"/a%5Cb", b"/a%2fb", b"a", b"", b"/\xe4", b"/a%00"]:
        with subtests.test(target=target), pytest.raises(AmbiguousRequest):
            path_of(target)


class TestPathsWithoutToken:
    PATHS = PathsWithoutToken(["/healthz", "/static/*", "/docs*"])

    @pytest.mark.parametrize("target", [b"/healthz", b"/healthz?x=1", b"/static/a.css", b"/docs", b"/docs/x"])
    def test_named_paths_are_open(self, target: bytes) -> None:
        assert self.PATHS.include(target)

    def test_no_other_path_is(self, subtests: pytest.Subtests) -> None:
        for target in [
            b"/",
            b"/healthz/",
            b"/healthzz",
            b"/static",
            b"/static/../v1",
            b"/static/%2e%2e/v1",
            b"/static//v1",
        ]:
            with subtests.test(target=target):
                assert not self.PATHS.include(target)

    @given(st.binary())
    def test_whatever_is_open_has_one_reading(self, rest: bytes) -> None:
        target = b"/static/" + rest
        if self.PATHS.include(target):
            path, _ = path_of(target)
            assert path.startswith("/static/")

    def test_without_any_nothing_is(self) -> None:
        assert not PathsWithoutToken(()).include(b"/")
