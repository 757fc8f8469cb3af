"""Finds, among thousands of patterns, those that match an image, without looking at the others.

Called by the keyring for the providers, and for the keys of an answer. `image_match` has the rules for one pattern.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from ostiary.registry.matching.go_url import ImageAddress, UnparsableAddress, parse_address
from ostiary.registry.matching.image_match import Text, without_port
from ostiary.registry.matching.label_glob import label_matches

T = TypeVar("T")


class PatternIndex(Generic[T]):
    """Patterns with a value each; finds the values of those that match an image, in the order they came in.

    A tree per port and number of labels, from the last label to the first. What a lookup costs depends on the
    image and on the patterns whose last labels match it, and not on how many others there are. Never changes.
    *any_port* tells of a value whether its patterns without a port match images with any.
    """

    def __init__(self, patterns: Iterable[tuple[Text, T]], *, any_port: Callable[[T], bool] | None = None) -> None:
        # Under None instead of a port: the patterns for which the port does not count.
        self._roots: dict[tuple[bytes | None, int], _Branch[T]] = {}
        for order, (pattern, value) in enumerate(patterns):
            try:
                address = parse_address(pattern)
            except UnparsableAddress:
                continue
            port: bytes | None = address.port
            if any_port is not None and not port and any_port(value):
                address, port = without_port(address), None
            branch = self._roots.setdefault((port, len(address.labels)), _Branch())
            for label in reversed(address.labels):
                branch = branch.grow(label)
            branch.end(address.path, (order, value))
        self._has_any_port = any(port is None for port, _ in self._roots)

    def find(self, target: Text) -> list[T]:
        """The values of all patterns that match *target*."""
        try:
            address = parse_address(target)
        except UnparsableAddress:
            return []
        hits = list(self._hits(address, address.port))
        if self._has_any_port:
            hits += self._hits(without_port(address), None)
        return [value for _, value in sorted(hits, key=lambda hit: hit[0])]

    def _hits(self, address: ImageAddress, port: bytes | None) -> Iterable[tuple[int, T]]:
        root = self._roots.get((port, len(address.labels)))
        if root is None:
            return ()
        branches = [root]
        for label in reversed(address.labels):
            branches = [longer for branch in branches for longer in branch.follow(label)]
        return [hit for branch in branches for hit in branch.values(address.path)]


class _Branch(Generic[T]):
    """What is left of the patterns whose last labels are those that led here.

    Most branches have neither globs nor paths, and thousands of them should be cheap.
    """

    __slots__ = ("_globs", "_literals", "_paths")

    def __init__(self) -> None:
        self._literals: dict[bytes, _Branch[T]] = {}
        self._globs: _Globs[_Branch[T]] | None = None
        self._paths: _Prefixes[tuple[int, T]] | None = None

    def grow(self, label: bytes) -> _Branch[T]:
        """The branch of *label*, made if need be."""
        if b"*" not in label and b"[" not in label:
            return self._literals.setdefault(label, _Branch())
        self._globs = self._globs or _Globs()
        return self._globs.setdefault(label, _Branch())

    def end(self, path: bytes, value: tuple[int, T]) -> None:
        """A pattern ends here, with *path*."""
        self._paths = self._paths or _Prefixes()
        self._paths.add(path, value)

    def follow(self, label: bytes) -> Iterator[_Branch[T]]:
        if label in self._literals:
            yield self._literals[label]
        if self._globs is not None:
            yield from self._globs.matching(label)

    def values(self, path: bytes) -> Iterable[tuple[int, T]]:
        return () if self._paths is None else self._paths.prefixes_of(path)


class _Prefixes(Generic[T]):
    """Texts with values; finds those that another text begins with, one look per length that occurs."""

    __slots__ = ("_lengths", "_values")

    def __init__(self) -> None:
        self._values: dict[bytes, list[T]] = {}
        self._lengths: list[int] = []

    def add(self, text: bytes, value: T) -> None:
        at = bisect_left(self._lengths, len(text))
        if self._lengths[at : at + 1] != [len(text)]:
            self._lengths.insert(at, len(text))
        self._values.setdefault(text, []).append(value)

    def prefixes_of(self, text: bytes) -> Iterator[T]:
        for length in self._lengths:
            if length > len(text):
                break
            yield from self._values.get(text[:length], ())


class _Globs(Generic[T]):
    """Globs of one label, found by the text they begin and end with, and by the longest text in between."""

    __slots__ = ("_by_ends", "_shapes")

    def __init__(self) -> None:
        self._by_ends: dict[tuple[bytes, bytes, bytes], dict[bytes, T]] = {}
        # Which lengths of these three texts occur: what a label is asked for depends on these alone.
        self._shapes: dict[tuple[int, int, int], None] = {}

    def setdefault(self, glob: bytes, value: T) -> T:
        head, tail, middle = _ends(glob)
        self._shapes[len(head), len(tail), len(middle)] = None
        return self._by_ends.setdefault((head, tail, middle), {}).setdefault(glob, value)

    def matching(self, label: bytes) -> Iterator[T]:
        for shape in self._shapes:
            for key in _keys(label, *shape):
                for glob, value in self._by_ends.get(key, {}).items():
                    if label_matches(glob, label):
                        yield value


def _ends(glob: bytes) -> tuple[bytes, bytes, bytes]:
    if b"[" in glob:
        return b"", b"", b""
    head, *middles, tail = glob.split(b"*")
    return head, tail, max(middles, key=len, default=b"")


def _keys(label: bytes, head: int, tail: int, middle: int) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Every key of this shape that *label* fits, each once."""
    last = len(label) - tail
    if head > last:
        return
    middles = {label[start : start + middle] for start in range(head, last - middle + 1)} if middle else {b""}
    for text in middles:
        yield label[:head], label[last:], text
