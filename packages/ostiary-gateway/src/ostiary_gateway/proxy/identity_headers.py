"""The headers that tell an upstream who the user is. Pure.

Called by `upstream.upstreams` for each user, and at sign-in to see that a name can be told at all. The names of these
headers are `http1.headers.HeaderNames`: what a client sends under them is dropped there.
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
    """The lines by which kube-apiserver takes a request for *user*'s. Groups that it adds itself are left out.

    So is how the person signed in, which the gateway judges: for each extra field the gateway needs a permission in
    the cluster, and a role that was made before the issuer said this would refuse every request.
    """
    shown = without_context(replace(user, groups=groups_to_impersonate(user)))
    return identity_lines(shown, _IMPERSONATION)


def identity_lines(user: UserInfo, names: HeaderNames) -> bytes:
    """The lines that tell an upstream who the user is; raises `BadHeader` for a name that a header cannot carry."""
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
    # Go's server takes UTF-8 in a value. What would end the line, or be cut off at its ends, could be read as
    # somebody else's name.
    if _CONTROL.search(text) or text != text.strip(b" ") or not text:
        raise BadHeader("a user or group name contains a character that a header cannot carry")
    if _SURROGATE.search(value):
        raise BadHeader("a user or group has a name that is not text")
    return name.encode() + b": " + text + b"\r\n"


_TOKEN = frozenset("!#$&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")


def _escape_key(key: str) -> str:
    """An extra key as a part of a header's name; whatever a name cannot hold, or would lose, as %XX.

    Names are read in lower case before the escapes are undone, so upper case is escaped, too.
    """
    parts = []
    for byte in key.encode("utf-8", "surrogatepass"):
        character = chr(byte)
        parts.append(character if character in _TOKEN else f"%{byte:02X}")
    return "".join(parts)


# Tells an upstream who the user is by a JWT that it can verify: the header ``X-Ostiary-Assertion``.
#
# Called by the forwarder for upstreams with ``identity: assertion``. A JWT is signed once for a session and used again
# for about a minute; signing costs more than forwarding. What clients send under this name is dropped
# (`http1.headers`).

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
