"""The headers of an allowing answer: who the user is, for the upstream. Pure.

Called by `carried` once for each plan, and for the cookies once for each answer. Every header about the user is always
there, empty if there is nothing to say: proxies copy what they find, and a header that is missing would leave the
client's in its place. An answer holds nothing else: some proxies copy everything.

Groups, and the values of an extra field, go as one line each where the proxy keeps several lines; else they are joined
by commas into one, in which ``%``, ``,``, spaces and everything that is not visible ASCII are percent-encoded as UTF-8.
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
    """The lines that say who *user* is, or `NOBODY`; raises `BadHeader` for a name that a header cannot carry."""
    extra = dict(user.extra)
    lines = [_line_or_empty(NAMES.user, user.username), _line_or_empty(NAMES.uid, user.uid)]
    lines += _lines(NAMES.group, user.groups, dialect)
    for key in extra_keys:
        lines += _lines(NAMES.extra_prefix + key, extra.get(key, ()), dialect)
    if dialect.returns_secret:
        lines.append(SECRET_HEADER + b": \r\n")
    return b"".join(lines)


def answer_names(extra_keys: Sequence[str], *, assertion: bool = False) -> list[str]:
    """The names of the headers that tell the user, in the order of the answer."""
    names = [NAMES.user, NAMES.uid, NAMES.group, *(NAMES.extra_prefix + key for key in extra_keys)]
    return [*names, ASSERTION.decode()] if assertion else names


def cookies_answer(cookies: bytes, dialect: ProxyDialect) -> bytes:
    """The line with the *cookies* that the upstream gets.

    Where there are none, most proxies need no line: theirs is taken out in any case, and the upstream gets none.
    """
    return dialect.cookies + b": " + cookies + b"\r\n" if cookies or dialect.keeps_absent else b""


def join_values(values: Sequence[str]) -> str:
    """Several values as one header; `split_values` is its inverse."""
    return ",".join(quote(value, safe=_PLAIN) for value in values)


def split_values(header: str) -> tuple[str, ...]:
    """The values of a header that `join_values` has made."""
    return tuple(unquote(part, errors="strict") for part in header.split(",")) if header else ()


def _lines(name: str, values: Sequence[str], dialect: ProxyDialect) -> list[bytes]:
    # Also where they are joined: what our own proxy cannot tell, no door tells.
    lines = [header_line(name, value) for value in values]
    if dialect.repeats_lines and lines:
        return lines
    return [_line_or_empty(name, join_values(values))]


def _line_or_empty(name: str, value: str) -> bytes:
    return header_line(name, value) if value else name.encode() + b": \r\n"
