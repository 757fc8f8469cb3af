"""Values that know their line, and the document that they form. Made by the two readers, asked by `fields`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from ostiary.core.config.dialect import OSTIARY, Dialect
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem

Scalar: TypeAlias = "bool | int | float | str | None"
Json: TypeAlias = "Scalar | list[Json] | dict[str, Json]"

MAX_DEPTH = 100


@dataclass(slots=True)
class Node:
    """A value and the line it began at. Lists and mappings hold nodes, so each value inside has its line.

    `repeated` holds every pair of a JSON object in which a key stands twice, in their order; else it is empty.
    """

    value: Scalar | list[Node] | dict[str, Node]
    line: int | None = None
    repeated: tuple[tuple[str, Node], ...] = ()

    def pairs(self) -> Iterable[tuple[str, Node]]:
        """The fields of a mapping in the order of the text, with those that a later one replaces."""
        return self.repeated or (self.value.items() if isinstance(self.value, dict) else ())


@dataclass(frozen=True, slots=True)
class Document:
    """One document. `more` tells that something follows it in the same file, which YAML allows."""

    root: Node
    file: str | None = None
    duplicates: tuple[Place, ...] = ()
    more: bool = False
    dialect: Dialect = OSTIARY

    @property
    def value(self) -> Json:
        """The document as plain values. Of a key that stands twice, the last one counts."""
        return plain(self.root)

    def place(self, *steps: str | int) -> Place:
        """Where the value stands that *steps* lead to; for a value that is absent, where it would stand."""
        node, path = self.root, ""
        for step in steps:
            path = join(path, step)
            node = _child(node, step) or node
        return Place(self.file, path, node.line)


def plain(node: Node) -> Json:
    if isinstance(node.value, dict):
        return {key: plain(item) for key, item in node.value.items()}
    if isinstance(node.value, list):
        return [plain(item) for item in node.value]
    return node.value


def join(path: str, step: str | int) -> str:
    """The dotted path of a value inside the one at *path*: ``users[1].user.exec``."""
    if isinstance(step, int):
        return f"{path}[{step}]"
    if not re.fullmatch(r"[\w-]+", step):
        return f"{path}[{printable(json.dumps(step, ensure_ascii=False))}]"
    return f"{path}.{step}" if path else step


def path_of(steps: Iterable[str | int]) -> str:
    path = ""
    for step in steps:
        path = join(path, step)
    return path


def syntax_error(message: str, place: Place, hint: str | None = None) -> ConfigurationError:
    problem = Problem(message, place, hint)
    return ConfigurationError("a configuration is not usable YAML or JSON", problems=[problem], code="config-syntax")


def too_deep(place: Place) -> ConfigurationError:
    return syntax_error(f"it is nested more than {MAX_DEPTH} levels deep", place)


def _child(node: Node, step: str | int) -> Node | None:
    if isinstance(node.value, dict):
        return node.value.get(str(step))
    if isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
        return node.value[step]
    return None
