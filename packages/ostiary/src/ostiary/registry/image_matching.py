"""Image patterns: whether a pattern matches an image, exactly as in the kubelet, and why it does not.

    pattern, target  ->  ports equal?  ->  as many labels?  ->  each label?  ->  path a prefix?

The same rules apply to ``matchImages`` and to the keys of a response. In the dialect of the first proposal the port
counts only if the pattern has one: *any_port*. A target is the repository of a normalized image (`image_name`).
`matches` checks one pattern and `why_not` explains the result; `PatternIndex` finds matches among thousands. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from ostiary.core.text import printable
from ostiary.registry.image_name import ImageAddress, UnparsableAddress, parse_address

# Globs of one host label: Go's filepath.Match, for the bytes that a host may contain.


@dataclass(frozen=True, slots=True)
class _CharacterClass:
    """One character out of some ranges. Occurs only as the brackets of an IPv6 address without a port."""

    ranges: tuple[tuple[str, str], ...]

    def end_in(self, text: bytes, start: int) -> int | None:
        char, size = _character_at(text, start)
        return start + size if any(low <= char <= high for low, high in self.ranges) else None


_Piece = bytes | _CharacterClass
_Chunk = tuple[_Piece, ...]
_NO_CHARACTER = "\ufffd"


def is_valid_glob(glob: bytes) -> bool:
    """Return whether *glob* is a valid pattern in Go. An invalid one matches nothing."""
    return b"[" not in glob or _chunks(glob) is not None


def label_matches(glob: bytes, label: bytes) -> bool:
    """Return whether *glob* matches the whole *label*; ``*`` stands for any text, including none."""
    if b"*" not in glob and b"[" not in glob:
        return glob == label
    chunks = _chunks(glob)
    return chunks is not None and _chunks_match(chunks, label)


def _chunks_match(chunks: list[_Chunk], label: bytes) -> bool:
    """Match each chunk at its first position, which leaves the most text to the following chunks."""
    first, *others = chunks
    end = _end_of(first, label, 0)
    if end is None or not others:
        return end == len(label)
    *between, last = others
    for chunk in between:
        end = next(_ends_of(chunk, label, end), None)
        if end is None:
            return False
    return len(label) in _ends_of(last, label, end)


def _ends_of(chunk: _Chunk, label: bytes, start: int) -> Iterator[int]:
    """Yield the end of *chunk* for each position from *start* on where it matches."""
    ends = (_end_of(chunk, label, at) for at in range(start, len(label) + 1))
    return (end for end in ends if end is not None)


def _end_of(chunk: _Chunk, label: bytes, start: int) -> int | None:
    end: int | None = start
    for piece in chunk:
        if end is None:
            break
        if isinstance(piece, bytes):
            end = end + len(piece) if label.startswith(piece, end) else None
        else:
            end = piece.end_in(label, end)
    return end


def _chunks(glob: bytes) -> list[_Chunk] | None:
    """Split *glob* at its stars; None if its brackets are malformed in Go."""
    chunks: list[list[_Piece]] = [[]]
    while glob:
        if glob.startswith(b"*"):
            chunks.append([])
            glob = glob[1:]
        elif glob.startswith(b"["):
            parsed = _character_class(glob[1:])
            if parsed is None:
                return None
            character_class, glob = parsed
            chunks[-1].append(character_class)
        else:
            end = min((at for at in (glob.find(b"*"), glob.find(b"[")) if at >= 0), default=len(glob))
            chunks[-1].append(glob[:end])
            glob = glob[end:]
    return [tuple(chunk) for chunk in chunks]


def _character_class(text: bytes) -> tuple[_CharacterClass, bytes] | None:
    ranges: list[tuple[str, str]] = []
    while not (ranges and text.startswith(b"]")):
        low = _class_character(text)
        if low is None:
            return None
        high, text = low
        if text.startswith(b"-"):
            upper = _class_character(text[1:])
            if upper is None:
                return None
            high, text = upper
        ranges.append((low[0], high))
    return _CharacterClass(tuple(ranges)), text[1:]


def _class_character(text: bytes) -> tuple[str, bytes] | None:
    char, size = _character_at(text, 0)
    rest = text[size:]
    malformed = char in ("", "-", "]") or (char == _NO_CHARACTER and size == 1) or not rest
    return None if malformed else (char, rest)


def _character_at(text: bytes, start: int) -> tuple[str, int]:
    """Return a UTF-8 character and its length. For an invalid byte Go sees U+FFFD of length 1; at the end, nothing."""
    rest = text[start : start + 4]
    for size in range(1, len(rest) + 1):
        try:
            return rest[:size].decode(), size
        except UnicodeDecodeError:
            continue
    return (_NO_CHARACTER, 1) if rest else ("", 0)


Text = str | bytes


class Reason(Enum):
    """Why a pattern does not match, in the order of the checks."""

    PATTERN_UNPARSABLE = "pattern-unparsable"
    IMAGE_UNPARSABLE = "image-unparsable"
    PORTS_DIFFER = "ports-differ"
    LABEL_COUNT_DIFFERS = "label-count-differs"
    LABEL_DIFFERS = "label-differs"
    PATH_NOT_PREFIX = "path-not-prefix"
    STAR_IN_PATH = "star-in-path"


@dataclass(frozen=True, slots=True)
class Mismatch:
    reason: Reason
    message: str
    hint: str | None = None


def matches(pattern: Text, target: Text, *, any_port: bool = False) -> bool:
    """Return whether *pattern* matches *target* in the kubelet. Text that cannot be parsed matches nothing.

    *any_port*: a pattern without a port matches images with any.
    """
    return why_not(pattern, target, any_port=any_port) is None


def why_not(pattern: Text, target: Text, *, any_port: bool = False) -> Mismatch | None:
    """Return the first reason why *pattern* does not match *target*; None if it matches."""
    try:
        glob = parse_address(pattern)
    except UnparsableAddress as error:
        hint = "only * in the host stands for something else; a port is written in digits"
        return Mismatch(Reason.PATTERN_UNPARSABLE, f"the pattern cannot be parsed: {error}", hint)
    try:
        image = parse_address(target)
    except UnparsableAddress as error:
        hint = "normalise the name of the image first, and leave out its tag"
        return Mismatch(Reason.IMAGE_UNPARSABLE, f"the image cannot be parsed: {error}", hint)
    if any_port and not glob.port:
        glob, image = without_port(glob), without_port(image)
    return _ports_mismatch(glob, image) or _host_mismatch(glob, image) or _path_mismatch(glob, image)


def without_port(address: ImageAddress) -> ImageAddress:
    """Return *address* without its port.

    An address without a port keeps the brackets of IPv6; they are removed here.
    """
    labels = address.labels
    if not address.port and address.host.startswith(b"[") and address.host.endswith(b"]"):
        labels = tuple(address.host[1:-1].split(b"."))
    return replace(address, labels=labels, port=b"")


def _ports_mismatch(glob: ImageAddress, image: ImageAddress) -> Mismatch | None:
    if glob.port == image.port:
        return None
    message = f"the ports differ: the pattern has {_port(glob)} and the image has {_port(image)}"
    return Mismatch(Reason.PORTS_DIFFER, message, "a pattern without a port matches only images without a port")


def _host_mismatch(glob: ImageAddress, image: ImageAddress) -> Mismatch | None:
    in_pattern, in_image = len(glob.labels), len(image.labels)
    if in_pattern != in_image:
        message = f"the numbers of labels differ: {in_pattern} in the pattern's host and {in_image} in the image's"
        return Mismatch(Reason.LABEL_COUNT_DIFFERS, message, _label_count_hint(glob, image))
    for number, (label_glob, label) in enumerate(zip(glob.labels, image.labels, strict=True), 1):
        if not is_valid_glob(label_glob):
            message = f"label {number} of the host is not a valid pattern: {_quote(label_glob)}"
            return Mismatch(Reason.PATTERN_UNPARSABLE, message, _label_hint(label_glob, label))
        if not label_matches(label_glob, label):
            message = f"label {number} of the host differs: {_quote(label_glob)} does not match {_quote(label)}"
            return Mismatch(Reason.LABEL_DIFFERS, message, _label_hint(label_glob, label))
    return None


def _path_mismatch(glob: ImageAddress, image: ImageAddress) -> Mismatch | None:
    if image.path.startswith(glob.path):
        return None
    message = f"the pattern's path {_quote(glob.path)} is not how the image's path {_quote(image.path)} begins"
    if b"*" in glob.path:
        star_hint = "a * in a path stands for itself: end the pattern before it, paths match as prefixes"
        return Mismatch(Reason.STAR_IN_PATH, message, star_hint)
    slash_hint = "leave out the slash at the end" if image.path == glob.path.removesuffix(b"/") else None
    return Mismatch(Reason.PATH_NOT_PREFIX, message, slash_hint)


def _label_count_hint(glob: ImageAddress, image: ImageAddress) -> str | None:
    if glob.labels in ((b"http",), (b"https",)):
        return "leave out the scheme: a pattern begins with the host"
    if image.labels == (b"docker", b"io") and glob.labels[1:] == image.labels:
        return "images of Docker Hub are looked up as docker.io"
    return "a * stands for one label: *.* for two" if any(b"*" in label for label in glob.labels) else None


def _label_hint(glob: bytes, label: bytes) -> str | None:
    if glob.startswith(b"["):
        return "without a port, the brackets of an IPv6 address are read as a set of characters: add the port"
    if label_matches(glob.lower(), label.lower()):
        return "capitals count: write the host in lower case"
    return None


def _port(address: ImageAddress) -> str:
    return f"port {address.port.decode()}" if address.port else "none"


def _quote(text: bytes) -> str:
    return '"' + printable(text.decode("utf-8", "replace")) + '"'


# Index of many patterns.

T = TypeVar("T")


class PatternIndex(Generic[T]):
    """Patterns with a value each. Finds the values of the patterns that match an image, in insertion order.

    A tree per port and number of labels, from the last label to the first. The cost of a lookup depends on the image
    and on the patterns whose last labels match it, not on the number of other patterns. Immutable. *any_port* returns
    for a value whether its patterns without a port match images with any.
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
        """Return the values of all patterns that match *target*."""
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
    """The remainders of the patterns whose last labels lead to this branch.

    Most branches have neither globs nor paths, and thousands of them should be cheap.
    """

    __slots__ = ("_globs", "_literals", "_paths")

    def __init__(self) -> None:
        self._literals: dict[bytes, _Branch[T]] = {}
        self._globs: _Globs[_Branch[T]] | None = None
        self._paths: _Prefixes[tuple[int, T]] | None = None

    def grow(self, label: bytes) -> _Branch[T]:
        """Return the branch of *label*, created if necessary."""
        if b"*" not in label and b"[" not in label:
            return self._literals.setdefault(label, _Branch())
        self._globs = self._globs or _Globs()
        return self._globs.setdefault(label, _Branch())

    def end(self, path: bytes, value: tuple[int, T]) -> None:
        """Add a pattern that ends here with *path*."""
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
    """Texts with values. Finds the prefixes of a text with one dict lookup per length that occurs."""

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
    """Globs of one label, indexed by the text they begin and end with, and by the longest text in between."""

    __slots__ = ("_by_ends", "_shapes")

    def __init__(self) -> None:
        self._by_ends: dict[tuple[bytes, bytes, bytes], dict[bytes, T]] = {}
        # The combinations of lengths of these three texts: they determine the dict lookups for a label.
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
    """Yield every key of this shape that *label* matches, each once."""
    last = len(label) - tail
    if head > last:
        return
    middles = {label[start : start + middle] for start in range(head, last - middle + 1)} if middle else {b""}
    for text in middles:
        yield label[:head], label[last:], text
