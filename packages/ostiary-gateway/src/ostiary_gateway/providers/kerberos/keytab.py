"""Read the service principals in a keytab. The Kerberos library reads the keys themselves.

A keytab without the right principal stops the start of the gateway; the file is read again when it changes. The format
is that of MIT Kerberos, which Active Directory's ``ktpass`` writes as well.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ostiary.errors import ConfigurationError
from ostiary_gateway.providers.kerberos.principals import Principal

LARGEST = 1 << 20
_FORMAT = b"\x05\x02"


@dataclass(frozen=True, slots=True)
class KeytabEntry:
    service: Principal
    key_version: int


def read_keytab(path: str) -> tuple[KeytabEntry, ...]:
    """Return the entries. Raise `ConfigurationError` if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST or not content.startswith(_FORMAT):
            raise ValueError("it is not a keytab")
        return tuple(_entries(content))
    except OSError as error:
        why = error.strerror or "it cannot be opened"
    except (ValueError, struct.error, IndexError):
        why = "it is not a keytab"
    # Raised outside of the handler: the decoder's exception contains the content.
    raise ConfigurationError("the keytab cannot be used", cause=why, where=path)


def _entries(content: bytes) -> list[KeytabEntry]:
    entries, position = [], len(_FORMAT)
    while position < len(content):
        (size,) = struct.unpack_from(">i", content, position)
        position += 4
        if size > 0:
            entries.append(_entry(content[position : position + size], size))
        # A negative size marks a deleted entry.
        position += abs(size)
    return entries


def _entry(data: bytes, size: int) -> KeytabEntry:
    if len(data) != size:
        raise ValueError("it is cut off")
    (count,) = struct.unpack_from(">H", data)
    position, texts = 2, []
    for _ in range(count + 1):
        text, position = _counted(data, position)
        texts.append(text.decode())
    # Name type and timestamp precede the version; the key type and the key follow it.
    version = data[position + 8]
    _, position = _counted(data, position + 11)
    if len(data) >= position + 4:
        version = struct.unpack_from(">I", data, position)[0] or version
    return KeytabEntry(Principal(tuple(texts[1:]), texts[0]), version)


def _counted(data: bytes, position: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(">H", data, position)
    end = position + 2 + length
    if end > len(data):
        raise ValueError("it is cut off")
    return data[position + 2 : end], end
