"""Fast reader for the YAML that tools print, five times faster than the full parser. Used for files of many manifests.

    text -> documents -> each one line by line, or by `read_yaml` if a line is not plain

Plain means block mappings and lists whose keys and values are on one line: what kubectl and Helm print, and most of
what users write. Anything else leaves the document to the full parser. An error, or a construct that spans documents,
leaves the whole file to it. So the result is the same as the full parser's, or None.
"""

from __future__ import annotations

import math
import re
from typing import TypeAlias

from ostiary.core.yaml.document import OSTIARY, Document, Node, Scalar
from ostiary.core.yaml.yaml_reader import WORDS, read_yaml, resolve
from ostiary.errors import ConfigurationError

# Deeper blocks are left to the full parser, which limits nesting.
_MOST_COLUMNS = 60
# Size of the line cache: many lines are the same in every document.
_MOST_LINES = 4096

_CHARACTER = r"[\w.@/+=,~-]"
_LINE = re.compile(
    rf"""
    (?P<space>[ ]{{0,{_MOST_COLUMNS}}})
    (?P<dash>-[ ])?
    (?:(?P<key>[A-Za-z_][\w./-]{{0,120}}):(?:[ ](?=.)|$))?
    (?:
        (?P<plain>(?:[\w/~]|\.\w){_CHARACTER}*(?::{_CHARACTER}+)*(?:[ ]{_CHARACTER}+(?::{_CHARACTER}+)*)*)
        | "(?P<double>(?:[ !\#-\[\]-~]|\w)*)"
        | '(?P<single>(?:[ -&(-~]|\w)*)'
    )?
    """,
    re.VERBOSE,
)
_COMMENT = re.compile(r"[ ]*(?:#[ -~\w]*)?")
# Line breaks in YAML other than the line feed.
_OTHER_BREAKS = re.compile("[\r\x85\u2028\u2029]")


class _Irregular(Exception):
    """The document is not plain YAML."""


# One line: the column of its key or dash, whether there is a dash, the key, the value, and whether a block follows
# instead of a value. A tuple instead of a class because there are very many.
_Line: TypeAlias = "tuple[int, bool, str | None, Scalar, bool]"


def read_plain_blocks(source: bytes, *, file: str | None, most_irregular: int | None = None) -> list[Document] | None:
    """Return every document of *source* but empty ones; None if the full parser must read it, or it is invalid.

    Only for the dialect `OSTIARY`: in some others a text may be JSON or have documents that are ignored.

    Also returns None if more than *most_irregular* characters are not plain, so that the caller can have the text
    parsed elsewhere.
    """
    try:
        text = source.decode()
    except UnicodeDecodeError:
        return None
    if _OTHER_BREAKS.search(text):
        return None
    reader = _BlockReader()
    documents = []
    line, irregular = 1, 0
    chunks = text.split("\n---\n")
    for number, chunk in enumerate(chunks, 1):
        try:
            root = reader.read(chunk, line)
        except _Irregular:
            irregular += len(chunk)
            if most_irregular is not None and irregular > most_irregular:
                return None
            try:
                ending = "\n" if number < len(chunks) else ""
                documents += _read_fully(chunk + ending, line, file)
            except (_Irregular, ConfigurationError):
                return None
        else:
            if root is not None:
                documents.append(Document(root, file))
        line += chunk.count("\n") + 2
    return documents


def _read_fully(chunk: str, line: int, file: str | None) -> list[Document]:
    # Aliases are counted for the whole file, and a byte order mark is only valid at its start.
    if "&" in chunk or "\ufeff" in chunk:
        raise _Irregular
    documents = list(read_yaml(chunk, file=file, dialect=OSTIARY))
    for document in documents:
        _move(document.root, line - 1)
        if document.duplicates:
            raise _Irregular
    return [document for document in documents if document.root.value is not None]


def _move(node: Node, lines: int) -> None:
    if node.line is not None:
        node.line += lines
    if isinstance(node.value, dict):
        for item in node.value.values():
            _move(item, lines)
    elif isinstance(node.value, list):
        for item in node.value:
            _move(item, lines)


class _BlockReader:
    """Reads one document after the other. A block ends at the line that belongs to an outer block."""

    def __init__(self) -> None:
        self._seen: dict[str, _Line | None] = {}
        self._lines: list[_Line] = []
        self._numbers: list[int] = []
        self._at = 0

    def read(self, text: str, first_line: int) -> Node | None:
        """Return the mapping that *text* holds, None for an empty document; raises `_Irregular`."""
        seen = self._seen
        lines: list[_Line] = []
        numbers: list[int] = []
        for number, row in enumerate(text.split("\n"), first_line):
            try:
                line = seen[row]
            except KeyError:
                line = self._scan(row)
            if line is not None:
                lines.append(line)
                numbers.append(number)
        if not lines:
            return None
        self._lines, self._numbers, self._at = lines, numbers, 0
        root = self._mapping(0, is_item=False)
        if self._at < len(lines):
            raise _Irregular
        return root

    def _scan(self, row: str) -> _Line | None:
        """Parse one line; None for a comment or an empty line."""
        line = _scan(row)
        if len(self._seen) < _MOST_LINES:
            self._seen[row] = line
        return line

    def _mapping(self, column: int, *, is_item: bool) -> Node:
        """Read the mapping whose keys are at *column*; the first key of a list item follows a dash."""
        lines, numbers, count = self._lines, self._numbers, len(self._lines)
        fields: dict[str, Node] = {}
        at = self._at
        start = number = numbers[at]
        has_dash = is_item
        while True:
            line_column, dash, key, value, opens = lines[at]
            if dash is not has_dash or line_column + 2 * dash != column or key is None or key in fields:
                raise _Irregular
            has_dash = False
            at += 1
            if opens:
                self._at = at
                fields[key] = self._block(column)
                at = self._at
            else:
                fields[key] = Node(value, number)
            if at == count or lines[at][0] < column:
                self._at = at
                return Node(fields, start)
            number = numbers[at]

    def _block(self, column: int) -> Node:
        """Read the block of a key at *column* that has no value on its line."""
        if self._at == len(self._lines):
            raise _Irregular
        line_column, dash, *_ = self._lines[self._at]
        if dash and line_column >= column:
            return self._sequence(line_column)
        if line_column > column:
            return self._mapping(line_column, is_item=False)
        raise _Irregular

    def _sequence(self, column: int) -> Node:
        lines, numbers, count = self._lines, self._numbers, len(self._lines)
        items: list[Node] = []
        start = numbers[self._at]
        while self._at < count:
            line_column, dash, key, value, _ = lines[self._at]
            if line_column < column or (line_column == column and not dash):
                break
            if line_column > column:
                raise _Irregular
            if key is None:
                items.append(Node(value, numbers[self._at]))
                self._at += 1
            else:
                items.append(self._mapping(column + 2, is_item=True))
        return Node(items, start)


def _scan(row: str) -> _Line | None:
    match = _LINE.fullmatch(row)
    if match is None:
        if _COMMENT.fullmatch(row):
            return None
        raise _Irregular
    space, dash, key, plain, double, single = match.groups()
    value: Scalar = plain
    if plain is None:
        value = single if double is None else double
    elif not plain[0].isalpha() or plain in WORDS:
        value = _resolve_plain(plain)
    opens = plain is None and value is None
    if key is None:
        if dash is None and opens:
            return None
        if dash is None or opens:
            raise _Irregular
    elif key in WORDS:
        # YAML may read a key as a boolean, as in "on: ...".
        raise _Irregular
    return len(space), dash is not None, key, value, opens


def _resolve_plain(text: str) -> Scalar:
    value = resolve(text, None, implicit=True)
    if isinstance(value, float) and not math.isfinite(value):
        raise _Irregular
    return value
