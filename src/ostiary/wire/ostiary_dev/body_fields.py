"""The fields of a body, checked: for the decoders of the gateway's own API. Pure.

Each function raises `ValueError` with a message that the sender may read. A field that we do not know is an error: what
somebody asked for must not be left out in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def check_kind(fields: Mapping[str, Any], *kinds: str) -> None:
    if fields.get("kind", kinds[0]) not in kinds:
        raise ValueError(f"the kind must be {' or '.join(kinds)}")


def object_fields(value: object, what: str, known: Sequence[str]) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not a JSON object")
    unknown = sorted(set(value) - set(known))
    if unknown:
        raise ValueError(f"{what} has an unknown field; known are {', '.join(known)}")
    return value


def text_field(fields: Mapping[str, Any], key: str, what: str, longest: int) -> str | None:
    value = fields.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{what} is not a string")
    if len(value) > longest:
        raise ValueError(f"{what} is longer than {longest} characters")
    if not value.isprintable():
        raise ValueError(f"{what} contains a character that cannot be shown")
    return value
