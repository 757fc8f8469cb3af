"""PEM as Go parses it: only blocks of the requested type count, and text around them is skipped.

OpenSSL also accepts other labels for a certificate (``X509 CERTIFICATE``), and no headers. Input that kubectl rejects
must not work here by accident, so `core.tls` passes OpenSSL only what these functions return.
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
    """One PEM block."""

    type: str
    text: str
    """The unmodified block, from BEGIN to END."""
    has_headers: bool
    body: str

    def plain(self) -> str:
        """Return the block without headers, which OpenSSL does not accept.

        A block that cannot be decoded stays unchanged.
        """
        if not self.has_headers:
            return self.text
        try:
            lines = encodebytes(b64decode("".join(self.body.split()), validate=True)).decode("ascii")
        except (binascii.Error, ValueError):
            return self.text
        return f"-----BEGIN {self.type}-----\n{lines}-----END {self.type}-----"


def certificates(text: str, *, with_headers: bool = True) -> str:
    """Return the concatenated certificates in *text*; empty if there is none."""
    blocks = (block for block in _blocks(text) if block.type == "CERTIFICATE")
    return "".join(f"{block.plain()}\n" for block in blocks if with_headers or not block.has_headers)


def private_key(text: str) -> str:
    """Return the first private key in *text*; empty if there is none. An encrypted key keeps its headers."""
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
