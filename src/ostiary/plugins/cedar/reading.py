"""Parses Cedar text into policies, each with its place, checked by the engine and by the schema. Pure; called by the
cedar provider through `ostiary.plugins.common.policy_files`."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import chain, count

import cedarpy

from ostiary.core.text import printable
from ostiary.model import Place, Problem
from ostiary.plugins.cedar.engine import (
    ACTION,
    GROUP,
    NAMESPACE,
    PATH,
    RESOURCE,
    USER,
    Body,
    CedarPolicies,
    CedarPolicy,
    entities_in,
)
from ostiary.plugins.common.policy_files import PolicyText, invalid_policy

# Known without being named. Other verbs are anybody's to invent.
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")


def parse(texts: Sequence[PolicyText]) -> CedarPolicies:
    """The policy of these files; raises `ConfigurationError` that lists every mistake with its place."""
    problems, policies = list[Problem](), dict[str, CedarPolicy]()
    read = [(place, text, _read(text, place, problems)) for place, text in _all_statements(texts)]
    schema = _schema(body for _, _, body in read if body is not None)
    for place, text, body in read:
        if body is None:
            continue
        errors = cedarpy.validate_policies(text, schema).errors
        problems += [Problem(printable(error.error), place) for error in errors]
        if any(kind == RESOURCE for kind, _ in entities_in(body)):
            problems.append(Problem("a Resource has no id that could be named", place, "compare its attributes"))
        policy = CedarPolicy(_id_of(body, place, policies), body["effect"], _who(body["principal"]), body, place)
        if policy.id in policies:
            problems.append(Problem(f'another policy has the id "{printable(policy.id)}" too', place))
        policies[policy.id] = policy
    if problems:
        raise invalid_policy(problems)
    return CedarPolicies(policies.values())


def _all_statements(texts: Sequence[PolicyText]) -> Iterator[tuple[Place, str]]:
    for text in texts:
        for line, statement in statements(text.text):
            yield Place(text.file, line=line), statement


def statements(text: str) -> Iterator[tuple[int, str]]:
    """The statements of a Cedar text, each with its semicolon, and the line where it begins.

    Only strings and comments matter for finding the end of one; whether it is a policy the engine judges.
    """
    begin = position = _skip_blank(text, 0)
    line = 1 + text.count("\n", 0, begin)
    while begin < len(text):
        char = text[position : position + 1]
        if char == '"':
            position = _after_string(text, position)
        elif text.startswith("//", position):
            position = _after_line(text, position)
        elif char not in ("", ";"):
            position += 1
        else:
            yield line, text[begin : position + 1]
            following = _skip_blank(text, position + 1)
            line += text.count("\n", begin, following)
            begin = position = following


def _skip_blank(text: str, position: int) -> int:
    while position < len(text):
        if text[position].isspace():
            position += 1
        elif text.startswith("//", position):
            position = _after_line(text, position)
        else:
            break
    return position


def _after_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end + 1


def _after_string(text: str, position: int) -> int:
    position += 1
    while position < len(text) and text[position] != '"':
        position += 2 if text[position] == "\\" else 1
    return position + 1


def _read(text: str, place: Place, problems: list[Problem]) -> Body | None:
    try:
        policy_json: Body = json.loads(cedarpy.policies_to_json_str(text))
    except ValueError as error:
        problems.append(Problem(f"it is not a Cedar policy: {printable(str(error))}", place))
        return None
    if policy_json["templates"]:
        problems.append(Problem("templates are not supported", place, "write the policy out for each user or group"))
        return None
    if len(policy_json["staticPolicies"]) != 1:
        problems.append(Problem("it is not one Cedar policy", place))
        return None
    (body,) = policy_json["staticPolicies"].values()
    return body  # type: ignore[no-any-return]


def _id_of(body: Body, place: Place, taken: Container[str]) -> str:
    """The policy's own id, or its place; a second policy in the same line gets a number."""
    if own := body.get("annotations", {}).get("id"):
        return str(own)
    numbered = (f"{place} ({number})" for number in count(2))
    return next(name for name in chain((str(place),), numbered) if name not in taken)


def _who(principal: Body) -> tuple[str, str] | None:
    entity = principal.get("entity") or principal.get("in", {}).get("entity")
    return None if entity is None else (entity["type"], entity["id"])


def _schema(bodies: Iterable[Body]) -> cedarpy.Schema:
    """The schema in this module's docstring. Verbs are anybody's to invent, so those that policies name are known."""
    verbs = {name for body in bodies for kind, name in entities_in(body) if kind == ACTION}
    attributes = ("apiGroup", "apiVersion", "resource", "subresource", "namespace", "name", "path")
    resource = {"memberOfTypes": [NAMESPACE], "shape": _record(*attributes)}
    entities = {
        USER: {"memberOfTypes": [GROUP], "shape": _record("name", "uid")},
        GROUP: {},
        NAMESPACE: {},
        RESOURCE: resource,
        PATH: resource,
    }
    context = _record("modifier", "upstream")
    context["attributes"]["capabilities"] = {"type": "Set", "element": {"type": "String"}}
    applies = {"principalTypes": [USER], "resourceTypes": [RESOURCE, PATH], "context": context}
    actions = {verb: {"appliesTo": applies} for verb in sorted({*VERBS, *verbs})}
    return cedarpy.Schema.from_json_str(json.dumps({"": {"entityTypes": entities, "actions": actions}}))


def _record(*names: str) -> Body:
    return {"type": "Record", "attributes": {name: {"type": "String"} for name in names}}
