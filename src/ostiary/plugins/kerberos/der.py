"""Reads DER strictly: definite lengths in their shortest form, nothing left over. Pure; called by `negotiate`.

What is read here is read again by the Kerberos library. A reader that were more lenient than the library could see
another authenticator in the same bytes than the library does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

OID, OCTETS, SEQUENCE, GENERAL_STRING, INTEGER = 0x06, 0x04, 0x30, 0x1B, 0x02


class BadEncoding(ValueError):
    """These bytes are not what they should be."""


@dataclass(frozen=True, slots=True)
class Element:
    tag: int
    content: bytes


def only_element(data: bytes, tag: int) -> bytes:
    """The content of the only element in *data*, which has this *tag*."""
    element, rest = next_element(data)
    if element.tag != tag or rest:
        raise BadEncoding
    return element.content


def next_element(data: bytes) -> tuple[Element, bytes]:
    """The first element, and what follows it."""
    if len(data) < 2 or data[0] & 0x1F == 0x1F:
        raise BadEncoding
    length, start = data[1], 2
    if length >= 0x80:
        count = length & 0x7F
        start = 2 + count
        if not 1 <= count <= 4 or len(data) < start or data[2] == 0:
            raise BadEncoding
        length = int.from_bytes(data[2:start])
        if length < 0x80:
            raise BadEncoding
    if len(data) < start + length:
        raise BadEncoding
    return Element(data[0], data[start : start + length]), data[start + length :]


def elements(data: bytes) -> Iterator[Element]:
    while data:
        element, data = next_element(data)
        yield element


def fields(sequence: bytes) -> dict[int, bytes]:
    """The fields of a SEQUENCE by their numbers. Each stands once, and they are in order."""
    found: dict[int, bytes] = {}
    for element in elements(only_element(sequence, SEQUENCE)):
        number = element.tag - 0xA0
        if not 0 <= number < 0x1F or any(number <= before for before in found):
            raise BadEncoding
        found[number] = element.content
    return found
