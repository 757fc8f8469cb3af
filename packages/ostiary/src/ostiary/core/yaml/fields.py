"""Field-by-field access to a parsed document, for loaders. Independent of YAML and JSON."""

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
    """One pass of a loader over a document: the fields it read and the errors it found.

    A field that the loader never read is unknown, so a loader needs no second list of field names.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._opened: list[ConfigSection] = []
        self.root = self.open(document.root, "")

    def open(self, node: Node, path: str) -> ConfigSection:
        """Return the fields of *node*. If it is not a mapping, report an error and return no fields."""
        if not isinstance(node.value, (dict, type(None))):
            self.add(f"expected a mapping, found {_kind(node.value)}", Place(self.document.file, path, node.line))
            node = Node({}, node.line)
        fields = ConfigSection(node, path, self)
        self._opened.append(fields)
        return fields

    def add(self, message: str, place: Place, hint: str | None = None) -> None:
        self.problems.append(Problem(message, place, hint))

    def unknown_fields(self) -> tuple[Place, ...]:
        """Return the fields that were not read so far."""
        return tuple(fields.place(key) for fields in self._opened for key in fields.unread())

    def finish(self, summary: str, *, strict: bool | None = None) -> None:
        """Raise `ConfigurationError` if there were errors. *strict* includes unknown and repeated fields.

        The default of *strict* is that of the document's dialect.
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
    """One mapping, read field by field. Absent, null and invalid fields give the empty value of the type.

    The ``optional_`` methods distinguish an absent field from an empty one.
    """

    def __init__(self, node: Node, path: str, reading: ConfigReader) -> None:
        self._nodes: dict[str, Node] = node.value if isinstance(node.value, dict) else {}
        self._line, self._path, self._reading = node.line, path, reading
        self._asked: dict[str, None] = {}

    def place(self, key: str | None = None) -> Place:
        """Return the position of this mapping or of its field; for an absent field, where it would be."""
        if key is None:
            return Place(self._reading.document.file, self._path, self._line)
        line = self._nodes[key].line if key in self._nodes else self._line
        return Place(self._reading.document.file, join(self._path, key), line)

    def problem(self, message: str, key: str | None = None, hint: str | None = None) -> None:
        """Report an error that only the loader can detect."""
        self._reading.add(message, self.place(key), hint)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def again(self) -> ConfigSection:
        """Return the same fields for a second pass. Errors and reads of that pass do not count here."""
        return ConfigReader(Document(Node(dict(self._nodes), self._line), self._reading.document.file)).root

    def unread(self) -> list[str]:
        return [key for key in self._nodes if key not in self._asked]

    def resembling(self, key: str) -> str | None:
        """Return a hint that names the known field that *key* resembles."""
        close = get_close_matches(key, self._asked, n=1)
        return f"did you mean {close[0]}?" if close else None

    def is_right(self, *keys: str) -> bool:
        """Return whether no error was reported about *keys*, about anything below them, or about what contains them.

        Check it before drawing conclusions from the values: a user with one typo would otherwise look for two errors.
        """
        return all(self.is_right_at(join(self._path, key)) for key in keys)

    def is_right_at(self, path: str) -> bool:
        """Like `is_right`, for any path in the document."""
        noted = (problem.place.path for problem in self._reading.problems)
        return not any(_is_within(path, other) or _is_within(other, path) for other in noted)

    def ignore(self, *keys: str) -> None:
        """Mark these fields as known but unused."""
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
            # JSON can spell a number that does not fit into a float.
            self.problem("the number is too large", key)
            return None
        return number

    def optional_duration(self, key: str) -> timedelta | None:
        """Return a duration with its unit, as in ``10s`` or ``1h30m``."""
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
        """Return the value unchecked."""
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
        # Compare the exact type: in Python a boolean is also an int, but not in a configuration file.
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
