"""Patterns that match claims, and templates that render them.

    pattern     acme/*          one part of a path; `**` matches any text
    template    ci:{repository}

`*` matches one or more characters other than ``/`` and ``:``, which separate the parts of many claims. An attacker who
controls one part must not be able to write the next one too: otherwise, with ``repo:acme/*:ref:refs/heads/main``, an
environment with the name ``x:ref:refs/heads/main`` would pass as the branch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

Texts = Sequence[str]
ClaimTexts = Mapping[str, Texts]
"""Claims that are strings or lists of strings, each with its values."""

ANYTHING = "**"
_STARS = re.compile(r"(\*\*|\*)")
_PLACE = re.compile(r"\{([^{}]*)\}")
LONGEST_PATTERN = 1024


@dataclass(frozen=True)
class Pattern:
    """A pattern that a claim is matched against."""

    text: str

    def matches(self, value: str) -> bool:
        return self._compiled(value)

    @cached_property
    def _compiled(self) -> Callable[[str], bool]:
        if "*" not in self.text:
            return self.text.__eq__
        if self.text == ANYTHING:
            return bool
        parts = [part for part in _STARS.split(self.text) if part]
        return lambda value: len(value) in _ends(parts, value)

    def covers(self, other: Pattern) -> bool:
        """Whether this pattern matches everything that *other* matches. False if that is not easy to determine."""
        return self == other or self.text == ANYTHING or ("*" not in other.text and self.matches(other.text))


def _ends(parts: Sequence[str], value: str) -> AbstractSet[int]:
    """Return all positions where *parts* can end in *value*.

    All alternatives advance together. A regular expression would backtrack, and an attacker who controls the value
    could make it run for hours.
    """
    ends: AbstractSet[int] = {0}
    for part in parts:
        if part == ANYTHING:
            ends = set(range(min(ends) + 1, len(value) + 1)) if ends else ends
        elif part == "*":
            ends = _ends_of_star(ends, value)
        else:
            ends = {end + len(part) for end in ends if value.startswith(part, end)}
    return ends


def _ends_of_star(starts: AbstractSet[int], value: str) -> set[int]:
    ends, is_inside = set(), False
    for position in range(min(starts, default=len(value)), len(value)):
        is_inside = (is_inside or position in starts) and value[position] not in "/:"
        if is_inside:
            ends.add(position + 1)
    return ends


def check_pattern(text: str) -> str:
    """Return what is wrong with a pattern; empty if it is valid."""
    if not text or len(text) > LONGEST_PATTERN:
        return f"it is empty, or longer than {LONGEST_PATTERN} characters"
    # More is never needed, and unreadable.
    if "***" in text or len(_STARS.findall(text)) > 8:
        return "it has three stars in a row, or more than eight"
    return ""


class NoValue(ValueError):
    """A claim that a template needs is missing, or has a value that it cannot use."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with placeholders for claims. `literals` are the texts before, between and after the claims in `names`."""

    literals: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        rest = (f"{{{name}}}{literal}" for name, literal in zip(self.names, self.literals[1:], strict=True))
        return "".join((self.literals[0], *rest))

    def render(self, claims: ClaimTexts) -> str:
        """Return the text. Raises `NoValue` if a claim is missing, or has several values."""
        pieces = [self.literals[0]]
        for index, name in enumerate(self.names):
            values = claims.get(name, ())
            if len(values) != 1:
                raise NoValue(f'the claim "{name}" is missing, or has several values')
            pieces += (self._check_value(index, values[0]), self.literals[index + 1])
        return "".join(pieces)

    def render_each(self, claims: ClaimTexts) -> list[str]:
        """Return one text per value of the only claim. Like `render` if there are no claims, or several."""
        if len(self.names) != 1:
            return [self.render(claims)]
        before, after = self.literals
        return [before + value + after for value in claims.get(self.names[0], ())]

    def _check_value(self, index: int, value: str) -> str:
        # Otherwise users with the claims "a:b", "c" and "a", "b:c" would get the same name.
        after = self.literals[index + 1]
        if index + 1 < len(self.names) and (value + after).find(after) < len(value):
            raise NoValue(f'the claim "{self.names[index]}" contains what stands after it in the name')
        return value


def parse_template(text: str) -> Template:
    """Parse a template. Raises `ValueError` with the reason if it is invalid."""
    literals, names, position = [], [], 0
    for place in _PLACE.finditer(text):
        literals.append(text[position : place.start()])
        names.append(place[1])
        position = place.end()
    literals.append(text[position:])
    if any(brace in literal for literal in literals for brace in "{}"):
        raise ValueError("a brace is not closed, or not opened: claims are written as {repository}")
    if not text or "" in names:
        raise ValueError("it is empty, or names no claim between its braces")
    if any(not between for between in literals[1:-1]):
        raise ValueError("two claims stand next to each other: put a text between them, so that no two users are one")
    return Template(tuple(literals), tuple(names))
