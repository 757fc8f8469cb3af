"""The conformance suite for attribute mappers (`ostiary_gateway.interfaces.attributes`):

    class TestMyMapper(AttributesMapperContract):
        @pytest.fixture
        def mapper(self):
            return MyMapper()

Requires pytest. The requests are of all kinds. A mapper may reject any of them with `ValueError`, and must not fail
otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ostiary.model import RequestInfo
from ostiary_gateway.capabilities import ability, has_trait
from ostiary_gateway.interfaces.attributes import (
    AttributesMapper,
    ReadsCapabilities,
    ReadsKubernetesPaths,
    RequestContent,
    RequestLine,
    RequiresMore,
    SplitsNames,
)
from ostiary_gateway.testing.capabilities import check_members

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW")
PATHS = (
    "/",
    "*",
    "/healthz",
    "/healthz/",
    "/api",
    "/api/v1",
    "/api/v1/watch",
    "/api/v1/pods",
    "/api/v1/namespaces/dev/pods/web-0",
    "/api/v1/namespaces/dev/pods/web-1",
    "/api/v1/namespaces/dev/pods/web-0/exec",
    "/api/v1/namespaces/dev/services/https:web:443/proxy/a/b",
    "/apis/apps/v1/deployments",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node",
    "/a/b/c/d/e/f/g/h",
    "/with%20space/%C3%A9",
)
QUERIES = (
    "",
    "watch=true",
    "watch=0&watch=1",
    "watch",
    "fieldSelector=metadata.name%3Dweb-0",
    "labelSelector=app+in+(a,b)",
    "labelSelector=%ff",
    "limit=x&&=&a=b=c",
    "limit=5&resourceVersion=7",
    "limit=6&resourceVersion=8",
)
UPGRADES = ("", "websocket", "spdy/3.1")
# The characters of a name that may replace another.
_NAME = re.compile(r"[a-z0-9.\-]*")
_NUMBER = re.compile(r"(?<==)[0-9]{1,18}(?![^&])")


def lines() -> Iterator[RequestLine]:
    for method in METHODS:
        for path in PATHS:
            for query in QUERIES:
                yield RequestLine(method, path, query, UPGRADES[len(path) % len(UPGRADES)])


class AttributesMapperContract:
    """Inherit from this class and provide the fixture `mapper`."""

    def test_its_members_are_spelt_and_shaped_as_the_contract_says(self, mapper: AttributesMapper) -> None:
        check_members("attributes", mapper)

    def test_a_request_is_understood_or_refused_with_value_error(self, mapper: AttributesMapper) -> None:
        assert all(isinstance(info, RequestInfo) for _, info in _understood_lines(mapper)), (
            "what is not refused has a meaning"
        )

    def test_some_request_is_understood(self, mapper: AttributesMapper) -> None:
        assert next(_understood_lines(mapper), None) is not None

    def test_the_same_request_always_means_the_same(self, mapper: AttributesMapper) -> None:
        for line, info in _understood_lines(mapper):
            again = mapper.request_info(line)
            assert again == info
            assert hash(again) == hash(info), "decisions are remembered by what is asked"

    def test_the_method_is_kept_as_it_came(self, mapper: AttributesMapper) -> None:
        assert all(info.method == line.method for line, info in _understood_lines(mapper))

    def test_what_is_no_resource_has_a_path_and_a_verb_and_nothing_else(self, mapper: AttributesMapper) -> None:
        for _, info in _understood_lines(mapper):
            if not info.is_resource:
                expected = RequestInfo(
                    *(info.verb, info.method, info.path),
                    modifier=info.modifier,
                    capabilities=info.capabilities,
                    of_kubernetes=info.of_kubernetes,
                )
                assert info == expected
                assert info.verb
                assert info.path

    def test_what_is_a_resource_names_it(self, mapper: AttributesMapper) -> None:
        assert all(info.resource for _, info in _understood_lines(mapper) if info.is_resource)

    def test_a_request_is_said_to_be_of_kubernetes_by_a_mapper_that_reads_it_so(self, mapper: AttributesMapper) -> None:
        reads_kubernetes_paths = has_trait(mapper, ReadsKubernetesPaths)
        assert all(info.of_kubernetes is reads_kubernetes_paths for _, info in _understood_lines(mapper))

    def test_it_tells_whether_the_answer_may_take_long(self, mapper: AttributesMapper) -> None:
        for _, info in _understood_lines(mapper):
            assert isinstance(mapper.long_running(info), bool)

    def test_what_else_is_required_is_about_the_same_object(self, mapper: AttributesMapper) -> None:
        requiring = ability(mapper, RequiresMore)
        for _, info in _understood_lines(mapper):
            more = None if requiring is None else requiring.also_required(info)
            assert more is None or (more != info and more.name == info.name and more.namespace == info.namespace)

    def test_requests_that_differ_in_a_name_ask_for_the_same(self, mapper: AttributesMapper) -> None:
        alike: dict[tuple[object, ...], RequestInfo] = {}
        for line, (before, name, after) in _split_lines(mapper):
            info = mapper.request_info(line)
            assert line.path == before + name + after.partition("?")[0]
            assert _NAME.fullmatch(name)
            nameless = replace(info, name="", path="") if name else info
            key = (line.method, before, after, bool(name))
            assert alike.setdefault(key, nameless) == nameless
            assert (line.method, before, after, not name) not in alike, "one object is something else than all of them"

    def test_another_name_in_its_place_is_split_in_the_same_way(self, mapper: AttributesMapper) -> None:
        for line, (before, name, after) in _split_lines(mapper):
            for other in ("a", "0", "status", "watch", "log", "namespaces", "a.b--c.9", "x" * 253) if name else ():
                path = before + other + line.path.removeprefix(before + name)
                assert _split(mapper, path, line.query) == (before, other, after)

    def test_a_number_that_does_not_matter_matters_for_no_value(self, mapper: AttributesMapper) -> None:
        for line, parts in _split_lines(mapper):
            same = {
                _split(mapper, line.path, _NUMBER.sub(other, line.query)) == parts for other in ("9", "08", "7" * 18)
            }
            assert len(same) == 1

    def test_what_an_object_asks_for_is_known_or_in_doubt(self, mapper: AttributesMapper) -> None:
        reader = ability(mapper, ReadsCapabilities)
        for _, info in _understood_lines(mapper):
            if reader is None or not reader.in_body_of(info):
                continue
            assert reader.reads_bodies
            every = reader.in_doubt(info, "because")
            assert every.names
            assert every.doubt == "because"
            for body in (b"", b"{", b"\xff", b"[]", b"null"):
                assert reader.capabilities_of(info, RequestContent((), (), body)).names == every.names


def _split_lines(mapper: AttributesMapper) -> Iterator[tuple[RequestLine, tuple[str, str, str]]]:
    for line, _ in _understood_lines(mapper):
        parts = None if line.upgrade else _split(mapper, line.path, line.query)
        if parts is not None:
            yield line, parts


def _split(mapper: AttributesMapper, path: str, query: str) -> tuple[str, str, str] | None:
    splitting = ability(mapper, SplitsNames)
    return None if splitting is None else splitting.split_name(path, query)


def _understood_lines(mapper: AttributesMapper) -> Iterator[tuple[RequestLine, RequestInfo]]:
    for line in lines():
        try:
            info = mapper.request_info(line)
        except ValueError:
            continue
        yield line, info
