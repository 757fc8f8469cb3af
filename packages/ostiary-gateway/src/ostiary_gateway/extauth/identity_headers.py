"""Response headers that identify the user to the upstream. Pure.

Every identity header is always present, empty if it has no value: proxies copy the headers they find, and a missing one
would leave the client's. A response contains no other headers, because some proxies copy everything.

Groups, and the values of an extra field, have one line each if the proxy preserves repeated lines. Otherwise they are
joined by commas into one line, in which ``%``, ``,``, spaces and all characters except visible ASCII are
percent-encoded as UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote, unquote

from ostiary.model import UserInfo
from ostiary_gateway.extauth.dialects import SECRET_HEADER, ProxyDialect
from ostiary_gateway.http1.headers import HeaderNames
from ostiary_gateway.proxy.identity_headers import HEADER as ASSERTION
from ostiary_gateway.proxy.identity_headers import header_line

NAMES = HeaderNames()
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in "%,")


NOBODY = UserInfo("")
NO_ASSERTION = ASSERTION + b": \r\n"


def identity_answer(user: UserInfo, dialect: ProxyDialect, extra_keys: Sequence[str]) -> bytes:
    """Return the header lines for *user*, or `NOBODY`. Raises `BadHeader` for a name that a header cannot contain."""
    extra = dict(user.extra)
    lines = [_line_or_empty(NAMES.user, user.username), _line_or_empty(NAMES.uid, user.uid)]
    lines += _lines(NAMES.group, user.groups, dialect)
    for key in extra_keys:
        lines += _lines(NAMES.extra_prefix + key, extra.get(key, ()), dialect)
    if dialect.returns_secret:
        lines.append(SECRET_HEADER + b": \r\n")
    return b"".join(lines)


def answer_names(extra_keys: Sequence[str], *, assertion: bool = False) -> list[str]:
    """Return the names of the identity headers, in the order of the response."""
    names = [NAMES.user, NAMES.uid, NAMES.group, *(NAMES.extra_prefix + key for key in extra_keys)]
    return [*names, ASSERTION.decode()] if assertion else names


def cookies_answer(cookies: bytes, dialect: ProxyDialect) -> bytes:
    """Return the line with the *cookies* for the upstream.

    Without cookies most proxies need no line: they remove the client's in any case, and the upstream gets none.
    """
    return dialect.cookies + b": " + cookies + b"\r\n" if cookies or dialect.keeps_absent else b""


def join_values(values: Sequence[str]) -> str:
    """Join several values into one header. The inverse of `split_values`."""
    return ",".join(quote(value, safe=_PLAIN) for value in values)


def split_values(header: str) -> tuple[str, ...]:
    """Split a header that `join_values` has made."""
    return tuple(unquote(part, errors="strict") for part in header.split(",")) if header else ()


def _lines(name: str, values: Sequence[str], dialect: ProxyDialect) -> list[bytes]:
    # Validate every value even if they are joined: a value that the built-in proxy would reject must be rejected here
    # too.
    lines = [header_line(name, value) for value in values]
    if dialect.repeats_lines and lines:
        return lines
    return [_line_or_empty(name, join_values(values))]


def _line_or_empty(name: str, value: str) -> bytes:
    return header_line(name, value) if value else name.encode() + b": \r\n"
