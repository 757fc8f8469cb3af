"""Reads a TOML file of a container runtime: bounded, with the line of each table, and collecting all errors.

Both runtimes compare key names without regard to case and ignore unknown keys. A value of the wrong type makes them
reject the file. Here an unknown key is a warning, and all errors of a file are reported together.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeVar

from ostiary.core.text import printable
from ostiary.core.yaml.document import join
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem

T = TypeVar("T")
MAX_BYTES = 1024 * 1024
# tomllib's messages end with the position, and may quote a character of the file.
_LINE = re.compile(r"\(at line (\d+), column \d+\)")
_LOGIN = re.compile(r'\["(?:[^"\\]|\\.)*@')
_LONG_STRING = re.compile(r'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'', re.DOTALL)
# Nothing in a header spans lines; only a comment can follow it.
_HEADER = re.compile(r"\s*\[\[?[^\n]+\]\]?\s*(?:#.*)?")


class TomlFile:
    """One file: its `root`, the errors found (`problems`) and what is ignored (`warnings`)."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        text, value = self._parse(data)
        self.headers = tuple(table_headers(text))
        self.lines = _lines_of(self.headers)
        self.root = TomlTable(self, value, "")

    def _parse(self, data: bytes) -> tuple[str, dict[str, object]]:
        if len(data) > MAX_BYTES:
            self.problems.append(Problem(f"it is larger than {MAX_BYTES} bytes", Place(self.name)))
            return "", {}
        try:
            text = data.decode("utf-8")
            return text, tomllib.loads(text)
        except UnicodeDecodeError:
            self.problems.append(Problem("it is not UTF-8", Place(self.name)))
        except RecursionError:
            self.problems.append(Problem("it is nested too deeply", Place(self.name)))
        except tomllib.TOMLDecodeError as error:
            # The message itself is not shown: it may quote the file.
            line = _LINE.search(str(error))
            self.problems.append(Problem("it is not TOML", Place(self.name, line=int(line[1]) if line else None)))
        return "", {}

    def place(self, path: str) -> Place:
        # A key may be an address with a login in it.
        return Place(self.name, _LOGIN.sub('["***@', path), self.lines.get(path))


class TomlTable:
    """A table of a file. Keys that are read are known; `finish` warns about all others."""

    def __init__(self, file: TomlFile, values: Mapping[str, object], path: str) -> None:
        self._file = file
        self._values = values
        self._path = path
        self._known: set[str] = set()

    @property
    def place(self) -> Place:
        return self._file.place(self._path)

    def string(self, key: str) -> str:
        return self._get(key, str, "a string") or ""

    def boolean(self, key: str) -> bool:
        return bool(self._get(key, bool, "true or false"))

    def strings(self, key: str) -> tuple[str, ...] | None:
        """Return the texts; None if the key is absent: an empty list may replace an earlier one."""
        value = self._get(key, list, "a list of strings")
        if value is None:
            return None
        texts = tuple(item for item in value if isinstance(item, str))
        if len(texts) != len(value):
            self.problem(f"{key} is not a list of strings")
            return ()
        return texts

    def mapping(self, key: str) -> Mapping[str, object]:
        """Return a table whose keys are arbitrary names."""
        return self._get(key, dict, "a table") or {}

    def table(self, key: str) -> TomlTable:
        return TomlTable(self._file, self.mapping(key), join(self._path, key))

    def tables(self, key: str) -> tuple[TomlTable, ...]:
        value = self._get(key, list, "an array of tables") or []
        tables = [item for item in value if isinstance(item, dict)]
        if len(tables) != len(value):
            self.problem(f"{key} is not an array of tables", f"write [[{key}]]")
            return ()
        path = join(self._path, key)
        return tuple(TomlTable(self._file, item, join(path, number)) for number, item in enumerate(tables))

    def ignore(self, *keys: str) -> None:
        """Accept these keys with any value; they are not used."""
        self._known.update(keys)

    def problem(self, message: str, hint: str | None = None) -> None:
        self._file.problems.append(Problem(message, self.place, hint))

    def warning(self, message: str, hint: str | None = None) -> None:
        self._file.warnings.append(Problem(message, self.place, hint))

    def finish(self) -> None:
        for key in self._values:
            if key.lower() not in self._known:
                close = get_close_matches(key.lower(), sorted(self._known), n=1)
                hint = f"did you mean {close[0]}?" if close else None
                self.warning(f"unknown key {printable(key)}, which is passed over", hint)

    def _get(self, key: str, kind: type[T], expected: str) -> T | None:
        self._known.add(key)
        value = self._values.get(key)
        if value is None:
            value = next((value for name, value in self._values.items() if name.lower() == key), None)
        if value is None or isinstance(value, kind):
            return value
        self.problem(f"{key} is not {expected}")
        return None


def read_toml(path: str) -> TomlFile | None:
    """Read the file at *path*; None if there is none. A file that cannot be read has a problem that says so."""
    try:
        with open(path, "rb") as file:
            return TomlFile(path, file.read(MAX_BYTES + 1))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
        unreadable = TomlFile(path, b"")
        unreadable.problems.append(Problem(f"it cannot be read: {why}", Place(path)))
        return unreadable


def unusable(problems: Sequence[Problem]) -> ConfigurationError:
    return ConfigurationError("the mirror configuration cannot be used", problems=problems, code="mirrors-invalid")


def names_in(folder: str) -> list[str]:
    """Return the names in *folder*, sorted by their bytes; none if it does not exist. Raises `ConfigurationError`."""
    try:
        return sorted(os.listdir(folder), key=os.fsencode)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
        raise unusable([Problem(f"the directory cannot be read: {why}", Place(folder))]) from error


# --- positions of tables ---


def table_headers(text: str) -> Iterator[tuple[int, tuple[str, ...], bool]]:
    """Yield the header of each table in the order of the text: its line, its keys, and whether it is in an array."""
    # Text inside a string may look like a header. Keep the line breaks.
    plain = _LONG_STRING.sub(lambda found: "''" + "\n" * found[0].count("\n"), text)
    for number, line in enumerate(plain.split("\n"), 1):
        if _HEADER.fullmatch(line):
            keys = _keys_of(line)
            if keys:
                yield number, keys, line.lstrip().startswith("[[")


def _keys_of(header: str) -> tuple[str, ...]:
    try:
        value: object = tomllib.loads(header)
    except (tomllib.TOMLDecodeError, RecursionError):
        return ()
    keys: list[str] = []
    while value:
        # The last key of an array header holds a list of one table.
        if isinstance(value, dict):
            (key, value), *_ = value.items()
            keys.append(key)
        else:
            value = None
    return tuple(keys)


def _lines_of(headers: Sequence[tuple[int, tuple[str, ...], bool]]) -> dict[str, int]:
    """Return the header line of each table by the table's path."""
    last: dict[tuple[str, ...], int] = {}
    lines: dict[str, int] = {}
    for line, keys, is_array in headers:
        if is_array:
            last[keys] = last.get(keys, -1) + 1
            # Nested arrays restart.
            for inner in [other for other in last if len(other) > len(keys) and other[: len(keys)] == keys]:
                del last[inner]
        path = ""
        for depth, key in enumerate(keys, 1):
            path = join(path, key)
            if keys[:depth] in last:
                path = join(path, last[keys[:depth]])
        lines.setdefault(path, line)
    return lines
