"""Reads PKCS#11 URIs (RFC 7512), without the scheme. Pure.

    token=card;object=kube;type=private?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/pin

What the RFC leaves to the reader is refused here and not ignored: attributes that nobody knows, the same attribute
twice, and a PIN in the text itself (``pin-value``), where everybody reads it who may read the configuration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

# RFC 7512, 2.3: what may stand in a value as it is. Everything else is percent-encoded.
_UNRESERVED = r"A-Za-z0-9\-._~"
_PATH_VALUE = re.compile(rf"(?:[{_UNRESERVED}:\[\]@!$'()*+,=&]|%[0-9A-Fa-f]{{2}})*")
_QUERY_VALUE = re.compile(rf"(?:[{_UNRESERVED}:\[\]@!$'()*+,=/?|]|%[0-9A-Fa-f]{{2}})*")

_TEXTS = {
    "token": "token",
    "manufacturer": "manufacturer",
    "serial": "serial",
    "model": "model",
    "library-manufacturer": "library_manufacturer",
    "library-description": "library_description",
    "library-version": "library_version",
    "slot-description": "slot_description",
    "slot-manufacturer": "slot_manufacturer",
    "slot-id": "slot_id",
    "object": "object",
    "type": "type",
    "id": "id",
}
_USED = ("token", "manufacturer", "serial", "model", "slot-id", "object", "type", "id")
_QUERY = ("pin-source", "pin-value", "module-name", "module-path")
PRIVATE = "private"


@dataclass(frozen=True, slots=True)
class Pkcs11Uri:
    """Which token, which key, and by which library. Empty is what the URI leaves open."""

    token: str = ""
    manufacturer: str = ""
    serial: str = ""
    model: str = ""
    slot_id: int | None = None
    object: str = ""
    id: bytes = b""
    module_path: str = ""
    pin_source: str = ""


def parse_uri(text: str) -> Pkcs11Uri:
    """Raises `ValueError` with a sentence, which never quotes a value."""
    path, question, query = text.partition("?")
    attributes = _attributes(path.split(";") if path else [], _PATH_VALUE, tuple(_TEXTS))
    options = _attributes(query.split("&") if question else [], _QUERY_VALUE, _QUERY)
    if "pin-value" in options:
        raise ValueError("pin-value would be read by everybody who can read this text: use pin-source=file:/path")
    if "module-name" in options:
        raise ValueError("module-name means a different library on each machine: use module-path=/path/of/library.so")
    for name in attributes:
        if name not in _USED:
            raise ValueError(f"{name} says nothing about the key: use token, serial, object and id")
    if attributes.get("type", PRIVATE.encode()) != PRIVATE.encode():
        raise ValueError("type is not private, and only private keys sign")
    if not attributes.get("object") and not attributes.get("id"):
        raise ValueError("it names no key: add object=LABEL or id=%01")
    return Pkcs11Uri(
        **{
            name: _text(name, attributes.get(name, b""))
            for name in ("token", "manufacturer", "serial", "model", "object")
        },
        slot_id=_slot(attributes.get("slot-id")),
        id=attributes.get("id", b""),
        module_path=_text("module-path", options.get("module-path", b"")),
        pin_source=_text("pin-source", options.get("pin-source", b"")),
    )


def _attributes(parts: list[str], value_pattern: re.Pattern[str], known: tuple[str, ...]) -> dict[str, bytes]:
    attributes: dict[str, bytes] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError("an attribute has no value: they are written name=value")
        if name not in known:
            raise ValueError(f"it has an attribute that is none of {', '.join(known)}")
        if name in attributes:
            raise ValueError(f"duplicate attribute {name}")
        if value_pattern.fullmatch(value) is None:
            raise ValueError(f"{name} has a character that must be percent-encoded")
        attributes[name] = unquote_to_bytes(value)
    return attributes


def _text(name: str, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8") from None
    if "\0" in text:
        raise ValueError(f"{name} has a NUL in it")
    return text


def _slot(value: bytes | None) -> int | None:
    if value is None:
        return None
    if re.fullmatch(rb"[0-9]{1,20}", value) is None:
        raise ValueError("slot-id is not a number")
    return int(value)
