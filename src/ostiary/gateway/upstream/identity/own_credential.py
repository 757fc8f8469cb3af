"""The gateway's own credential at one upstream: a token in a file, or a client certificate, and what is wrong with it.

Used by `upstream.upstreams`. An upstream that rejects it says 401, and that answer is about us: no
user can do anything about it, so it never reaches one. Files are read again after a while, and at once after such a
401.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from ostiary.core.clock import Clock
from ostiary.core.keys.address import key_file
from ostiary.gateway.config import settings

# How long a token that was read from a file is used before the file is read again: the kubelet rotates such files.
TOKEN_FILE_SECONDS = 60.0

UNREADABLE = "the gateway's own credential cannot be read"


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


class TlsFiles:
    """The files of a client certificate, and whether they have changed since they were last used."""

    def __init__(self, tls: settings.ClientTls, clock: Clock) -> None:
        self._files = [path for path in (tls.certificate, key_file(tls.key), tls.ca) if path is not None]
        self.present = tls.certificate is not None
        self._clock = clock
        self._seen = self._digest()
        self._look_again_at = clock.monotonic() + TOKEN_FILE_SECONDS

    def have_changed(self, *, now: bool = False) -> bool:
        """Whether they differ from what was used last; looked at once in a while, or *now*."""
        at = self._clock.monotonic()
        if not self.present or not (now or at >= self._look_again_at):
            return False
        self._look_again_at = at + TOKEN_FILE_SECONDS
        return self._digest() not in (None, self._seen)

    def mark_used(self) -> None:
        """What the files hold now is in use from here on."""
        self._seen = self._digest()

    def _digest(self) -> bytes | None:
        """None if one of them cannot be read: they may be in the middle of being replaced."""
        try:
            return hashlib.sha256(b"\0".join(path.read_bytes() for path in self._files)).digest()
        except OSError:
            return None
