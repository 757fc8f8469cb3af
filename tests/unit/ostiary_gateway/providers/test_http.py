"""The mapper for other APIs: paths, modifiers and templates."""

from __future__ import annotations

import pytest

from ostiary.core import yaml as config
from ostiary.errors import ConfigurationError
from ostiary.model import RequestInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.providers.http import HttpAttributes, Modifier

SETTINGS = """
modifiers:
- {query: watch, modifier: Watch}
- {suffix: /restart, method: POST, modifier: Restart}
templates:
- /v1/{namespace}/{resource}
- /v1/{namespace}/{resource}/{name}
- /v1/{namespace}/{resource}/{name}/{subresource}
"""


def configured(text: str) -> HttpAttributes:
    reading = config.ConfigReader(config.parse(text))
    mapper = HttpAttributes.from_config(reading.root, Context())
    reading.finish("wrong", strict=True)
    return mapper


@pytest.fixture
def mapper() -> HttpAttributes:
    return configured(SETTINGS)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_without_settings_a_path_is_a_path(method: str) -> None:
    """S12, S46."""
    info = HttpAttributes().request_info(RequestLine(method, "/api/v1/pods/a%20b/", "watch=1"))
    assert info == RequestInfo(method.lower(), method, "/api/v1/pods/a b/")


@pytest.mark.parametrize(
    ("method", "target", "verb", "name", "subresource"),
    [
        ("GET", "/v1/blue/machines", "list", "", ""),
        ("GET", "/v1/blue/machines/", "list", "", ""),
        ("GET", "/v1/blue/machines/m1", "get", "m1", ""),
        ("HEAD", "/v1/blue/machines/m1", "get", "m1", ""),
        ("POST", "/v1/blue/machines", "create", "", ""),
        ("PUT", "/v1/blue/machines/m1", "update", "m1", ""),
        ("PATCH", "/v1/blue/machines/m1/disk", "patch", "m1", "disk"),
        ("DELETE", "/v1/blue/machines/m%201", "delete", "m 1", ""),
        ("DELETE", "/v1/blue/machines", "deletecollection", "", ""),
        ("BREW", "/v1/blue/machines/m1", "brew", "m1", ""),
    ],
)
def test_a_template_makes_a_resource(
    mapper: HttpAttributes, method: str, target: str, verb: str, name: str, subresource: str
) -> None:
    """S43, S48: a list has its namespace and no name."""
    info = mapper.request_info(RequestLine(method, target))
    assert (info.is_resource, info.method, info.verb) == (True, method, verb)
    assert (info.namespace, info.resource, info.name, info.subresource) == ("blue", "machines", name, subresource)


def test_a_path_that_no_template_matches_is_a_path(mapper: HttpAttributes) -> None:
    for path in ("/v1/blue", "/v2/blue/machines", "/v1/a/b/c/d/e"):
        assert mapper.request_info(RequestLine("GET", path)) == RequestInfo("get", "GET", path)


def test_a_modifier_on_a_resource_is_its_verb(mapper: HttpAttributes) -> None:
    """S46, S49: who may create a machine may not thereby restart one."""
    for path in ("/v1/blue/machines/m1/restart", "/v1/blue/machines/m1/restart/"):
        info = mapper.request_info(RequestLine("POST", path))
        assert (info.verb, info.modifier, info.method, info.name) == ("restart", "Restart", "POST", "m1")
    got = mapper.request_info(RequestLine("GET", "/v1/blue/machines/m1/restart"))
    assert (got.verb, got.modifier, got.subresource) == ("get", "", "restart")


@pytest.mark.parametrize(("query", "watch"), [("watch", True), ("watch=1", True), ("w%61tch=true", True)])
@pytest.mark.parametrize("path", ["/v1/blue/machines", "/events"])
def test_a_query_parameter_can_be_a_modifier(mapper: HttpAttributes, path: str, query: str, watch: bool) -> None:
    """S49."""
    info = mapper.request_info(RequestLine("GET", path, query))
    assert info.modifier == "Watch"
    assert mapper.long_running(info)
    assert info.verb == ("watch" if info.is_resource else "get")


@pytest.mark.parametrize("query", ["", "watch=0", "watch=false", "x=watch", "a&&="])
def test_a_parameter_that_is_absent_or_false_modifies_nothing(mapper: HttpAttributes, query: str) -> None:
    info = mapper.request_info(RequestLine("GET", "/v1/blue/machines", query))
    assert (info.modifier, mapper.long_running(info)) == ("", False)


def test_a_parameter_that_decides_stands_once(mapper: HttpAttributes) -> None:
    """P4: one API takes the first, another the last."""
    with pytest.raises(ValueError, match="duplicate"):
        mapper.request_info(RequestLine("GET", "/v1/blue/machines", "watch=0&watch=1"))


def test_a_modifier_needs_all_that_it_names() -> None:
    mapper = HttpAttributes(modifiers=[Modifier("Dry", query="dry", suffix="/apply", method="POST")])
    asked = [("POST", "/a/apply", "dry"), ("GET", "/a/apply", "dry"), ("POST", "/a", "dry"), ("POST", "/a/apply", "")]
    found = [mapper.request_info(RequestLine(*line)).modifier for line in asked]
    assert found == ["Dry", "", "", ""]


def test_a_wrong_setting_is_told(subtests: pytest.Subtests) -> None:
    cases = [
        ("templates: ['v1/{resource}']", "begins with a slash"),
        ("templates: ['/v1/{namespace}']", "resource"),
        ("templates: ['/v1/x{resource}']", "whole segment"),
        ("templates: ['/{resource}/{resource}']", "each once"),
        ("templates: ['/{resource}/{colour}']", "placeholders are"),
        ("modifiers: [{query: x}]", "needs a name"),
        ("modifiers: [{modifier: X}]", "every request"),
        ("modifiers: [{modifier: X, method: GET}]", "every request"),
        ("modifiers: [{modifier: X, suffix: x}]", "begins with a slash"),
        ("modifiers: [{modifier: X, suffix: /x, method: post}]", "capital"),
        ("modifiers: [{modifier: X, suffix: /x, methd: POST}]", "unknown field"),
    ]
    for text, problem in cases:
        with subtests.test(text=text, problem=problem), pytest.raises(ConfigurationError, match=problem):
            configured(text)


def test_a_template_in_python_is_checked_too() -> None:
    with pytest.raises(ValueError, match="slash"):
        HttpAttributes(templates=["{resource}"])
