"""Reads YAML and JSON, and remembers where each value stood. Every door reads its files through this.

    read, parse  ->  Document  ->  Reading  ->  Fields  ->  the door's own dataclasses

The `Dialect` says by whose rules: `KUBELET`, `KUBERNETES`, `CLIENTCMD`, `DOCKER`, or our own, `OSTIARY`.
A loader asks `Fields` for one field after the other; mistakes are collected with their places, so that a
person mends a file once and not once per mistake. What scalars mean is what they mean to Kubernetes:
``y`` and ``on`` are booleans, a date is a string. Errors name lines and paths and never quote a value,
because the value may be a password.
"""

from ostiary.core.config.dialect import CLIENTCMD, DOCKER, KUBELET, KUBERNETES, OSTIARY, Dialect, fold
from ostiary.core.config.document import MAX_DEPTH, Document, Json, Node, Scalar, join, plain
from ostiary.core.config.fields import Fields, Reading
from ostiary.core.config.reader import MAX_BYTES, Source, parse, parse_all, read, read_bytes

__all__ = [
    "CLIENTCMD",
    "DOCKER",
    "KUBELET",
    "KUBERNETES",
    "MAX_BYTES",
    "MAX_DEPTH",
    "OSTIARY",
    "Dialect",
    "Document",
    "Fields",
    "Json",
    "Node",
    "Reading",
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
