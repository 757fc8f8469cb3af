"""PEM as Go reads it: only blocks of the wanted type count, and whatever stands around them is skipped.

OpenSSL reads other names for a certificate too (``X509 CERTIFICATE``), and takes no headers. What kubectl would
refuse must not work here by chance, so `core.tls` gives OpenSSL only what these functions return.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, encodebytes
from collections.abc import Iterator
from dataclasses import dataclass

_BLOCK = re.compile(
    r"^-----BEGIN (?P<type>[^\n]*?)-----[ \t\r]*\n(?P<body>.*?)^-----END (?P=type)-----[ \t\r]*$",
    re.DOTALL | re.MULTILINE,
)
_HEADER = re.compile(r"[^\n:]*:[^\n]*\n")


@dataclass(frozen=True, slots=True)
class Block:
    type: str
    text: str
    """The block as it stood, from BEGIN to END."""
    has_headers: bool
    body: str

    def plain(self) -> str:
        """The block without headers, which OpenSSL does not read. One that cannot be decoded stays as it is."""
        if not self.has_headers:
            return self.text
        try:
            lines = encodebytes(b64decode("".join(self.body.split()), validate=True)).decode("ascii")
        except (binascii.Error, ValueError):
            return self.text
        return f"-----BEGIN {self.type}-----\n{lines}-----END {self.type}-----"


def certificates(text: str, *, with_headers: bool = True) -> str:
    """The certificates in *text*, one after the other; empty if there is none."""
    blocks = (block for block in _blocks(text) if block.type == "CERTIFICATE")
    return "".join(f"{block.plain()}\n" for block in blocks if with_headers or not block.has_headers)


def private_key(text: str) -> str:
    """The first private key in *text*; empty if there is none. An encrypted one keeps the headers that say so."""
    for block in _blocks(text):
        if block.type == "PRIVATE KEY" or block.type.endswith(" PRIVATE KEY"):
            is_encrypted = block.has_headers and "ENCRYPTED" in block.text
            return (block.text if is_encrypted else block.plain()) + "\n"
    return ""


def _blocks(text: str) -> Iterator[Block]:
    for match in _BLOCK.finditer(text):
        body, start = match["body"], 0
        while header := _HEADER.match(body, start):
            start = header.end()
        yield Block(match["type"], match[0].rstrip(), start > 0, body[start:])
