"""Reads YAML and JSON and records the position of each value.

    read, parse  ->  Document  ->  ConfigReader  ->  ConfigSection  ->  the loader's own dataclasses

The `Dialect` selects the rules: `KUBELET`, `KUBERNETES`, `CLIENTCMD`, `DOCKER`, or our own, `OSTIARY`. A loader reads
one field after the other from a `ConfigSection`. Errors are collected with their positions, so that a user fixes a file
once and not once per error. Scalars mean what they mean to Kubernetes: ``y`` and ``on`` are booleans, a date is a
string. Errors name lines and paths and never quote a value, because it may be a password.
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

Source: TypeAlias = "str | bytes"

MAX_BYTES = 16 * 1024 * 1024

# White space according to Go's unicode.IsSpace, followed by a brace.
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
    """Return the first document of a file.

    If the file cannot be opened, the OSError is the ``__cause__`` of the error.
    """
    return parse(read_bytes(path), file=os.fspath(path), dialect=dialect)


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a file for `parse`, which rejects one that is too large."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
        problem = Problem(why, Place(name))
        raise ConfigurationError("a file cannot be read", problems=[problem], code="config-unreadable") from error


def parse(source: Source, *, file: str | None = None, dialect: Dialect = OSTIARY) -> Document:
    """Return the first document of a text; an empty text gives an empty document."""
    empty = Document(Node(None, 1), file, dialect=dialect)
    return next(parse_all(source, file=file, dialect=dialect), empty)


def parse_all(source: Source, *, file: str | None = None, dialect: Dialect = OSTIARY) -> Iterator[Document]:
    """Yield every document of a text, one by one. An error is raised only when its document is reached.

    A JSON text is one document.
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
