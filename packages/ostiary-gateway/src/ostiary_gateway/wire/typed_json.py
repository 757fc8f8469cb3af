"""Decode objects of a known type like Kubernetes: names are case-sensitive, and ``null`` means absent. Pure.

A value of the wrong type is an error. Unknown and duplicate fields are reported to the caller, who treats them as
warnings or errors (``fieldValidation``). Empty fields are dropped, and the rest is in the order of the type, so that a
response repeats it as Go would write it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

MOST_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class Struct:
    """An object. `always` names the fields that are retained when they are empty."""

    fields: Mapping[str, Type]
    always: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ListOf:
    item: Type


@dataclass(frozen=True, slots=True)
class MapOf:
    item: Type


Type: TypeAlias = "type[str] | type[bool] | type[int] | Struct | ListOf | MapOf | None"
"""The expected type of a JSON value. None accepts any value."""


class NotOfThisType(ValueError):
    """The value has another type. The message contains the path and the type, and never the value."""


@dataclass(slots=True)
class Problems:
    """Errors of strict decoding, in order of occurrence."""

    texts: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        if len(self.texts) < MOST_PROBLEMS and text not in self.texts:
            self.texts.append(text)


class _Pairs(dict[str, Any]):
    """An object that records duplicate names."""

    twice: tuple[str, ...] = ()


def parse_json(data: bytes) -> Any:
    """Parse one JSON value; raises `NotOfThisType`."""
    try:
        return json.loads(data.decode("utf-8", "replace"), object_pairs_hook=_object, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise NotOfThisType("it is not JSON") from None


# The loader takes some 20 microseconds to build each value, and more for deeply nested ones.
MOST_YAML_CHARACTERS = 64 * 1024
MOST_YAML_EVENTS = 2000
MOST_YAML_DEPTH = 64
_EVENTS = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(yaml.SafeLoader):
    """A loader that retains dates as text, and records duplicate names."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.flatten_mapping(node)
        pairs = [(self.construct_object(key, deep=True), value) for key, value in node.value]
        return _object([(_key(key), self.construct_object(value, deep=True)) for key, value in pairs])


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_mapping)
# A date is the original text, as in JSON.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: str(node.value))


def parse_yaml(data: bytes) -> Any:
    """Parse one YAML document; raises `NotOfThisType` if it is invalid, or too expensive to load."""
    try:
        text = data.decode("utf-8", "strict")
        _check_work(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506  # a safe loader
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        raise NotOfThisType("it is not YAML") from None


def _check_work(text: str) -> None:
    """Raise `ValueError` for input that would occupy the loader for long and block other requests."""
    if len(text) > MOST_YAML_CHARACTERS:
        raise ValueError("too long")
    depth = 0
    # Parsed without being built, by libyaml if available, and only up to the limits.
    for number, event in enumerate(yaml.parse(text, Loader=_EVENTS)):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_YAML_DEPTH or number > MOST_YAML_EVENTS:
            raise ValueError("too many values")


def _object(pairs: list[tuple[str, Any]]) -> _Pairs:
    result = _Pairs(pairs)
    if len(result) != len(pairs):
        names: set[str] = set()
        result.twice = tuple(name for name, _ in pairs if name in names or names.add(name))  # type: ignore[func-returns-value]
    return result


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if not isinstance(key, (str, int, float)):
        raise TypeError
    return str(key)


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def read_typed(value: Any, wanted: Type, problems: Problems, path: str = "") -> Any:
    """Decode *value* as *wanted*, without empty fields; raises `NotOfThisType`."""
    if wanted is None or value is None:
        return value if wanted is None else None
    if isinstance(wanted, Struct):
        return _struct(value, wanted, problems, path)
    if isinstance(wanted, ListOf):
        items = _of(list, value, path)
        return [read_typed(item, wanted.item, problems, f"{path}[{number}]") for number, item in enumerate(items)]
    if isinstance(wanted, MapOf):
        pairs = _of(dict, value, path)
        typed_items = {
            name: read_typed(item, wanted.item, problems, f"{path}.{name}") or "" for name, item in pairs.items()
        }
        # An empty map counts as absent.
        return typed_items or None
    if wanted is int and isinstance(value, bool):
        raise NotOfThisType(f"{path or 'it'} is not a number")
    return _of(wanted, value, path)


def _struct(value: Any, wanted: Struct, problems: Problems, path: str) -> dict[str, Any]:
    pairs = _of(dict, value, path)
    prefix = f"{path}." if path else ""
    for name in getattr(pairs, "twice", ()):
        problems.add(f'duplicate field "{prefix}{name}"')
    for name in pairs:
        if name not in wanted.fields:
            problems.add(f'unknown field "{prefix}{name}"')
    fields = {name: read_typed(pairs.get(name), each, problems, prefix + name) for name, each in wanted.fields.items()}
    return {name: item for name, item in fields.items() if name in wanted.always or not _is_empty(item)}


def _is_empty(item: Any) -> bool:
    # An empty object counts as present.
    return item is None or item in ("", False, 0, [])


_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "a number"}


def _of(wanted: type[Any], value: Any, path: str) -> Any:
    if not isinstance(value, wanted):
        raise NotOfThisType(f"{path or 'it'} is not {_NAMES[wanted]}")
    return value
