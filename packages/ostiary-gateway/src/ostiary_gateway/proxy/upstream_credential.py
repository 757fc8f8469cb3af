"""The gateway's own credential at one upstream: a token file or a client certificate.

A 401 of an upstream that rejects it is never sent to a user, who cannot fix it. Files are read again periodically, and
immediately after such a 401. That includes the CA file, because it shares a TLS context with the client certificate.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from ostiary.core.clock import Clock
from ostiary.errors import TransportError
from ostiary.keys.address import key_file
from ostiary_gateway.config import settings

# How long a token from a file is cached: the kubelet rotates such files.
TOKEN_FILE_SECONDS = 60.0

UNREADABLE = "the gateway's own credential cannot be read"

# The parts of the TLS files, as named in the log.
CERTIFICATE, AUTHORITIES = "client certificate", "CA certificate"


class TokenFile:
    """The gateway's token from a file, as a header line."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._line = b""
        self._until = float("-inf")

    def line(self) -> bytes:
        """Return the header line; raises `OSError` if the file is unreadable or holds no token."""
        now = self._clock.monotonic()
        if now >= self._until:
            token = self._path.read_bytes().strip()
            if not token or any(byte <= 0x20 or byte >= 0x7F for byte in token):
                raise OSError(0, "the token file holds no token")
            self._line = b"Authorization: Bearer " + token + b"\r\n"
            self._until = now + TOKEN_FILE_SECONDS
        return self._line

    def expire(self) -> None:
        """Read the file again the next time."""
        self._until = float("-inf")


class _FileContents(NamedTuple):
    """Digests of the file contents. `is_cut_off`: the CA file ends within a certificate."""

    certificate: bytes
    authorities: bytes
    is_cut_off: bool


class TlsFiles:
    """The TLS files for an upstream, the client certificate and the CA. Detects changes.

    `present`: there is a client certificate.
    """

    def __init__(self, tls: settings.ClientTls, clock: Clock) -> None:
        self._certificate = [path for path in (tls.certificate, key_file(tls.key)) if path is not None]
        self._authorities = [] if tls.ca is None else [tls.ca]
        self.present = tls.certificate is not None
        self._clock = clock
        self._used = self._seen = self._read_files()
        self._look_again_at = clock.monotonic() + TOKEN_FILE_SECONDS

    def changes(self, *, now: bool = False) -> list[str]:
        """Return which of `CERTIFICATE` and `AUTHORITIES` have changed; checked once in a while, or *now*.

        Empty if a file is unreadable: the files may be in the middle of being replaced.
        """
        at = self._clock.monotonic()
        if not now and at < self._look_again_at:
            return []
        self._look_again_at = at + TOKEN_FILE_SECONDS
        self._seen = seen = self._read_files()
        if seen is None:
            return []
        used = self._used
        kinds = []
        if used is None or seen.certificate != used.certificate:
            kinds.append(CERTIFICATE)
        if used is None or seen.authorities != used.authorities:
            kinds.append(AUTHORITIES)
        return kinds

    def check_whole(self) -> None:
        """Raise `TransportError` if the CA file that `changes` read is incomplete.

        OpenSSL would skip a truncated certificate and use only those before it.
        """
        if self._seen is not None and self._seen.is_cut_off:
            raise TransportError("a TLS file cannot be read", cause="the CA file ends in the middle of a certificate")

    def mark_used(self) -> None:
        """Mark what `changes` has read as in use. Anything written since then counts as a change."""
        self._used = self._seen

    def _read_files(self) -> _FileContents | None:
        try:
            certificate, authorities = (
                b"\0".join(path.read_bytes() for path in paths) for paths in (self._certificate, self._authorities)
            )
        except OSError:
            return None
        is_cut_off = authorities.count(b"-----BEGIN ") > authorities.count(b"-----END ")
        return _FileContents(hashlib.sha256(certificate).digest(), hashlib.sha256(authorities).digest(), is_cut_off)
