"""JSON to nodes, as Go's encoding/json parses it.

Strict: no trailing comma, comment, single quote or second document, because a kubelet that reads one does not start.
Python's json has no line numbers and accepts ``NaN``.
"""

from __future__ import annotations

import json
import re

from ostiary.core.go_text import decode_like_go, without_surrogates
from ostiary.core.yaml.document import MAX_DEPTH, Dialect, Document, Node, path_of, syntax_error, too_deep
from ostiary.errors import ConfigurationError
from ostiary.model import Place

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN_STRING = re.compile(r'"([^"\\\x00-\x1f]*)"')
# Fast path for the usual field and the usual end of an item; anything else takes the slower path.
_FIELD = re.compile(r'"([^"\\\x00-\x1f]*)"[ \t\r\n]*:[ \t\r\n]*')
_AFTER = re.compile(r"[ \t\r\n]*([,}\]])[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORD = re.compile(r"true|false|null")
_WORDS = {"true": True, "false": False, "null": None}
_STRINGS = json.JSONDecoder()
# Numbers with more digits than any 64-bit integer are read as floats. Python does not parse very long integers.
_MOST_DIGITS = 1000


def read_json(source: str | bytes, *, file: str | None, dialect: Dialect) -> Document:
    """Return the one value in *source*."""
    text = without_surrogates(source) if isinstance(source, str) else decode_like_go(source)
    return _Scanner(text, file, dialect).document()


class _Scanner:
    """One pass over a text. Positions are passed on and never stored: every method returns where it stopped."""

    def __init__(self, text: str, file: str | None, dialect: Dialect) -> None:
        self._text, self._file, self._dialect = text, file, dialect
        self._steps: list[str | int] = []
        self._duplicates: list[Place] = []
        self._line, self._counted = 1, 0

    def document(self) -> Document:
        root, end = self._value(self._skip(0))
        end = self._skip(end)
        if end < len(self._text):
            raise self._wrong("there is text after the JSON value", end)
        return Document(root, self._file, tuple(self._duplicates), dialect=self._dialect)

    def _value(self, start: int) -> tuple[Node, int]:
        if len(self._steps) > MAX_DEPTH:
            raise too_deep(self._place(start))
        line, first = self._line_at(start), self._text[start : start + 1]
        if first == "{":
            return self._object(start + 1, line)
        if first == "[":
            return self._array(start + 1, line)
        if first == '"':
            text, end = self._string(start)
            return Node(text, line), end
        if word := _WORD.match(self._text, start):
            return Node(_WORDS[word[0]], line), word.end()
        if number := _NUMBER.match(self._text, start):
            return Node(_number(number), line), number.end()
        raise self._wrong("expected a value", start)

    def _object(self, start: int, line: int) -> tuple[Node, int]:
        fields: dict[str, Node] = {}
        pairs: list[tuple[str, Node]] = []
        position = self._skip(start)
        if self._text.startswith("}", position):
            return Node(fields, line), position + 1
        while True:
            key, end = self._key(position)
            if key in fields:
                self._duplicates.append(self._place(position, key))
            self._steps.append(key)
            node, end = self._value(end)
            self._steps.pop()
            fields[key] = _merge(fields[key], node) if key in fields else node
            pairs.append((key, node))
            position, closed = self._next(end, "}")
            if closed:
                return Node(fields, line, tuple(pairs) if len(pairs) > len(fields) else ()), position

    def _key(self, start: int) -> tuple[str, int]:
        if field := _FIELD.match(self._text, start):
            return field[1], field.end()
        if not self._text.startswith('"', start):
            raise self._wrong("expected the name of a field in double quotes", start)
        key, end = self._string(start)
        end = self._skip(end)
        if not self._text.startswith(":", end):
            raise self._wrong("expected a colon", end)
        return key, self._skip(end + 1)

    def _array(self, start: int, line: int) -> tuple[Node, int]:
        items: list[Node] = []
        position = self._skip(start)
        if self._text.startswith("]", position):
            return Node(items, line), position + 1
        while True:
            self._steps.append(len(items))
            node, end = self._value(position)
            self._steps.pop()
            items.append(node)
            position, closed = self._next(end, "]")
            if closed:
                return Node(items, line), position

    def _next(self, end: int, closing: str) -> tuple[int, bool]:
        """Return where the next item begins, or what follows the closing bracket."""
        after = _AFTER.match(self._text, end)
        if after is None or after[1] not in (",", closing):
            raise self._wrong(f'expected a comma or "{closing}"', self._skip(end))
        return after.end(), after[1] == closing

    def _string(self, start: int) -> tuple[str, int]:
        if plain := _PLAIN_STRING.match(self._text, start):
            return plain[1], plain.end()
        try:
            text, end = _STRINGS.raw_decode(self._text, start)
        except json.JSONDecodeError as error:
            position = error.pos
        else:
            return without_surrogates(text), end
        # Raised outside of the handler: the decoder's exception holds the whole text.
        raise self._wrong("expected a string that is closed, on one line and with known escapes", position)

    def _skip(self, position: int) -> int:
        space = _SPACE.match(self._text, position)
        return position if space is None else space.end()

    def _line_at(self, position: int) -> int:
        self._line += self._text.count("\n", self._counted, position)
        self._counted = max(position, self._counted)
        return self._line

    def _place(self, position: int, *more: str) -> Place:
        return Place(self._file, path_of((*self._steps, *more)), self._line_at(position))

    def _wrong(self, message: str, position: int) -> ConfigurationError:
        return syntax_error(f"it is not JSON: {message}", self._place(position), self._hint(position))

    def _hint(self, position: int) -> str:
        rest = self._text[position : position + 2]
        before = self._text[:position].rstrip(" \t\r\n")
        if rest[:1] in ("}", "]") and before.endswith(","):
            return "remove the comma before the closing bracket"
        if rest[:1] == "#" or rest in ("//", "/*"):
            return "remove the comment: JSON has no comments"
        if rest[:1] == "'":
            return "JSON takes double quotes only"
        return "a file that begins with { is read as JSON, not as YAML"


def _merge(earlier: Node, later: Node) -> Node:
    """Merge a repeated field as Go does: objects are merged, and null leaves a scalar unchanged."""
    if isinstance(earlier.value, dict) and isinstance(later.value, dict):
        fields = dict(earlier.value)
        for key, node in later.value.items():
            fields[key] = _merge(fields[key], node) if key in fields else node
        return Node(fields, later.line)
    if later.value is None and not isinstance(earlier.value, (dict, list)):
        return earlier
    return later


def _number(match: re.Match[str]) -> int | float:
    is_whole = match[1] is None and match[2] is None
    return int(match[0]) if is_whole and len(match[0]) < _MOST_DIGITS else float(match[0])
