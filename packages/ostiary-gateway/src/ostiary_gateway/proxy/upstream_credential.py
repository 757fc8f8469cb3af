"""The gateway's own credential at one upstream: a token in a file, or a client certificate, and what is wrong with it.

Used by `upstream.upstreams`. An upstream that rejects it says 401, and that answer is about us: no
user can do anything about it, so it never reaches one. Files are read again after a while, and at once after such a
401. So is the file of the upstream's authorities: it and the client certificate make one TLS context.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from ostiary.core.clock import Clock
from ostiary.errors import TransportError
from ostiary.keys.address import key_file
from ostiary_gateway.config import settings

# How long a token that was read from a file is used before the file is read again: the kubelet rotates such files.
TOKEN_FILE_SECONDS = 60.0

UNREADABLE = "the gateway's own credential cannot be read"

# What TLS files hold, as the log calls it.
CERTIFICATE, AUTHORITIES = "client certificate", "CA certificate"


class TokenFile:
    """The token that we present, as the header line that carries it."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._line = b""
        self._until = float("-inf")

    def line(self) -> bytes:
        """Raises `OSError` if the file cannot be read or holds no token."""
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
    """Digests of what the files hold. `is_cut_off`: the file of the authorities ends within a certificate."""

    certificate: bytes
    authorities: bytes
    is_cut_off: bool


class TlsFiles:
    """The files of TLS with an upstream: our client certificate, and its authorities. Tells which have changed.

    `present`: we have a client certificate there.
    """

    def __init__(self, tls: settings.ClientTls, clock: Clock) -> None:
        self._certificate = [path for path in (tls.certificate, key_file(tls.key)) if path is not None]
        self._authorities = [] if tls.ca is None else [tls.ca]
        self.present = tls.certificate is not None
        self._clock = clock
        self._used = self._seen = self._read_files()
        self._look_again_at = clock.monotonic() + TOKEN_FILE_SECONDS

    def changes(self, *, now: bool = False) -> list[str]:
        """Which of `CERTIFICATE` and `AUTHORITIES` are not what is in use; looked at once in a while, or *now*.

        Empty if a file cannot be read: they may be in the middle of being replaced.
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
        """Raises `TransportError` if what `changes` saw of the authorities is not all that is being written.

        A certificate that is cut off would be skipped, and those before it used alone.
        """
        if self._seen is not None and self._seen.is_cut_off:
            raise TransportError("a TLS file cannot be read", cause="the CA file ends in the middle of a certificate")

    def mark_used(self) -> None:
        """What `changes` saw is in use from here on. What was written since then is a change again."""
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
