"""Keytabs as MIT Kerberos writes them, made by hand: for tests that need the file and no KDC."""

from __future__ import annotations

import struct

from ostiary_gateway.providers.kerberos.principals import Principal

FORMAT = b"\x05\x02"
KEY = b"k" * 32


def entry(service: Principal, version: int, *, wide: bool = True) -> bytes:
    """One key of *service*; with *wide* its version has the 32 bits of newer files as well."""
    texts = (service.realm, *service.components)
    counted = b"".join(struct.pack(">H", len(text)) + text.encode() for text in texts)
    data = struct.pack(">H", len(service.components)) + counted + struct.pack(">II", 1, 0)
    data += struct.pack(">BHH", version & 0xFF, 18, len(KEY)) + KEY + (struct.pack(">I", version) if wide else b"")
    return struct.pack(">i", len(data)) + data
