"""Reads YAML and JSON, and remembers where each value stood. Every door reads its files through this.

    read, parse  ->  Document  ->  Reading  ->  Fields  ->  the door's own dataclasses

The `Dialect` says by whose rules: `KUBELET`, `KUBERNETES`, `CLIENTCMD`, `DOCKER`, or our own, `OSTIARY`.
A loader asks `ConfigSection` for one field after the other; mistakes are collected with their places, so that a
person mends a file once and not once per mistake. What scalars mean is what they mean to Kubernetes:
``y`` and ``on`` are booleans, a date is a string. Errors name lines and paths and never quote a value,
because the value may be a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TypeAlias

from ostiary.core.yaml.document import (
    CLIENTCMD,
    DOCKER,
    KUBELET,
    KUBERNETES,
    MAX_DEPTH,
    OSTIARY,
    Dialect,
    Document,
    Json,
    Node,
    Scalar,
    fold,
    join,
    plain,
    syntax_error,
)
from ostiary.core.yaml.fields import ConfigReader, ConfigSection
from ostiary.core.yaml.json_reader import read_json
from ostiary.core.yaml.yaml_reader import read_yaml
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem

# A file or a text to documents, by the rules of a dialect. Every door reads its files through this.

Source: TypeAlias = "str | bytes"

MAX_BYTES = 16 * 1024 * 1024

# White space as Go's unicode.IsSpace knows it, and then a brace.
_WIDE_SPACE = (
    "\x85",
    "\xa0",
    "\u1680",
    *map(chr, range(0x2000, 0x200B)),
    "\u2028",
    "\u2029",
    "\u202f",
    "\u205f",
    "\u3000",
)
_BRACE = re.compile(rb"(?:[\t\n\v\f\r ]|" + "|".join(_WIDE_SPACE).encode() + rb")*\{")


def read(path: str | os.PathLike[str], *, dialect: Dialect = OSTIARY) -> Document:
    """The first document of a file. A file that cannot be opened is the ``__cause__`` of the error."""
    return parse(read_bytes(path), file=os.fspath(path), dialect=dialect)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """What is in a file, for `parse`, which refuses one that is too large."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
        problem = Problem(why, Place(name))
        raise ConfigurationError("a file cannot be read", problems=[problem], code="config-unreadable") from error


def parse(source: Source, *, file: str | None = None, dialect: Dialect = OSTIARY) -> Document:
    """The first document of a text; an empty text is a document that holds nothing."""
    empty = Document(Node(None, 1), file, dialect=dialect)
    return next(parse_all(source, file=file, dialect=dialect), empty)


def parse_all(source: Source, *, file: str | None = None, dialect: Dialect = OSTIARY) -> Iterator[Document]:
    """Every document of a text, one by one: a mistake is not found before its document is reached.

    A text that is JSON is one document.
    """
    if len(source) > MAX_BYTES:
        raise syntax_error(f"it is larger than {MAX_BYTES // 1024**2} MiB", Place(file))
    if not dialect.yaml or (dialect.json and _begins_with_brace(source)):
        return iter((read_json(source, file=file, dialect=dialect),))
    return read_yaml(source, file=file, dialect=dialect)


def _begins_with_brace(source: Source) -> bool:
    data = source if isinstance(source, bytes) else source.encode("utf-8", "replace")
    return _BRACE.match(data) is not None


__all__ = [
    "CLIENTCMD",
    "DOCKER",
    "KUBELET",
    "KUBERNETES",
    "MAX_BYTES",
    "MAX_DEPTH",
    "OSTIARY",
    "ConfigReader",
    "ConfigSection",
    "Dialect",
    "Document",
    "Json",
    "Node",
    "Scalar",
    "Source",
    "fold",
    "join",
    "parse",
    "parse_all",
    "plain",
    "read",
    "read_bytes",
]
