"""Tells an upstream who the user is by a JWT that it can verify: the header ``X-Ostiary-Assertion``.

Called by the forwarder for upstreams with ``identity: assertion``. A JWT is signed once for a session and used again
for about a minute; signing costs more than forwarding. What clients send under this name is dropped (`http1.headers`).
"""

from __future__ import annotations

from collections.abc import Callable

from ostiary.core.caching.cache import Cache
from ostiary.core.clock import Clock
from ostiary.interfaces.token_store import Session
from ostiary.model import UserInfo

HEADER = b"X-Ostiary-Assertion"
# Half of the life that it has at least (`issuer.settings.SHORTEST_LIFETIME`), so that what is sent stays good a while.
REUSE_SECONDS = 15.0
MOST_BYTES = 16 * 1024 * 1024
MOST_BYTES_PER_USER = 1024 * 1024

# A JWT about a user for an audience, under a session; raises `ProviderError` if there is no key.
Sign = Callable[[Session, UserInfo, str], str]
_Key = tuple[str, str, str, tuple[str, ...]]


class Assertions:
    """Those for one upstream."""

    def __init__(self, audience: str, sign: Sign, clock: Clock) -> None:
        self._audience = audience
        self._sign = sign
        self._lines: Cache[_Key, bytes] = Cache(
            seconds=REUSE_SECONDS, clock=clock, value_size=len, size=MOST_BYTES, share_size=MOST_BYTES_PER_USER
        )

    def line(self, session: Session, user: UserInfo) -> bytes:
        """The header line about *user*; raises `ProviderError`."""
        key = (session.id, user.username, user.uid, user.groups)
        line = self._lines.get(key)
        if line is None:
            line = HEADER + b": " + self._sign(session, user, self._audience).encode() + b"\r\n"
            self._lines.put(key, line, owner=user.username)
        return line
