"""Texts that match a claim, and texts that are made of claims. Pure; called by `workload.rules`.

    pattern     acme/*          one part of a path; `**` is for any text at all
    template    ci:{repository}

`*` stands for one or more characters other than ``/`` and ``:``. Claims are built of parts with these two between them,
and whoever chooses one part must not be able to write the next one as well: to ``repo:acme/*:ref:refs/heads/main`` an
environment that is called ``x:ref:refs/heads/main`` would otherwise be the branch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property

Texts = Sequence[str]
ClaimTexts = Mapping[str, Texts]
"""The claims that are texts, each with its values: a claim that is a list has several."""

ANYTHING = "**"
_STARS = re.compile(r"(\*\*|\*)")
_PLACE = re.compile(r"\{([^{}]*)\}")
LONGEST_PATTERN = 1024


@dataclass(frozen=True)
class Pattern:
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
        """Whether everything that *other* matches is matched by this one, as far as can be told easily."""
        return self == other or self.text == ANYTHING or ("*" not in other.text and self.matches(other.text))


def _ends(parts: Sequence[str], value: str) -> AbstractSet[int]:
    """Where *parts* can end in *value*, all ways at once.

    A regular expression would try one way after the other, and whoever chooses the value could make it try for hours.
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
    """What is wrong with a pattern; empty if nothing is."""
    if not text or len(text) > LONGEST_PATTERN:
        return f"it is empty, or longer than {LONGEST_PATTERN} characters"
    # Nobody needs more, or can read it.
    if "***" in text or len(_STARS.findall(text)) > 8:
        return "it has three stars in a row, or more than eight"
    return ""


class NoValue(ValueError):
    """A claim that a template needs is missing, or has a value that cannot stand there."""


@dataclass(frozen=True, slots=True)
class Template:
    """A text with claims in it. `literals` are the texts before, between and after the claims in `names`."""

    literals: tuple[str, ...]
    names: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        rest = (f"{{{name}}}{literal}" for name, literal in zip(self.names, self.literals[1:], strict=True))
        return "".join((self.literals[0], *rest))

    def render(self, claims: ClaimTexts) -> str:
        """The text; raises `NoValue` if a claim is missing, or has several values."""
        pieces = [self.literals[0]]
        for index, name in enumerate(self.names):
            values = claims.get(name, ())
            if len(values) != 1:
                raise NoValue(f'the claim "{name}" is missing, or has several values')
            pieces += (self._check_value(index, values[0]), self.literals[index + 1])
        return "".join(pieces)

    def render_each(self, claims: ClaimTexts) -> list[str]:
        """The texts for each value of its only claim; as `render` does where it has none or several claims."""
        if len(self.names) != 1:
            return [self.render(claims)]
        before, after = self.literals
        return [before + value + after for value in claims.get(self.names[0], ())]

    def _check_value(self, index: int, value: str) -> str:
        # Of two users with the claims "a:b", "c" and "a", "b:c", each would have the name of the other one.
        after = self.literals[index + 1]
        if index + 1 < len(self.names) and (value + after).find(after) < len(value):
            raise NoValue(f'the claim "{self.names[index]}" contains what stands after it in the name')
        return value


def parse_template(text: str) -> Template:
    """Raises `ValueError` with what is wrong."""
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
