"""Does a glob match one label of a host? Go's filepath.Match, for the bytes that a host may hold.

Called by `image_match` and `pattern_index`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _CharacterClass:
    """One character out of some ranges. Only the brackets of an IPv6 address without a port become one."""

    ranges: tuple[tuple[str, str], ...]

    def end_in(self, text: bytes, start: int) -> int | None:
        char, size = _character_at(text, start)
        return start + size if any(low <= char <= high for low, high in self.ranges) else None


_Piece = bytes | _CharacterClass
_Chunk = tuple[_Piece, ...]
_NO_CHARACTER = "\ufffd"


def is_valid_glob(glob: bytes) -> bool:
    """Whether Go takes *glob* for a pattern; one that it does not take matches nothing."""
    return b"[" not in glob or _chunks(glob) is not None


def label_matches(glob: bytes, label: bytes) -> bool:
    """Whether *glob* matches the whole of *label*; ``*`` stands for any text, also for none."""
    if b"*" not in glob and b"[" not in glob:
        return glob == label
    chunks = _chunks(glob)
    return chunks is not None and _chunks_match(chunks, label)


def _chunks_match(chunks: list[_Chunk], label: bytes) -> bool:
    """Each chunk is taken where it first fits, which leaves the most to the chunks after it."""
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
    """Where *chunk* ends, for each place from *start* on where it fits."""
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
    """The parts of *glob* between its stars; None if Go finds its brackets malformed."""
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
    """A UTF-8 character and its length. Where none begins, Go sees U+FFFD of one byte; at the end, nothing."""
    rest = text[start : start + 4]
    for size in range(1, len(rest) + 1):
        try:
            return rest[:size].decode(), size
        except UnicodeDecodeError:
            continue
    return (_NO_CHARACTER, 1) if rest else ("", 0)
