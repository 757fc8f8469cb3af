"""The headers of a client that must not reach an upstream, as patterns: for proxies that can clear by them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ostiary.gateway.doors.forward.claims import cleared
from ostiary.gateway.http1.headers import IDENTITY_PREFIXES

# These are the proxy's own to set; of the names below this prefix, those in use are cleared one by one.
_OF_PROXIES = "x-forwarded-"
# About a connection or a body, and so the proxy's own to say.
_OF_CONNECTIONS = frozenset(
    (
        *("connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "x-real-ip"),
    )
)
# What programs and browsers send besides ``Authorization``: no claims, and nothing about the connection.
_PLAIN = (
    *("accept", "accept-encoding", "accept-language", "cache-control", "content-encoding", "content-language"),
    *("content-length", "content-type", "cookie", "date", "host", "if-match", "if-modified-since", "if-none-match"),
    *("if-range", "if-unmodified-since", "origin", "pragma", "prefer", "priority", "range", "referer", "user-agent"),
    *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "traceparent", "tracestate", "x-requested-with"),
)


def prefixes(drop: Sequence[str] = ()) -> list[str]:
    """The beginnings of names that are always claims; *drop* are the operator's own (``listen.dropHeaders``)."""
    ours = {prefix.decode() for prefix in IDENTITY_PREFIXES} - {_OF_PROXIES}
    return sorted(ours | {name[:-1].lower() for name in drop if name.endswith("*")})


def regular_expression(names: Sequence[str], drop: Sequence[str] = ()) -> str:
    """What matches the *names* and every name with one of the prefixes, however they are spelled."""
    exact = [name for name in names if not name.startswith(tuple(prefixes(drop)))]
    parts = [*(any_spelling(name) for name in exact), *(any_spelling(name) + ".*" for name in prefixes(drop))]
    return f"(?i)^({'|'.join(parts)})$"


def is_kept_back(name: str, drop: Sequence[str] = ()) -> bool:
    """Whether a proxy must not pass *name* on from a client as it is."""
    lower = name.lower()
    is_claim = re.search(regular_expression(cleared(drop), drop), lower) is not None
    return is_claim or lower.startswith(_OF_PROXIES) or lower in _OF_CONNECTIONS


def any_spelling(name: str) -> str:
    """A regular expression for *name* and for what many programs cannot tell from it, all in lower case."""
    # To programs that make variables of headers, every character but letters and digits is the same.
    return name.replace("-", "[^a-z0-9]")


def plain_names(claims: str) -> list[str]:
    """The names of headers that programs send and that need no rule, without those that match *claims*, a pattern."""
    pattern = re.compile(claims, re.IGNORECASE)
    return [name for name in _PLAIN if pattern.search(name) is None]
