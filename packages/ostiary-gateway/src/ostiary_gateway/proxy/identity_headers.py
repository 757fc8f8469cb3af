"""The headers that pass the user's identity to an upstream: impersonation, request headers, and signed JWTs.

The header names are `http1.headers.HeaderNames`; headers of these names in a client's request are dropped there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ostiary.core.cache import Cache
from ostiary.core.clock import Clock
from ostiary.model import UserInfo
from ostiary_gateway.authorization.implied_groups import groups_to_impersonate
from ostiary_gateway.http1.headers import BadHeader, HeaderNames
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.sessions.authentication_context import without_context

_IMPERSONATION = HeaderNames("Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-")


def impersonation(user: UserInfo) -> bytes:
    """Return the impersonation headers for kube-apiserver, without groups that it adds itself.

    The authentication context is omitted, too; the gateway evaluates it. Each extra field requires a permission in the
    cluster, so a role created before the issuer sent this context would deny every request.
    """
    shown = without_context(replace(user, groups=groups_to_impersonate(user)))
    return identity_lines(shown, _IMPERSONATION)


def identity_lines(user: UserInfo, names: HeaderNames) -> bytes:
    """Return the header lines with the user's identity; raises `BadHeader` if a name cannot be in a header."""
    lines = [header_line(names.user, user.username)]
    if user.uid:
        lines.append(header_line(names.uid, user.uid))
    lines.extend(header_line(names.group, group) for group in user.groups)
    for key, values in user.extra:
        name = names.extra_prefix + _escape_key(key)
        lines.extend(header_line(name, value) for value in values)
    return b"".join(lines)


_CONTROL, _SURROGATE = re.compile(rb"[\x00-\x1f\x7f]"), re.compile("[\ud800-\udfff]")


def header_line(name: str, value: str) -> bytes:
    text = value.encode("utf-8", "surrogatepass")
    # Go's server accepts UTF-8 in a value. A value that ends the line, or whose ends are trimmed, could be read as
    # another user's name.
    if _CONTROL.search(text) or text != text.strip(b" ") or not text:
        raise BadHeader("a user or group name contains a character that a header cannot carry")
    if _SURROGATE.search(value):
        raise BadHeader("a user or group has a name that is not text")
    return name.encode() + b": " + text + b"\r\n"


_TOKEN = frozenset("!#$&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


def _escape_key(key: str) -> str:
    """Return an extra key as part of a header name, with invalid characters as %XX.

    Header names are lower-cased before they are unescaped, so upper-case letters are escaped, too.
    """
    parts = []
    for byte in key.encode("utf-8", "surrogatepass"):
        character = chr(byte)
        parts.append(character if character in _TOKEN else f"%{byte:02X}")
    return "".join(parts)


# The header for ``identity: assertion``. A header of this name in a client's request is dropped (`http1.headers`).

HEADER = b"X-Ostiary-Assertion"
# Half of the shortest lifetime (`config.issuer.SHORTEST_LIFETIME`), so that a reused JWT stays valid for a while.
REUSE_SECONDS = 15.0
MOST_BYTES = 16 * 1024 * 1024
MOST_BYTES_PER_USER = 1024 * 1024

# Session, user and audience -> JWT; raises `ProviderError` if there is no key.
Sign = Callable[[Session, UserInfo, str], str]
_Key = tuple[str, str, str, tuple[str, ...]]


class Assertions:
    """The JWTs about users for one upstream, which can verify them.

    A JWT is reused within a session for a while, because signing one costs more than forwarding a request.
    """

    def __init__(self, audience: str, sign: Sign, clock: Clock) -> None:
        self._audience = audience
        self._sign = sign
        self._lines: Cache[_Key, bytes] = Cache(
            seconds=REUSE_SECONDS, clock=clock, value_size=len, size=MOST_BYTES, share_size=MOST_BYTES_PER_USER
        )

    def line(self, session: Session, user: UserInfo) -> bytes:
        """Return the header line about *user*; raises `ProviderError`."""
        key = (session.id, user.username, user.uid, user.groups)
        line = self._lines.get(key)
        if line is None:
            line = HEADER + b": " + self._sign(session, user, self._audience).encode() + b"\r\n"
            self._lines.put(key, line, owner=user.username)
        return line
