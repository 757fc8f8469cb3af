"""Reads YAML and JSON, and remembers where each value stood. Every door reads its files through this.

    read, parse  ->  Document  ->  Reading  ->  Fields  ->  the door's own dataclasses

A loader asks `Fields` for one field after the other; mistakes are collected with their places, so that a
person mends a file once and not once per mistake. What scalars mean is what they mean to Kubernetes:
``y`` and ``on`` are booleans, a date is a string. Errors name lines and paths and never quote a value,
because the value may be a password.
"""

from __future__ import annotations

import binascii
import codecs
import json
import math
import os
import re
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import TypeAlias, TypeVar, cast

import yaml

from ostiary.core.duration import DurationError, parse_duration
from ostiary.core.text import printable
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem

Scalar: TypeAlias = "bool | int | float | str | None"
Json: TypeAlias = "Scalar | list[Json] | dict[str, Json]"
Source: TypeAlias = "str | bytes"
T = TypeVar("T")

MAX_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 100
# How many values aliases may add to a document: nine lines of aliases can otherwise stand for billions.
MAX_REPEATED = 100_000


@dataclass(slots=True)
class Node:
    """A value and the line it began at. Lists and mappings hold nodes, so each value inside has its line."""

    value: Scalar | list[Node] | dict[str, Node]
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML document. `more` tells that another one follows it in the same file."""

    root: Node
    file: str | None = None
    duplicates: tuple[Place, ...] = ()
    more: bool = False

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


def read(path: str | os.PathLike[str]) -> Document:
    """The first document of a file. A file that cannot be opened is the ``__cause__`` of the error."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
        problem = Problem(why, Place(name))
        raise ConfigurationError("a file cannot be read", problems=[problem], code="config-unreadable") from error
    return parse(data, file=name)


def parse(source: Source, *, file: str | None = None) -> Document:
    """The first document of a text; an empty text is a document that holds nothing."""
    return next(parse_all(source, file=file), Document(Node(None, 1), file))


def parse_all(source: Source, *, file: str | None = None) -> Iterator[Document]:
    """Every document of a text, one by one: a mistake is not found before its document is reached."""
    return _Composer(_decode(source, file), file).documents()


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


def _child(node: Node, step: str | int) -> Node | None:
    if isinstance(node.value, dict):
        return node.value.get(str(step))
    if isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
        return node.value[step]
    return None


# --- bytes to text ---

# What YAML forbids in any text.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _decode(source: Source, file: str | None) -> str:
    if len(source) > MAX_BYTES:
        raise _wrong(f"it is larger than {MAX_BYTES // 1024**2} MiB", Place(file))
    text = source if isinstance(source, str) else _decode_bytes(source, file)
    if found := _FORBIDDEN.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise _wrong(f"the character U+{ord(found[0]):04X} is not allowed", Place(file, line=line))
    return text


def _decode_bytes(source: bytes, file: str | None) -> str:
    # kubectl takes UTF-16 with a byte order mark too: it is what a redirection in PowerShell writes.
    wide = source.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return source.decode("utf-16" if wide else "utf-8")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
    # Raised outside of the handler: the decoder's exception carries the whole text along.
    raise _wrong("it is not UTF-8 text", Place(file, line=line), hint="save the file as UTF-8")


def _wrong(message: str, place: Place, hint: str | None = None) -> ConfigurationError:
    problem = Problem(message, place, hint)
    return ConfigurationError("a configuration is not usable YAML or JSON", problems=[problem], code="config-syntax")


# --- text to nodes ---

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_QUOTE = 'put the value in quotes: YAML takes an unquoted {} for {}, as in "*.example.com"'


class _Composer:
    """Builds nodes from the parser's events.

    Not with PyYAML's own composer, which crashes the interpreter on deep nesting and resolves scalars
    otherwise than Kubernetes does.
    """

    def __init__(self, text: str, file: str | None) -> None:
        self._text, self._file = text, file
        self._events = cast("Iterator[yaml.Event]", yaml.parse(text, Loader=_LOADER))
        self._anchors: dict[str, Node | None] = {}
        self._duplicates: list[Place] = []
        self._repeated = 0

    def documents(self) -> Iterator[Document]:
        event = self._take_until(yaml.DocumentStartEvent)
        while event is not None:
            self._anchors, self._duplicates = {}, []
            root = self._node(self._take(), "", 0)
            event = self._take_until(yaml.DocumentStartEvent)
            yield Document(root, self._file, tuple(self._duplicates), more=event is not None)

    def _take_until(self, kind: type[yaml.Event]) -> yaml.Event | None:
        while not isinstance(event := self._take(), (kind, yaml.StreamEndEvent)):
            pass
        return event if isinstance(event, kind) else None

    def _take(self) -> yaml.Event:
        try:
            return next(self._events)
        except yaml.YAMLError as error:
            wrong = self._syntax_error(error)
        # Raised outside of the handler: PyYAML's exception carries the text of the file along.
        raise wrong

    def _node(self, event: yaml.Event, path: str, depth: int) -> Node:
        line = _line(event)
        self._check_depth(depth, line)
        if isinstance(event, yaml.AliasEvent):
            return self._repeat(self._anchored(event, path, line), path, depth)
        anchor = getattr(event, "anchor", None)
        if anchor:
            self._anchors[anchor] = None
        if isinstance(event, yaml.MappingStartEvent):
            node = Node(self._mapping(path, depth), line)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = Node(self._sequence(path, depth), line)
        else:
            node = Node(self._scalar(cast("yaml.ScalarEvent", event), path, line), line)
        if anchor:
            self._anchors[anchor] = node
        return node

    def _sequence(self, path: str, depth: int) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := self._take(), yaml.SequenceEndEvent):
            items.append(self._node(event, join(path, len(items)), depth + 1))
        return items

    def _mapping(self, path: str, depth: int) -> dict[str, Node]:
        fields: dict[str, Node] = {}
        merged: list[Node] = []
        while not isinstance(event := self._take(), yaml.MappingEndEvent):
            if _is_merge(event):
                merged += self._merged(join(path, "<<"), depth)
                continue
            key = self._key(event, path, depth)
            if key in fields:
                self._duplicates.append(Place(self._file, join(path, key), _line(event)))
            fields[key] = self._node(self._take(), join(path, key), depth + 1)
        for source in merged:
            for key, node in cast("dict[str, Node]", source.value).items():
                fields.setdefault(key, node)
        return fields

    def _merged(self, path: str, depth: int) -> list[Node]:
        node = self._node(self._take(), path, depth)
        sources = node.value if isinstance(node.value, list) else [node]
        if not all(isinstance(source.value, dict) for source in sources):
            raise self._wrong("only mappings can be merged", path, node.line)
        return sources

    def _key(self, event: yaml.Event, path: str, depth: int) -> str:
        key = self._node(event, path, depth + 1).value
        if isinstance(key, str):
            return key
        # Kubernetes turns YAML into JSON, and JSON spells every key as a string.
        if isinstance(key, bool):
            return "true" if key else "false"
        if isinstance(key, int):
            return str(key)
        message = f"a key must be a string, and this one is {_kind(key)}"
        raise self._wrong(message, path, _line(event), "put the key in quotes")

    def _scalar(self, event: yaml.ScalarEvent, path: str, line: int | None) -> Scalar:
        tag = (event.tag or "").removeprefix("tag:yaml.org,2002:")
        if tag == "binary":
            raise self._wrong("!!binary is not understood", path, line, "write the base64 text as a string")
        typed = tag in ("bool", "float", "int", "null")
        return _resolve(event.value) if typed or (not tag and event.implicit[0]) else str(event.value)

    def _anchored(self, alias: yaml.AliasEvent, path: str, line: int | None) -> Node:
        name = str(alias.anchor)
        if name not in self._anchors:
            hint = _QUOTE.format("*", "a reference")
            raise self._wrong("it refers to an anchor that is not defined before it", path, line, hint)
        node = self._anchors[name]
        if node is None:
            raise self._wrong("it refers to a value that contains itself", path, line)
        return node

    def _repeat(self, node: Node, path: str, depth: int) -> Node:
        self._check_depth(depth, node.line)
        self._repeated += 1
        if self._repeated > MAX_REPEATED:
            raise self._wrong(f"its references repeat more than {MAX_REPEATED} values", path, node.line)
        if isinstance(node.value, dict):
            return Node({key: self._repeat(item, path, depth + 1) for key, item in node.value.items()}, node.line)
        if isinstance(node.value, list):
            return Node([self._repeat(item, path, depth + 1) for item in node.value], node.line)
        return node

    def _check_depth(self, depth: int, line: int | None) -> None:
        if depth > MAX_DEPTH:
            raise self._wrong(f"it is nested more than {MAX_DEPTH} levels deep", "", line)

    def _wrong(self, message: str, path: str, line: int | None, hint: str | None = None) -> ConfigurationError:
        return _wrong(message, Place(self._file, path, line), hint)

    def _syntax_error(self, error: yaml.YAMLError) -> ConfigurationError:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        message = str(getattr(error, "problem", None) or "it cannot be read")
        return self._wrong(printable(message), "", line, self._syntax_hint(error, line))

    def _syntax_hint(self, error: yaml.YAMLError, line: int | None) -> str | None:
        context = getattr(error, "context", None) or ""
        if "alias" in context:
            return _QUOTE.format("*", "a reference")
        if "anchor" in context:
            return _QUOTE.format("&", "an anchor")
        rows = self._text.split("\n")
        row = rows[line - 1] if line is not None and line <= len(rows) else ""
        if "\t" in row[: len(row) - len(row.lstrip())]:
            return "indent with spaces: YAML allows no tabs there"
        return "put the value in quotes" if "next token" in context else None


def _line(event: yaml.Event) -> int | None:
    return None if event.start_mark is None else event.start_mark.line + 1


def _is_merge(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.value == "<<" and event.implicit[0]


# Go's YAML reader knows these words and no others; unlike PyYAML it reads a lone y or n as a boolean,
# and neither a date nor 12:30 as anything but text.
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True),
    **dict.fromkeys(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], False),
}
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]{1,16})|0[oO]?([0-7]{1,22})|0[bB]([01]{1,64})|(0|[1-9][0-9]{0,18}))")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def _resolve(text: str) -> Scalar:
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    digits = text.replace("_", "")
    if found := _INTEGER.fullmatch(digits):
        sign, *numerals = found.groups()
        value = next(int(numeral, base) for numeral, base in zip(numerals, (16, 8, 2, 10), strict=True) if numeral)
        return -value if sign == "-" else value
    if _FLOAT.fullmatch(digits) and math.isfinite(float(digits)):
        return float(digits)
    return text


# --- nodes to fields ---


class Reading:
    """One pass of a loader over a document: what it asked for, and the mistakes it met.

    A field that nobody asked for is unknown, so a loader keeps no second list of the names it knows.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._opened: list[Fields] = []
        self.root = self.open(document.root, "")

    def open(self, node: Node, path: str) -> Fields:
        """The fields of *node*; none, and a problem, if it is not a mapping."""
        if not isinstance(node.value, (dict, type(None))):
            self.add(f"expected a mapping, found {_kind(node.value)}", Place(self.document.file, path, node.line))
            node = Node({}, node.line)
        fields = Fields(node, path, self)
        self._opened.append(fields)
        return fields

    def add(self, message: str, place: Place, hint: str | None = None) -> None:
        self.problems.append(Problem(message, place, hint))

    def unknown_fields(self) -> tuple[Place, ...]:
        """The fields that nobody asked for, so far."""
        return tuple(fields.place(key) for fields in self._opened for key in fields.unread())

    def finish(self, summary: str, *, strict: bool = False) -> None:
        """Raise `ConfigurationError` if there were mistakes; *strict* counts unknown and repeated fields."""
        problems = self.problems + (self._strictness() if strict else [])
        if problems:
            raise ConfigurationError(summary, problems=problems, code="config-invalid")

    def _strictness(self) -> list[Problem]:
        unknown = [
            Problem("unknown field", fields.place(key), fields.resembling(key))
            for fields in self._opened
            for key in fields.unread()
        ]
        return unknown + [Problem("this field stands here twice", place) for place in self.document.duplicates]


class Fields:
    """One mapping, asked field by field. Absent, null and mistaken fields give the empty value of the type.

    The ``optional_`` forms tell an absent field from an empty one.
    """

    def __init__(self, node: Node, path: str, reading: Reading) -> None:
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

    def unread(self) -> list[str]:
        return [key for key in self._nodes if key not in self._asked]

    def resembling(self, key: str) -> str | None:
        """A hint that names the known field that *key* looks like."""
        close = get_close_matches(key, self._asked, n=1)
        return f"did you mean {close[0]}?" if close else None

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
        return self._get(key, int if whole else float)

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
        return tuple(self._typed(node, str, path) or "" for node, path in self._items(key))

    def base64(self, key: str) -> bytes | None:
        text = self._get(key, str)
        if not text:
            return None
        try:
            # Go's decoder, too, reads over line ends and over nothing else.
            return b64decode(re.sub(r"[\r\n]", "", text), validate=True)
        except (binascii.Error, ValueError):
            self.problem("it is not base64", key)
            return None

    def section(self, key: str) -> Fields:
        return self.optional_section(key) or self._reading.open(Node(None, self.place(key).line), join(self._path, key))

    def optional_section(self, key: str) -> Fields | None:
        node = self._node(key)
        return None if node is None else self._reading.open(node, join(self._path, key))

    def sections(self, key: str) -> list[Fields]:
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
        return None if node is None else self._typed(node, kind, join(self._path, key))

    def _node(self, key: str) -> Node | None:
        self._asked[key] = None
        node = self._nodes.get(key)
        return None if node is None or node.value is None else node

    def _typed(self, node: Node, kind: type[T], path: str) -> T | None:
        # The exact type: a boolean is a number to Python, and to nobody who writes a configuration.
        if node.value is None or type(node.value) is kind:
            return node.value
        hint = "put it in quotes" if kind is str and not isinstance(node.value, (list, dict)) else None
        message = f"expected {_KINDS[kind]}, found {_kind(node.value)}"
        self._reading.add(message, Place(self._reading.document.file, path, node.line), hint)
        return None


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
