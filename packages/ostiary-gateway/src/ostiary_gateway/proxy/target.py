"""Split a request target into path and query, and reject targets that two parsers could read differently.

Authorization and forwarding use the same text. Ambiguity is rejected because the second parser is the upstream: a
decision about ``/public/../secrets`` would be made for one path, and the response would come from another.

Rejected are dot segments and empty segments; percent-encoded slashes, backslashes, dots, letters and digits; double
encoding; control characters; non-ASCII characters, and encoded ones that are not UTF-8; ``;`` parameters; fragments.
Nothing is normalized, and a trailing slash is kept. That applies to the whole path, including the part after a
``/proxy`` subresource.

Names of Kubernetes objects may contain ``;`` and ``\\``, which are ordinary characters to kube-apiserver. They are
accepted with *any_name*. If `has_odd_name` is true, the caller must make sure that only kube-apiserver parses the path.
"""

from __future__ import annotations

import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

# Characters of a path segment (RFC 3986, pchar) except the semicolon: some servers cut it off, with what follows,
# before they look up the resource.
_PLAIN = rb"[A-Za-z0-9\-._~!$&'()*+,=:@]"
_NOT_ENCODED = "/-._~!$&'()*+,=:@"
_NO_DOTS = rb"(?!\.{1,2}(?:[/?]|\Z))"
_SEGMENT = _NO_DOTS + _PLAIN + rb"++"
# A query may contain any visible character, as browsers send them, but only valid percent-encoding and no NUL.
_QUERY_TEXT = rb"[\x21\x22\x24\x26-\x3a\x3c-\x7e]*+"
_QUERY = _QUERY_TEXT + rb"(?:%(?!00)[0-9A-Fa-f]{2}" + _QUERY_TEXT + rb")*"
_ORDINARY = re.compile(
    rb"(/(?:" + _SEGMENT + rb"(?:/" + _SEGMENT + rb")*/?)?)(?:\?(" + _QUERY + rb"))?",
)
_ORDINARY_QUERY = re.compile(_QUERY)
_ABSOLUTE = re.compile(rb"https?://([A-Za-z0-9\-._~:\[\]]++)(/.*+)", re.IGNORECASE | re.DOTALL)
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_DOUBLE = re.compile(rb"%25[0-9A-Fa-f]{2}")
_NOT_PLAIN = re.compile(rb"[^A-Za-z0-9\-._~!$&'()*+,=:@/%]")
_NOT_PLAIN_NAME = re.compile(rb"[^A-Za-z0-9\-._~!$&'()*+,=:@/%;]")
_ODD_NAME = re.compile(r";|%5[Cc]")
# Encoding these is never necessary, and servers differ in whether they decode them before comparing.
_NEVER_ENCODED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._")


class AmbiguousRequest(ValueError):
    """Two parsers could read the request differently. The message is the reason, and quotes nothing of the request."""


def split_target(target: bytes, *, host: bytes = b"", options: bool = False, any_name: bool = False) -> tuple[str, str]:
    """Return the path and the query of a request target unchanged; raises `AmbiguousRequest`.

    An absolute URL is accepted only if it names the *host* of the request, and ``*`` only for the method OPTIONS. With
    *any_name*, a semicolon and an encoded backslash are accepted.
    """
    ordinary = _ORDINARY.fullmatch(target)
    if ordinary is not None:
        path, query = ordinary.groups()
        return path.decode("ascii"), query.decode("ascii") if query else ""
    if target == b"*" and options:
        return "*", ""
    if not target.startswith(b"/"):
        return split_target(_after_authority(target, host), any_name=any_name)
    raw_path, _, raw_query = target.partition(b"?")
    _check_path(raw_path, any_name=any_name)
    _check_query(raw_query)
    return raw_path.decode("ascii"), raw_query.decode("ascii")


def path_of(target: bytes, host: bytes) -> bytes:
    """Return *target* from its path on, also for an absolute URL of the gateway; unchanged if invalid."""
    if target.startswith(b"/"):
        return target
    try:
        return _after_authority(target, host)
    except AmbiguousRequest:
        return target


def _after_authority(target: bytes, host: bytes) -> bytes:
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise AmbiguousRequest("the target is not a path")
    # Host names are case-insensitive. The host that selects the upstream must be the one in the target.
    if not host or absolute[1].lower() != host.lower():
        raise AmbiguousRequest("the target names another host than the request")
    return absolute[2]


def has_odd_name(path: str) -> bool:
    """Whether *path* has a semicolon or backslash: some servers treat them as the end of a segment or as a slash."""
    return _ODD_NAME.search(path) is not None


def encoded_path(path: bytes) -> bytes:
    """Encode a decoded *path* in the usual form: only where necessary, with upper-case digits."""
    return quote_from_bytes(path, safe=_NOT_ENCODED).encode("ascii")


def is_usually_encoded(path: str) -> bool:
    """Whether `encoded_path` restores *path* after a server has decoded it."""
    return "%" not in path or encoded_path(unquote_to_bytes(path)) == path.encode("ascii")


def _check_path(path: bytes, *, any_name: bool) -> None:
    odd = (_NOT_PLAIN_NAME if any_name else _NOT_PLAIN).search(path)
    if odd is not None:
        raise AmbiguousRequest(_cause(odd[0]))
    segments = path[1:].split(b"/")
    # The last segment is empty for a path that ends with a slash.
    if b"" in segments[:-1]:
        raise AmbiguousRequest("the path has an empty segment")
    if b"." in segments or b".." in segments:
        raise AmbiguousRequest("the path has a dot segment")
    _check_escapes(path, any_name=any_name)


def _cause(character: bytes) -> str:
    causes = {b"\\": "a backslash", b"#": "a fragment", b";": "a semicolon"}
    return f"the path has {causes.get(character, 'a character that must be percent-encoded')}"


def _check_escapes(path: bytes, *, any_name: bool) -> None:
    if _DOUBLE.search(path):
        raise AmbiguousRequest("the path is percent-encoded twice")
    if path.count(b"%") != len(_ESCAPE.findall(path)):
        raise AmbiguousRequest("the path has a broken percent-encoding")
    for digits in _ESCAPE.findall(path):
        code = int(digits, 16)
        if code < 0x20 or code == 0x7F:
            raise AmbiguousRequest("the path has a control character")
        if code in (b"/" if any_name else b"/\\"):
            raise AmbiguousRequest("the path has an encoded slash or backslash")
        if code in _NEVER_ENCODED:
            raise AmbiguousRequest("the path has a letter, digit, dot, dash or underscore in percent-encoding")
    try:
        _ESCAPE.sub(lambda escape: bytes((int(escape[1], 16),)), path).decode("utf-8")
    except UnicodeDecodeError:
        # Without the cause, which contains the path.
        raise AmbiguousRequest("the path is not UTF-8") from None


def _check_query(query: bytes) -> None:
    if _ORDINARY_QUERY.fullmatch(query) is None:
        raise AmbiguousRequest("the query has a semicolon, a fragment, a broken percent-encoding or an odd character")
