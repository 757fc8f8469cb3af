"""Where an upstream listens, and how its certificate is checked.

Made by `upstream.upstreams` from the configuration; a pool opens its connections there.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpstreamAddress:
    """Where an upstream listens: host and port, and TLS with the name to check, or the path of a Unix socket."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    unix_path: str | None = None
    # SHA-256 of the certificates (DER, in hex) that this upstream may have; none: any that the authority signed.
    pins: frozenset[str] = frozenset()
