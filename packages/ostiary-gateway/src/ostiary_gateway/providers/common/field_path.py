"""Paths to fields of an object, and the setting `Condition` of the providers that use them.

A path is written like ``spec.containers[*].resources.requests.cpu``. A name with dots or slashes is quoted:
``spec.resources.requests["example.com/gpu"]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ostiary.core.yaml import ConfigSection, Json
from ostiary_gateway.settings.kinds import SettingKind, Texts

_STEP = re.compile(
    r"""\.?(?P<name>[A-Za-z_][A-Za-z0-9_-]*)|(?P<every>\[\*\])|\[(?P<quote>["'])(?P<key>[^"']+)(?P=quote)\]"""
)


@dataclass(frozen=True, slots=True)
class FieldPath:
    """A parsed path. `steps` are field names; None stands for every item of a list."""

    text: str
    steps: tuple[str | None, ...]

    @classmethod
    def parse(cls, text: str) -> FieldPath:
        """Parse *text*. Raise `ValueError` if it is not a path."""
        steps: list[str | None] = []
        position = 0
        while position < len(text):
            step = _STEP.match(text, position)
            if (
                step is None
                or (step[0].startswith(".") and not steps)
                or (position and step["name"] and step[0][0] != ".")
            ):
                raise ValueError(f"it cannot be read from position {position} on")
            steps.append(None if step["every"] else step["name"] or step["key"])
            position = step.end()
        if not steps or steps[0] is None:
            raise ValueError("it must begin with the name of a field")
        return cls(text, tuple(steps))

    def values(self, document: object) -> Iterator[object]:
        """Yield every value at this path; none if a field is absent. Raise `ValueError` for a value of another type."""
        return _values(document, self.steps)

    def __str__(self) -> str:
        return self.text


def _values(node: object, steps: tuple[str | None, ...]) -> Iterator[object]:
    if node is None:
        return
    if not steps:
        yield node
        return
    step, *rest = steps
    if step is None:
        if not isinstance(node, list):
            raise ValueError("it is not a list")
        for item in node:
            yield from _values(item, tuple(rest))
    elif not isinstance(node, dict):
        raise ValueError("it is not an object")
    else:
        yield from _values(node.get(step), tuple(rest))


@dataclass(frozen=True)
class Condition(SettingKind[frozenset[str]]):
    """The users or objects that a limit applies to.

    Left out, it applies to all. An empty list is an error: it could mean none, or that it was not filled in.
    """

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> frozenset[str] | None:
        return frozenset(self._texts.read(fields, key, directory) or ())

    @property
    def _texts(self) -> Texts:
        mistake, hint = "an empty list would be met by every request", "leave it out if that is meant"
        return Texts(self.doc, empty_list=mistake, empty_list_hint=hint, unique=True)

    def schema(self) -> dict[str, Json]:
        return self._texts.schema()

    def blank(self) -> frozenset[str]:
        return frozenset()
