"""YAML as Kubernetes reads it: scalars follow go-yaml v2, which sigs.k8s.io/yaml uses.

go-yaml recognizes fewer forms than YAML 1.1 and others than PyYAML: a lone ``y`` is a boolean, a date and ``12:30`` are
strings.
"""

from __future__ import annotations

import codecs
import math
import re
import struct
from collections.abc import Iterator
from typing import cast

import yaml

from ostiary.core.go_text import decode_base64, decode_like_go
from ostiary.core.text import printable
from ostiary.core.yaml.document import MAX_DEPTH, Dialect, Document, Node, Scalar, join, syntax_error, too_deep
from ostiary.errors import ConfigurationError
from ostiary.model import Place

WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True),
    **dict.fromkeys(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], False),
    **dict.fromkeys([".nan", ".NaN", ".NAN"], math.nan),
    **dict.fromkeys([".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"], math.inf),
    **dict.fromkeys(["-.inf", "-.Inf", "-.INF"], -math.inf),
}
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0[oO]?([0-7]+)|0[bB]([01]+)|(0|[1-9][0-9]*))")
_BASES = (16, 8, 2, 10)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_DOT_FIRST = re.compile(r"\.[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+(?:_[0-9]+)*)?")
# Enough for 64 bits in any base. Longer numbers are not integers, and Python may fail to parse them.
_MOST_DIGITS = 80
_TIMESTAMP = re.compile(
    r"[0-9]{4}-(0?[1-9]|1[0-2])-(0?[1-9]|[12][0-9]|3[01])"
    r"([Tt ][0-9]{1,2}:[0-9]{1,2}:[0-9]{1,2}([.,][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})?)?"
)
_PREFIX = "tag:yaml.org,2002:"


class ScalarError(ValueError):
    """A scalar does not fit its tag."""


def resolve(text: str, tag: str | None, *, implicit: bool) -> Scalar:
    """Return the value of a scalar, which may be infinite or NaN; raises `ScalarError`."""
    name = (tag or "").removeprefix(_PREFIX)
    if name == "binary":
        return _binary(text)
    if name in _TAGGED:
        return _resolve_tagged(name, text)
    return _resolve(text) if not tag and implicit else text


def key_of(value: Scalar) -> str | None:
    """Return the JSON object key for a scalar; None if it cannot be a key. JSON spells every key as a string."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value < 2**63 else None
    return _go_float(value) if isinstance(value, float) else None


def _resolve(text: str) -> Scalar:
    if text in WORDS:
        return WORDS[text]
    if text[0] not in "+-.0123456789":
        return text
    # After a leading dot, underscores must be between digits, as in Go itself.
    digits = text if text[0] == "." and not _DOT_FIRST.fullmatch(text) else text.replace("_", "")
    number = _integer(digits)
    if number is not None:
        return number
    if _FLOAT.fullmatch(digits) and math.isfinite(float(digits)):
        return float(digits)
    return text


def _integer(digits: str) -> int | None:
    match = _INTEGER.fullmatch(digits)
    if match is None or len(digits) > _MOST_DIGITS:
        return None
    sign, *numerals = match.groups()
    size = next(int(numeral, base) for numeral, base in zip(numerals, _BASES, strict=True) if numeral)
    # Go tries int64 and then, without a sign, uint64.
    largest = {"": 2**64 - 1, "+": 2**63 - 1, "-": 2**63}[sign]
    if size > largest:
        return None
    return -size if sign == "-" else size


_TAGGED = ("bool", "float", "int", "null", "timestamp")


def _resolve_tagged(name: str, text: str) -> Scalar:
    if name == "timestamp":
        if not _TIMESTAMP.fullmatch(text):
            raise ScalarError("it is not a !!timestamp")
        return text
    value = _resolve(text)
    if name == "float" and type(value) is int and value < 2**63:
        return float(value)
    if {bool: "bool", float: "float", int: "int", type(None): "null"}.get(type(value)) != name:
        raise ScalarError(f"it is not a !!{name}")
    return value


def _binary(text: str) -> str:
    data = decode_base64(text)
    if data is None:
        raise ScalarError("!!binary needs base64")
    return decode_like_go(data)


def _go_float(value: float) -> str:
    """Format *value* like Go's ``FormatFloat(value, 'g', -1, 32)``, with YAML's names for infinity and NaN."""
    try:
        (single,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        single = math.copysign(math.inf, value)
    if not math.isfinite(single):
        return ".nan" if math.isnan(single) else ".inf" if single > 0 else "-.inf"
    shortest = next(text for digits in range(9) if _same_single(text := f"{single:.{digits}e}", single))
    mantissa, _, exponent = shortest.partition("e")
    if -4 <= int(exponent) < 6:
        return f"{float(shortest):.{max(0, len(mantissa.lstrip('-').replace('.', '')) - 1 - int(exponent))}f}"
    return f"{mantissa}e{exponent}"


def _same_single(text: str, single: float) -> bool:
    try:
        return bool(struct.unpack("f", struct.pack("f", float(text)))[0] == single)
    except OverflowError:
        return False


# Parsing into nodes.

# How many values aliases may add to a document: nine lines of aliases can expand to billions of values.
MAX_REPEATED = 100_000

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_QUOTE = 'put the value in quotes: YAML takes an unquoted {} for {}, as in "*.example.com"'
_MERGE_TAG = "tag:yaml.org,2002:merge"


def read_yaml(source: str | bytes, *, file: str | None, dialect: Dialect) -> Iterator[Document]:
    """Yield every document of *source*, one by one. An error is raised only when its document is reached."""
    return _Composer(_decode(source, file), file, dialect).documents()


# Characters that YAML forbids in any text.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _decode(source: str | bytes, file: str | None) -> str:
    text = source if isinstance(source, str) else _decode_bytes(source, file)
    if forbidden := _FORBIDDEN.search(text):
        line = text.count("\n", 0, forbidden.start()) + 1
        raise syntax_error(f"the character U+{ord(forbidden[0]):04X} is not allowed", Place(file, line=line))
    return text


def _decode_bytes(source: bytes, file: str | None) -> str:
    # kubectl also accepts UTF-16 with a byte order mark, which redirection in PowerShell writes.
    wide = source.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return source.decode("utf-16" if wide else "utf-8")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
    # Raised outside of the handler: the decoder's exception holds the whole text.
    raise syntax_error("it is not UTF-8 text", Place(file, line=line), hint="save the file as UTF-8")


class _Composer:
    """Builds nodes from the parser's events.

    PyYAML's own composer is not used: it crashes the interpreter on deep nesting and resolves scalars differently from
    Kubernetes.
    """

    def __init__(self, text: str, file: str | None, dialect: Dialect) -> None:
        self._text, self._file, self._dialect = text, file, dialect
        self._events = cast("Iterator[yaml.Event]", yaml.parse(text, Loader=LOADER))
        self._anchors: dict[str, Node] = {}
        self._unfinished: list[Node] = []
        self._duplicates: list[Place] = []
        self._repeated = 0
        self._flow_depth = 0

    def documents(self) -> Iterator[Document]:
        has_more = self._reach_document()
        while has_more:
            self._anchors, self._duplicates = {}, []
            root = self._node(self._take(), "", 0)
            self._take()  # the end of the document
            later: ConfigurationError | None = None
            try:
                has_more = self._reach_document()
            except ConfigurationError as error:
                if not self._dialect.go_yaml:
                    raise
                later = error
            yield Document(root, self._file, tuple(self._duplicates), has_more or later is not None, self._dialect)
            if later is not None:
                raise later

    def _reach_document(self) -> bool:
        while not isinstance(event := self._take(), (yaml.DocumentStartEvent, yaml.StreamEndEvent)):
            pass
        return isinstance(event, yaml.DocumentStartEvent)

    def _take(self) -> yaml.Event:
        try:
            return next(self._events)
        except yaml.YAMLError as error:
            wrong = self._syntax_error(error)
        # Raised outside of the handler: PyYAML's exception holds the text of the file.
        raise wrong

    def _node(self, event: yaml.Event, path: str, depth: int, *, is_key: bool = False) -> Node:
        line = _line(event)
        self._check_depth(depth, line)
        if isinstance(event, yaml.AliasEvent):
            return self._repeat(self._node_of_anchor(event, path, line), path, depth, is_key=is_key)
        node = Node(None, line)
        if anchor := getattr(event, "anchor", None):
            # Set before the content is parsed, which may define the same anchor again.
            self._anchors[anchor] = node
        self._unfinished.append(node)
        self._flow_depth += bool(getattr(event, "flow_style", False))
        if isinstance(event, yaml.MappingStartEvent):
            node.value = self._mapping(path, depth)
        elif isinstance(event, yaml.SequenceStartEvent):
            node.value = self._sequence(path, depth)
        else:
            node.value = self._scalar(cast("yaml.ScalarEvent", event), path, line, is_key=is_key)
        self._unfinished.pop()
        self._flow_depth -= bool(getattr(event, "flow_style", False))
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
            is_merge = _is_merge(event)
            if is_merge and (anchor := getattr(event, "anchor", None)):
                self._anchors[anchor] = Node("<<", _line(event))
            if not is_merge:
                key = self._key(event, path, depth)
                self._set(fields, key, self._node(self._take(), join(path, key), depth + 1), path, _line(event))
            elif self._dialect.go_yaml:
                for source in reversed(self._merge_sources(join(path, "<<"), depth)):
                    for key, node in cast("dict[str, Node]", source.value).items():
                        self._set(fields, key, node, path, _line(event))
            else:
                merged += self._merge_sources(join(path, "<<"), depth)
        for source in merged:
            for key, node in cast("dict[str, Node]", source.value).items():
                fields.setdefault(key, node)
        return fields

    def _set(self, fields: dict[str, Node], key: str, node: Node, path: str, line: int | None) -> None:
        if key in fields:
            self._duplicates.append(Place(self._file, join(path, key), line))
        fields[key] = node

    def _merge_sources(self, path: str, depth: int) -> list[Node]:
        """Return the mappings behind a ``<<``: a single one, or those of an inline list."""
        event = self._take()
        node = self._node(event, path, depth)
        is_list = isinstance(event, yaml.SequenceStartEvent) and isinstance(node.value, list)
        sources = cast("list[Node]", node.value) if is_list else [node]
        if not all(isinstance(source.value, dict) for source in sources):
            raise self._wrong("only mappings can be merged", path, node.line)
        return sources

    def _key(self, event: yaml.Event, path: str, depth: int) -> str:
        value = self._node(event, path, depth + 1, is_key=True).value
        key = None if isinstance(value, (list, dict)) else key_of(value)
        if key is None:
            hint = "put the key in quotes"
            raise self._wrong("a key must be a string, a number or a boolean", path, _line(event), hint)
        return key

    def _scalar(self, event: yaml.ScalarEvent, path: str, line: int | None, *, is_key: bool) -> Scalar:
        if self._flow_depth and self._dialect.go_yaml and not event.style and "?" in event.value:
            # go-yaml starts a key there in any position; libyaml has become more lenient since.
            raise self._wrong("a ? between brackets or braces", path, line, "put the value in quotes")
        try:
            value = resolve(event.value, event.tag, implicit=event.implicit[0])
        except ScalarError as error:
            raise self._wrong(str(error), path, line) from None
        return value if is_key else self._require_finite(value, path, line)

    def _require_finite(self, value: Scalar, path: str, line: int | None) -> Scalar:
        """Reject infinity and NaN: Kubernetes converts YAML to JSON, which cannot hold them.

        As keys they become strings.
        """
        if isinstance(value, float) and not math.isfinite(value):
            raise self._wrong("neither infinity nor .nan can be a value", path, line)
        return value

    def _node_of_anchor(self, alias: yaml.AliasEvent, path: str, line: int | None) -> Node:
        name = str(alias.anchor)
        if name not in self._anchors:
            hint = _QUOTE.format("*", "a reference")
            raise self._wrong("it refers to an anchor that is not defined before it", path, line, hint)
        node = self._anchors[name]
        if any(node is other for other in self._unfinished):
            raise self._wrong("it refers to a value that contains itself", path, line)
        return node

    def _repeat(self, node: Node, path: str, depth: int, *, is_key: bool = False) -> Node:
        self._check_depth(depth, node.line)
        self._repeated += 1
        if self._repeated > MAX_REPEATED:
            raise self._wrong(f"its references repeat more than {MAX_REPEATED} values", path, node.line)
        if isinstance(node.value, dict):
            return Node({key: self._repeat(item, path, depth + 1) for key, item in node.value.items()}, node.line)
        if isinstance(node.value, list):
            return Node([self._repeat(item, path, depth + 1) for item in node.value], node.line)
        if not is_key:
            self._require_finite(node.value, path, node.line)
        return node

    def _check_depth(self, depth: int, line: int | None) -> None:
        if depth > MAX_DEPTH:
            raise too_deep(Place(self._file, line=line))

    def _wrong(self, message: str, path: str, line: int | None, hint: str | None = None) -> ConfigurationError:
        return syntax_error(message, Place(self._file, path, line), hint)

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
    if not isinstance(event, yaml.ScalarEvent) or event.value != "<<":
        return False
    return bool(event.implicit[0]) or event.tag == _MERGE_TAG
