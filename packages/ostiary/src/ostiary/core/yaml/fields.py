"""One mapping after the other, asked field by field. Loaders use it; it knows nothing of YAML and JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import TypeVar, cast

from ostiary.core.duration import DurationError, parse_duration
from ostiary.core.go_text import decode_base64
from ostiary.core.yaml.document import Document, Json, Node, join, plain
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem

T = TypeVar("T")


class ConfigReader:
    """One pass of a loader over a document: what it asked for, and the mistakes it met.

    A field that nobody asked for is unknown, so a loader keeps no second list of the names it knows.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._opened: list[ConfigSection] = []
        self.root = self.open(document.root, "")

    def open(self, node: Node, path: str) -> ConfigSection:
        """The fields of *node*; none, and a problem, if it is not a mapping."""
        if not isinstance(node.value, (dict, type(None))):
            self.add(f"expected a mapping, found {_kind(node.value)}", Place(self.document.file, path, node.line))
            node = Node({}, node.line)
        fields = ConfigSection(node, path, self)
        self._opened.append(fields)
        return fields

    def add(self, message: str, place: Place, hint: str | None = None) -> None:
        self.problems.append(Problem(message, place, hint))

    def unknown_fields(self) -> tuple[Place, ...]:
        """The fields that nobody asked for, so far."""
        return tuple(fields.place(key) for fields in self._opened for key in fields.unread())

    def finish(self, summary: str, *, strict: bool | None = None) -> None:
        """Raise `ConfigurationError` if there were mistakes; *strict* counts unknown and repeated fields.

        Whether it does so by default, the document's dialect says.
        """
        is_strict = self.document.dialect.strict if strict is None else strict
        problems = self.problems + (self._strictness() if is_strict else [])
        if problems:
            raise ConfigurationError(summary, problems=problems, code="config-invalid")

    def _strictness(self) -> list[Problem]:
        unknown = [
            Problem("unknown field", fields.place(key), fields.resembling(key))
            for fields in self._opened
            for key in fields.unread()
        ]
        return unknown + [Problem("duplicate field", place) for place in self.document.duplicates]


class ConfigSection:
    """One mapping, asked field by field. Absent, null and mistaken fields give the empty value of the type.

    The ``optional_`` forms tell an absent field from an empty one.
    """

    def __init__(self, node: Node, path: str, reading: ConfigReader) -> None:
        self._nodes: dict[str, Node] = node.value if isinstance(node.value, dict) else {}
        self._line, self._path, self._reading = node.line, path, reading
        self._asked: dict[str, None] = {}

    def place(self, key: str | None = None) -> Place:
        """Where this mapping stands, or its field; for an absent field, where it would stand."""
        if key is None:
            return Place(self._reading.document.file, self._path, self._line)
        line = self._nodes[key].line if key in self._nodes else self._line
        return Place(self._reading.document.file, join(self._path, key), line)

    def problem(self, message: str, key: str | None = None, hint: str | None = None) -> None:
        """Note a mistake that only the loader can see."""
        self._reading.add(message, self.place(key), hint)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def again(self) -> ConfigSection:
        """The same fields, to be read once more: what is noted there counts nowhere else."""
        return ConfigReader(Document(Node(dict(self._nodes), self._line), self._reading.document.file)).root

    def unread(self) -> list[str]:
        return [key for key in self._nodes if key not in self._asked]

    def resembling(self, key: str) -> str | None:
        """A hint that names the known field that *key* looks like."""
        close = get_close_matches(key, self._asked, n=1)
        return f"did you mean {close[0]}?" if close else None

    def is_right(self, *keys: str) -> bool:
        """Whether no mistake was noted about *keys*, in what stands below them, or in what they stand in.

        Asked before something is concluded from them: a person who mistyped one thing would look for two.
        """
        return all(self.is_right_at(join(self._path, key)) for key in keys)

    def is_right_at(self, path: str) -> bool:
        """The same for a place anywhere in the document."""
        noted = (problem.place.path for problem in self._reading.problems)
        return not any(_is_within(path, other) or _is_within(other, path) for other in noted)

    def ignore(self, *keys: str) -> None:
        """These fields are known and not needed."""
        self._asked.update(dict.fromkeys(keys))

    def string(self, key: str) -> str:
        return self._get(key, str) or ""

    def optional_string(self, key: str) -> str | None:
        return self._get(key, str)

    def boolean(self, key: str) -> bool:
        return bool(self._get(key, bool))

    def optional_boolean(self, key: str) -> bool | None:
        return self._get(key, bool)

    def optional_integer(self, key: str) -> int | None:
        return self._get(key, int)

    def optional_number(self, key: str) -> float | None:
        whole = isinstance(getattr(self._node(key), "value", None), int)
        number = self._get(key, int if whole else float)
        if number is not None and not math.isfinite(number):
            # JSON can spell a number that no float holds.
            self.problem("the number is too large", key)
            return None
        return number

    def optional_duration(self, key: str) -> timedelta | None:
        """A time span with its unit, as in ``10s`` or ``1h30m``."""
        text = self._get(key, str)
        if text is None:
            return None
        try:
            return parse_duration(text)
        except DurationError as error:
            self.problem(str(error), key, error.hint)
            return None

    def strings(self, key: str) -> tuple[str, ...]:
        return tuple(self._of_type(node, str, path) or "" for node, path in self._items(key))

    def base64(self, key: str) -> bytes | None:
        text = self._get(key, str)
        if not text:
            return None
        data = decode_base64(text)
        if data is None:
            self.problem("it is not base64", key)
        return data

    def section(self, key: str) -> ConfigSection:
        return self.optional_section(key) or self._reading.open(Node(None, self.place(key).line), join(self._path, key))

    def optional_section(self, key: str) -> ConfigSection | None:
        node = self._node(key)
        return None if node is None else self._reading.open(node, join(self._path, key))

    def sections(self, key: str) -> list[ConfigSection]:
        return [self._reading.open(node, path) for node, path in self._items(key)]

    def plain(self, key: str) -> Json:
        """Whatever stands there, unchecked."""
        node = self._node(key)
        return None if node is None else plain(node)

    def _items(self, key: str) -> Iterator[tuple[Node, str]]:
        nodes = cast("Sequence[Node]", self._get(key, list) or ())
        return ((node, join(join(self._path, key), index)) for index, node in enumerate(nodes))

    def _get(self, key: str, kind: type[T]) -> T | None:
        node = self._node(key)
        return None if node is None else self._of_type(node, kind, join(self._path, key))

    def _node(self, key: str) -> Node | None:
        self._asked[key] = None
        node = self._nodes.get(key)
        return None if node is None or node.value is None else node

    def _of_type(self, node: Node, kind: type[T], path: str) -> T | None:
        # The exact type: a boolean is a number to Python, and to nobody who writes a configuration.
        if node.value is None or type(node.value) is kind:
            return node.value
        hint = "put it in quotes" if kind is str and not isinstance(node.value, (list, dict)) else None
        message = f"expected {_KINDS[kind]}, found {_kind(node.value)}"
        self._reading.add(message, Place(self._reading.document.file, path, node.line), hint)
        return None


def _is_within(path: str, outer: str) -> bool:
    return outer == "" or path == outer or path.startswith((f"{outer}.", f"{outer}["))


_KINDS: dict[type, str] = {
    type(None): "nothing",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "a mapping",
}


def _kind(value: object) -> str:
    return _KINDS[type(value)]
