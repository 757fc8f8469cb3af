"""Changes one value in the text of a YAML or JSON file and leaves every other byte as it is.

    text, path, value  ->  set_value | append_item | remove_item  ->  the new text

A parser and a dumper would lose the comments, order and quoting of a file that users edit by hand. Here the parser only
finds the position of a value, and the text is replaced there. The result is verified: the new text must mean exactly
the old value with this one change. If it does not (if the value is an alias, say), `EditRefused` is raised. Pure.
"""

from __future__ import annotations

import copy
import json
import re
from typing import cast

import yaml

from ostiary.core.yaml import Json, parse
from ostiary.errors import ConfigurationError

Step = str | int
_LINE_END = re.compile(r"\r\n|\r|\n|\Z")
_REST_OF_LINE = re.compile(r"[ \t]*(#[^\r\n]*)?(?=\r|\n|\Z)")
_IN_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


class EditRefused(ValueError):
    """The text cannot be changed there without changing something else."""


def set_value(text: str, path: tuple[Step, ...], value: Json) -> str:
    """Return *text* with *value* at *path*, whose parent must exist. An empty path is the whole document."""
    expected = _with_value(parse(text).value, path, value)
    return _verify(_Editor(text).set(path, value), expected)


def append_item(text: str, path: tuple[Step, ...], value: Json) -> str:
    """Return *text* with *value* appended to the list at *path*, which must exist; it may be empty or null."""
    old = _at(parse(text).value, path)
    expected = _with_value(parse(text).value, path, [*cast("list[Json]", old or []), value])
    return _verify(_Editor(text).append(path, value), expected)


def remove_item(text: str, path: tuple[Step, ...], position: int) -> str:
    """Return *text* without the item at *position* of the list at *path*. A comment above the item stays."""
    items = list(cast("list[Json]", _at(parse(text).value, path)))
    expected = _with_value(parse(text).value, path, [*items[:position], *items[position + 1 :]])
    return _verify(_Editor(text).remove(path, position), expected)


def dump(value: Json) -> str:
    """Dump *value* as YAML that means the same to Kubernetes.

    PyYAML leaves ``y`` unquoted, which go-yaml reads as true.
    """
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if _is_text(text) else '"')


def _is_text(text: str) -> bool:
    """Return whether unquoted *text* is read as itself. PyYAML quotes what cannot be written without quotes."""
    try:
        return "\n" in text or isinstance(parse(text).value, (str, dict, list))
    except ConfigurationError:
        return True


_Dumper.add_representer(str, _represent_text)


def _verify(text: str, expected: Json) -> str:
    try:
        actual = parse(text).value
    except ConfigurationError:
        actual = None
    if actual != expected:
        raise EditRefused("the text cannot be changed there without changing something else")
    return text


def _at(value: Json, path: tuple[Step, ...]) -> Json:
    for step in path:
        value = cast("dict[Step, Json]", value)[step]
    return value


def _with_value(value: Json, path: tuple[Step, ...], new: Json) -> Json:
    if not path:
        return new
    value = copy.deepcopy(value)
    parent = _at(value, path[:-1])
    cast("dict[Step, Json]", parent)[path[-1]] = new
    return value


class _Editor:
    def __init__(self, text: str) -> None:
        self._text = text
        self._is_json = text.lstrip("\ufeff \t\r\n").startswith("{")
        self._newline = "\r\n" if "\r\n" in text else "\n"

    def set(self, path: tuple[Step, ...], value: Json) -> str:
        root = self._compose()
        if not path:
            return self._set_document(root, value)
        *way, last = path
        parent = self._follow(root, way)
        if isinstance(parent, yaml.MappingNode) and _value_of(parent, last) is None:
            return self._insert_key(parent, str(last), value)
        return self._replace(self._follow(parent, [last]), parent, value)

    def append(self, path: tuple[Step, ...], value: Json) -> str:
        root = self._compose()
        parent, node = self._follow(root, path[:-1]), self._follow(root, path)
        if not isinstance(node, yaml.SequenceNode) or (node.flow_style and not node.value):
            return self._replace(node, parent, [value])
        last = node.value[-1]
        if node.flow_style:
            return self._cut(last.end_mark.index, last.end_mark.index, f", {_flow(value)}")
        indent = " " * node.start_mark.column
        return self._insert_line(last, indent + "- " + _block(value, indent + "  "))

    def remove(self, path: tuple[Step, ...], position: int) -> str:
        root = self._compose()
        parent, node = self._follow(root, path[:-1]), self._follow(root, path)
        if not isinstance(node, yaml.SequenceNode):
            raise EditRefused("there is no list in this place of the text")
        item = node.value[position]
        if self._is_flow(node):
            # Remove the comma that follows the item, or the one before it.
            if position == 0:
                end = node.value[1].start_mark.index if len(node.value) > 1 else item.end_mark.index
                return self._cut(item.start_mark.index, end, "")
            return self._cut(node.value[position - 1].end_mark.index, item.end_mark.index, "")
        start = item.start_mark.index - item.start_mark.column
        end = _content_end(item)
        if self._text[end - 1 : end] not in ("\n", "\r"):
            match = _LINE_END.search(self._text, end)
            end = match.end() if match else len(self._text)
        # The value of an empty list's key must be indented further than the key.
        empty = " " * (parent.start_mark.column + 2) + "[]\n" if len(node.value) == 1 else ""
        return self._cut(start, end, empty)

    def _compose(self) -> yaml.Node | None:
        text = self._text
        if self._is_json:
            # JSON may be indented with tabs, YAML may not. The marks stay where they are.
            strings = [match.span() for match in _IN_STRING.finditer(text)]
            text = _outside(text, strings)
        try:
            return cast("yaml.Node | None", yaml.compose(text, Loader=yaml.SafeLoader))
        except (yaml.YAMLError, RecursionError):
            pass
        # Raised outside of the handler: PyYAML's exception holds the text of the file.
        raise EditRefused("the text is not one document of YAML or JSON")

    def _follow(self, node: yaml.Node | None, path: tuple[Step, ...] | list[Step]) -> yaml.Node:
        for step in path:
            if isinstance(node, yaml.MappingNode):
                node = _value_of(node, step)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int):
                node = node.value[step]
            else:
                node = None
        if node is None:
            raise EditRefused("there is no such place in the text")
        return node

    # --- the three kinds of edit ---

    def _set_document(self, root: yaml.Node | None, value: Json) -> str:
        new_text = _flow(value) if self._is_json else _block(value, "")
        if root is None:
            # The document may hold only comments: they stay in front.
            start = len(self._text)
            return self._cut(start, start, self._break_before(start) + new_text + "\n")
        start, end = root.start_mark.index, _content_end(root)
        before = self._break_before(start) if not self._is_json else ""
        return self._cut(start, end, before + new_text)

    def _replace(self, node: yaml.Node, parent: yaml.Node, value: Json) -> str:
        start, end = node.start_mark.index, _content_end(node)
        if self._is_flow(parent) or not isinstance(value, (dict, list)) or not value:
            return self._cut(start, end, _space_after_colon(self._text, start) + _flow(value))
        if isinstance(node, yaml.CollectionNode) and not node.flow_style:
            return self._cut(start, end, _block(value, " " * node.start_mark.column))
        rest = _REST_OF_LINE.match(self._text, end)
        if rest is None or not isinstance(parent, yaml.MappingNode) or "\n" in self._text[start:end]:
            return self._cut(start, end, _space_after_colon(self._text, start) + _flow(value))
        # An empty value on the line of its key: insert the block below, so that a comment stays where it is.
        indent = " " * (parent.start_mark.column + (2 if isinstance(value, dict) else 0))
        below = self._newline + self._lines(indent + _block(value, indent))
        return self._text[:start] + self._text[end : rest.end()] + below + self._text[rest.end() :]

    def _insert_key(self, parent: yaml.MappingNode, key: str, value: Json) -> str:
        if self._is_flow(parent):
            pair = f"{json.dumps(key)}: {_flow(value)}"
            if not parent.value:
                return self._cut(parent.start_mark.index + 1, parent.start_mark.index + 1, pair)
            end = parent.value[-1][1].end_mark.index
            return self._cut(end, end, f", {pair}")
        indent = " " * parent.start_mark.column
        return self._insert_line(parent, indent + _block({key: value}, indent))

    def _insert_line(self, node: yaml.Node, new_text: str) -> str:
        """Insert *new_text* on lines of its own below the last line of *node*, which is in block style."""
        end = _content_end(node)
        if self._text[end - 1 : end] not in ("\n", "\r"):
            rest = _REST_OF_LINE.match(self._text, end)
            if rest is None:
                raise EditRefused("something else follows on the same line")
            match = _LINE_END.match(self._text, rest.end())
            end = match.end() if match else rest.end()
        return self._cut(end, end, self._break_before(end) + new_text + "\n")

    # --- text ---

    def _is_flow(self, node: yaml.Node) -> bool:
        return self._is_json or (isinstance(node, yaml.CollectionNode) and bool(node.flow_style))

    def _break_before(self, position: int) -> str:
        before = self._text[:position].lstrip("\ufeff")
        return "" if not before or before.endswith(("\n", "\r")) else "\n"

    def _cut(self, start: int, end: int, new_text: str) -> str:
        return self._text[:start] + self._lines(new_text) + self._text[end:]

    def _lines(self, new_text: str) -> str:
        return new_text.replace("\n", self._newline)


def _outside(text: str, strings: list[tuple[int, int]]) -> str:
    parts, at = [], 0
    for start, end in strings:
        parts += [text[at:start].replace("\t", " "), text[start:end]]
        at = end
    return "".join([*parts, text[at:].replace("\t", " ")])


def _space_after_colon(text: str, position: int) -> str:
    """Return the space that a key's colon needs behind it."""
    return " " if text[position - 1 : position] == ":" else ""


def _value_of(mapping: yaml.MappingNode, key: Step) -> yaml.Node | None:
    """Return the value of *key*. If the key is repeated, the last one counts."""
    values = [value for name, value in mapping.value if isinstance(name, yaml.ScalarNode) and name.value == key]
    return cast("yaml.Node", values[-1]) if values else None


def _content_end(node: yaml.Node) -> int:
    """Return where the text of *node* ends. To PyYAML a block extends to the next one, including comments."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)


def _flow(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _block(value: Json, indent: str) -> str:
    """Format *value* in block style; the first line is not indented, the others are indented by *indent*."""
    first, *more = dump(value).rstrip("\n").removesuffix("\n...").split("\n")
    return "\n".join([first, *(indent + line if line else line for line in more)])
