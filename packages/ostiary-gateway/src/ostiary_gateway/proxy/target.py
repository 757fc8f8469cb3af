"""Splits the target of a request into path and query, and refuses what two programs could read differently. Pure.

Called by `questions`, by the engine for the paths that are our own, and by the doors. What is decided on and what is
forwarded are the same text. Ambiguity is refused because the second reader is the upstream: a decision about
``/public/../secrets`` would be about one path, and the answer would come from another.

Refused are dot segments and empty segments; slashes, backslashes, dots, letters and digits in percent-encoding; double
encoding; control characters; what is not ASCII, or not UTF-8 when decoded; ``;`` parameters; fragments. The rest is
left as it is: nothing is normalised, and a slash at the end stays. That holds for the whole path, also for what stands
behind a ``/proxy`` subresource.

Names of Kubernetes objects may hold ``;`` and ``\\``, which are ordinary characters to kube-apiserver. With *any_name*
they pass. If `has_odd_name` is true, the caller must make sure that only kube-apiserver reads the path.
"""

from __future__ import annotations

import re
from urllib.parse import quote_from_bytes, unquote_to_bytes

# What a path segment may hold without encoding (RFC 3986, pchar), but for the semicolon: some servers cut it off,
# and what follows it, before they look for the resource.
_PLAIN = rb"[A-Za-z0-9\-._~!$&'()*+,=:@]"
_NOT_ENCODED = "/-._~!$&'()*+,=:@"
_NO_DOTS = rb"(?!\.{1,2}(?:[/?]|\Z))"
_SEGMENT = _NO_DOTS + _PLAIN + rb"++"
# A query may hold any visible character, as browsers send them. Its percent-encoding must be one, and no NUL.
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
# Nobody has to encode these, and readers differ in whether they undo it before they compare.
_NEVER_ENCODED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._")


class AmbiguousRequest(ValueError):
    """Two programs could read this request differently. The message says why, and quotes nothing of it."""


def split_target(target: bytes, *, host: bytes = b"", options: bool = False, any_name: bool = False) -> tuple[str, str]:
    """The path and the query of a request target, as they stand; raises `AmbiguousRequest`.

    A whole URL is taken only if it names the *host* of the request, and ``*`` only for the method OPTIONS. With
    *any_name* a semicolon and an encoded backslash pass.
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
    """*target* from its path on, also where a client wrote a whole URL of ours; as it is if it cannot be read."""
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
    # Names of hosts have no case; an upstream that is chosen by one of them must be the one that is asked.
    if not host or absolute[1].lower() != host.lower():
        raise AmbiguousRequest("the target names another host than the request")
    return absolute[2]


def has_odd_name(path: str) -> bool:
    """Whether *path* has a semicolon or a backslash: to some servers they end a segment, or are a slash."""
    return _ODD_NAME.search(path) is not None


def encoded_path(path: bytes) -> bytes:
    """*path*, which a server has decoded, encoded again in the usual way: no more than has to be, in capitals."""
    return quote_from_bytes(path, safe=_NOT_ENCODED).encode("ascii")


def is_usually_encoded(path: str) -> bool:
    """Whether `encoded_path` gives *path* back after a server has decoded it."""
    return "%" not in path or encoded_path(unquote_to_bytes(path)) == path.encode("ascii")


def _check_path(path: bytes, *, any_name: bool) -> None:
    odd = (_NOT_PLAIN_NAME if any_name else _NOT_PLAIN).search(path)
    if odd is not None:
        raise AmbiguousRequest(_cause(odd[0]))
    segments = path[1:].split(b"/")
    # The last one is empty where the path ends with a slash, or is one.
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
        # Raised without its cause, which carries the path along.
        raise AmbiguousRequest("the path is not UTF-8") from None


def _check_query(query: bytes) -> None:
    if _ORDINARY_QUERY.fullmatch(query) is None:
        raise AmbiguousRequest("the query has a semicolon, a fragment, a broken percent-encoding or an odd character")
