"""Matches images to ``[[registry]]`` tables of a registries.conf by prefix, and rewrites their names. Pure.

    prefix "example.com/foo", location "mirror.example.net":  example.com/foo/app:v1 -> mirror.example.net/app:v1

The rules are those of containers-registries.conf(5) as implemented, quirks included: a prefix is compared with the name
without tag and digest, so a prefix with a tag never matches when an image is read; a prefix without a port also matches
the same host with one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

WILDCARD = "*."
_SEPARATORS = frozenset(":/@")


class HasPrefix(Protocol):
    @property
    def prefix(self) -> str: ...


T = TypeVar("T", bound=HasPrefix)


def match_length(name: str, prefix: str) -> int | None:
    """Return how many characters of *name* match *prefix*; None if it does not match. *name* begins with a host."""
    if prefix.startswith(WILDCARD):
        # The star stands for any number of labels. The first occurrence of the rest of the prefix counts.
        start = name.find(prefix[1:])
        if start < 0 or "/" in name[:start]:
            return None
        end = start + len(prefix) - 1
    else:
        if not name.startswith(prefix):
            return None
        end = len(prefix)
    return end if end == len(name) or name[end] in _SEPARATORS else None


def longest_match(name: str, tables: Iterable[T]) -> T | None:
    """Return the table with the longest prefix that matches *name*.

    Of two prefixes of the same length the first in byte order counts, which is the one with a star.
    """
    best: T | None = None
    for table in sorted(tables, key=lambda each: each.prefix.encode("utf-8", "surrogatepass")):
        if match_length(name, table.prefix) is not None and (best is None or len(table.prefix) > len(best.prefix)):
            best = table
    return best


def rewrite(reference: str, prefix: str, location: str) -> str | None:
    """Return *reference*, with its tag or digest, at *location*; None if *prefix* does not match it."""
    length = match_length(reference, prefix)
    if length is None:
        return None
    # Without a location, which only a prefix with a star may omit, the name is unchanged.
    return location + reference[length:] if location else reference
