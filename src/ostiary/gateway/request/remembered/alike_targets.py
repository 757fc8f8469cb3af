"""Remembers which targets differ only in what no decision depends on, so that another one like them is not read again.

    GET /api/v1/namespaces/shop/pods/web-1              read in full: its path, its upstream, the name in it
    GET /api/v1/namespaces/shop/pods/web-2              the same with another last segment, which is the name
    GET /api/v1/namespaces/shop/pods?resourceVersion=7  the same as an earlier one with another number

Asked by `object_plans` for a request line that came with known header lines. What is remembered says where such targets
go and what their mapper takes for the name; it says nothing about rights. A target is remembered only if every other
one of its shape goes to the same place, and if its mapper has promised to read it in the same way (`SplitsNames`).

Bounded in bytes, for each user and in all.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ostiary.core.caching.bounded import BoundedByOwner
from ostiary.gateway.http1.request_head import RequestHead
from ostiary.gateway.request.questions import Location
from ostiary.gateway.upstream.upstreams import Upstream

ALIKE_BYTES = 4 * 1024 * 1024
ALIKE_BYTES_PER_USER = 512 * 1024
_FIXED_BYTES = 600

# What stands before the name, the name, and what stands after it, as `SplitsNames` says it.
Parts = tuple[str, str, str]

# The form that `SplitsNames` allows for names, without what a path could be cut at or changed by.
_NAME = re.compile(rb"[a-z0-9](?:[a-z0-9.\-]{0,251}[a-z0-9])?").fullmatch
# The whole value of a parameter.
_NUMBER = re.compile(rb"(?<==)[0-9]{1,18}(?![^&])")
# Stands for a number. No target has it: it would begin a fragment.
_ANY_NUMBER = b"#"


class AlikeTarget(NamedTuple):
    """What all targets of one shape have in common. `path` and `name` are empty where the name is what differs."""

    upstream: Upstream
    before: str
    after: str
    path: str
    name: str


class AlikeTargets:
    """Those of one engine. *go_alike* says whether all paths that are one segment longer go to the same place."""

    def __init__(self, go_alike: Callable[[str], bool]) -> None:
        self._go_alike = go_alike
        # None: targets of this shape are not alike.
        self._kept: BoundedByOwner[tuple[bytes, bytes], AlikeTarget | None] = BoundedByOwner(
            ALIKE_BYTES, ALIKE_BYTES_PER_USER
        )

    def find(self, request: RequestHead) -> tuple[AlikeTarget, str] | None:
        """What the target has in common with an earlier one, and the name in it; None if it must be read."""
        shape, name = _shape(request.target)
        alike = self._kept.get((request.host, shape))
        return None if alike is None else (alike, name.decode("ascii") or alike.name)

    def keep(self, request: RequestHead, location: Location, parts: Parts, *, owner: str) -> None:
        """Remember the shape of a target that was read, and whose mapper has said *parts* of it."""
        upstream = location.upstream
        # A whole URL is another text than what is forwarded.
        if upstream is None or location.target is not request.target:
            return
        shape, name = _shape(request.target)
        key = request.host, shape
        if not shape or key in self._kept:
            return
        alike = None
        if self._are_alike(upstream, location, parts, name):
            before, its_name, after = parts
            path = upstream.mapped_path(location.path)
            alike = AlikeTarget(upstream, before, after, *(("", "") if name else (path, its_name)))
        self._kept.keep(key, alike, owner=owner, size=_FIXED_BYTES + 4 * len(shape))

    def _are_alike(self, upstream: Upstream, location: Location, parts: Parts, name: bytes) -> bool:
        if name:
            # The mapper's name is the last segment, and nothing but that differs.
            its_name = name.decode("ascii")
            is_last = parts[1:] == (its_name, "")
            return is_last and self._go_alike(location.path.removesuffix(its_name))
        split_name = upstream.split_name
        query = _NUMBER.sub(_another_number, location.query.encode("ascii")).decode("ascii")
        return split_name is not None and split_name(upstream.mapped_path(location.path), query) == parts

    def clear(self) -> None:
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)


def _shape(target: bytes) -> tuple[bytes, bytes]:
    """*target* without what may differ, and the name; empty if nothing may. A shape with a query has no name.

    Where there is a query, only its numbers may differ.
    """
    path, mark, query = target.partition(b"?")
    if mark:
        shape = _NUMBER.sub(_ANY_NUMBER, query)
        return (b"", b"") if shape == query else (b"%b?%b" % (path, shape), b"")
    before, _, name = path.rpartition(b"/")
    return (before, name) if _NAME(name) else (b"", b"")


def _another_number(number: re.Match[bytes]) -> bytes:
    return b"8" if number[0] == b"9" else b"9"
