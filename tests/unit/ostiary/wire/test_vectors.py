"""Requests, selectors and audit policies are read as Kubernetes reads them: what it said to each of them."""

from __future__ import annotations

import json
from typing import Any

from ostiary.core.yaml import ConfigReader
from ostiary.core.yaml import parse as parse_config
from ostiary.errors import ConfigurationError
from ostiary.model import RequestInfo, Requirement, UserInfo
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.proxy.target import AmbiguousRequest, split_target
from ostiary_gateway.wire.audit_policy import LEVEL_NAMES, parse_policy
from ostiary_gateway.wire.rbac import read_selector
from ostiary_gateway.wire.request_info import request_info
from ostiary_gateway.wire.selectors import SelectorError, parse_field_selector, parse_label_selector
from tests.support.vectors import Vector, load, replay

HOST = b"api.example.test"
OPERATORS = {
    "=": "In",
    "==": "In",
    "in": "In",
    "!=": "NotIn",
    "notin": "NotIn",
    "exists": "Exists",
    "!": "DoesNotExist",
}


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def requirements(listed: list[dict[str, Any]] | None) -> list[Requirement]:
    """As a SubjectAccessReview has them; comparisons of numbers it cannot say, and they are left out."""
    found = []
    for one in listed or ():
        values = tuple(one["values"]) if "values" in one else (one["value"],)
        if one["operator"] in OPERATORS:
            found.append(Requirement(one.get("key", one.get("field", "")), OPERATORS[one["operator"]], values))
    return found


# --- request infos ---


def read_target(vector: Vector) -> tuple[str, str] | None:
    """Path and query; None where the gateway refuses a target that two servers could read differently."""
    target = vector["target"].encode("utf-8", "surrogateescape")
    try:
        return split_target(target, host=HOST, options=vector["method"] == "OPTIONS", any_name=True)
    except AmbiguousRequest:
        return None


def request_difference(vector: Vector) -> str | None:
    parts = read_target(vector)
    if parts is None:
        return None
    if "bad_request" in vector:
        return "taken, where the API server refuses the request line"
    try:
        info = request_info(RequestLine(vector["method"], *parts))
    except ValueError:
        return None if "error" in vector else "refused"
    if "error" in vector:
        return "taken, where the API server cannot tell what is asked"
    default_path = vector["target"].partition("?")[0]
    ours = {
        "is_resource": info.is_resource,
        "verb": info.verb,
        "path": info.path,
        **({"apiGroup": info.api_group, "apiVersion": info.api_version} if info.is_resource else {}),
        "namespace": info.namespace,
        "resource": info.resource,
        "subresource": info.subresource,
        "name": info.name,
    }
    theirs = {key: vector.get(key, "") for key in ours}
    theirs |= {"is_resource": vector.get("is_resource", False), "path": vector.get("path", default_path)}
    if ours != theirs:
        return f"{vector['method']} {vector['target']}: {ours}, and not {theirs}"
    return selector_difference(vector, info)


def selector_difference(vector: Vector, info: RequestInfo) -> str | None:
    for ours, name in ((info.field_selector, "fieldRequirements"), (info.label_selector, "labelRequirements")):
        theirs = requirements(vector.get(name))
        if _sorted(ours or ()) != _sorted(theirs):
            return f"{vector['target']}: {name} are {ours}, and not {theirs}"
    return None


def _sorted(listed: Any) -> list[tuple[str, str, tuple[str, ...]]]:
    return sorted((one.key, one.operator, tuple(sorted(one.values))) for one in listed)


def test_every_request_that_passes_is_read_as_the_api_server_reads_it() -> None:
    replay("request-info", request_difference)


def test_most_requests_that_the_api_server_takes_do_pass() -> None:
    """What is refused is refused for its path: a gateway that refused everything would read nothing wrongly."""
    good = [vector for vector in load("request-info") if "error" not in vector and "bad_request" not in vector]
    passed = [vector for vector in good if read_target(vector) is not None]
    assert len(passed) > 0.5 * len(good), (len(passed), len(good))


# --- selectors ---

SETS: tuple[dict[str, str], ...] = (
    {},
    {"a": "b"},
    {"a": ""},
    {"app": "web", "tier": "b"},
    {"app.kubernetes.io/name": "1", "A": "V1.2"},
    {"a": "5", "app": "x"},
    {"x_y": "a_b", "a-b": "web", "a.b": "1"},
)


def text_difference(vector: Vector) -> str | None:
    parse = parse_label_selector if vector["kind"] == "label" else parse_field_selector
    try:
        ours = parse(vector["text"])
    except SelectorError as error:
        return None if "error" in vector else f"{vector['text']!r} is refused: {error}"
    if "error" in vector:
        return f"{vector['text']!r} is taken: {ours}"
    theirs = requirements(vector.get("requirements"))
    return None if _sorted(ours) == _sorted(theirs) else f"{vector['text']!r}: {ours}, and not {theirs}"


def object_difference(vector: Vector) -> str | None:
    reading = ConfigReader(parse_config(json.dumps(vector["selector"])))
    selector = read_selector(reading.root)
    try:
        reading.finish("the selector cannot be used", strict=True)
    except ConfigurationError as error:
        return None if "error" in vector else f"{vector['selector']} is refused: {error.problems}"
    if "error" in vector:
        return f"{vector['selector']} is taken"
    ours = [selector.selects(tuple(labels.items())) for labels in SETS]
    theirs = vector["matches"]
    return None if ours == theirs else f"{vector['selector']}: {ours}, and not {theirs}"


def test_every_selector_is_read_and_matches_as_in_kubernetes() -> None:
    replay("selectors", lambda vector: (object_difference if vector["kind"] == "object" else text_difference)(vector))


# --- audit policies ---


def audit_difference(vector: Vector) -> str | None:
    try:
        policy = parse_policy(vector["policy"])
    except ConfigurationError as error:
        return None if "error" in vector else f"refused: {[str(problem) for problem in error.problems]}"
    if "error" in vector:
        return f"taken, where the API server says: {vector['error']}"
    asked = vector["attributes"]
    user = None if asked.get("user") is None else UserInfo(asked["user"], groups=tuple(asked.get("groups") or ()))
    scope = policy.scope(asked_request(asked), user)
    ours = (LEVEL_NAMES[scope.level], sorted(stage.value for stage in scope.omit_stages), scope.omit_managed_fields)
    theirs = (vector["level"], vector.get("omitStages") or [], vector.get("omitManagedFields", False))
    return None if ours == theirs else f"{ours}, and not {theirs}"


def asked_request(asked: dict[str, Any]) -> RequestInfo:
    if not asked.get("is_resource"):
        return RequestInfo(asked.get("verb", ""), "", asked.get("path", ""))
    return RequestInfo(
        verb=asked.get("verb", ""),
        method="",
        path="",
        is_resource=True,
        api_group=asked.get("apiGroup", ""),
        api_version=asked.get("apiVersion", ""),
        namespace=asked.get("namespace", ""),
        resource=asked.get("resource", ""),
        subresource=asked.get("subresource", ""),
        name=asked.get("name", ""),
    )


def test_every_audit_policy_is_taken_and_applied_as_in_the_api_server() -> None:
    replay("audit-policy", audit_difference)
