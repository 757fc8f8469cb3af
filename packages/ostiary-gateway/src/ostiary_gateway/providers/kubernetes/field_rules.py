"""Rules about fields: which values of a field make a capability. Pure.

Used by `capabilities`, by the preset (`pod_security`) and by the settings. A rule looks at what stands in the object
itself: what is absent is not asked for. A value of a type that the field cannot have is `Unreadable`, never a no.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ostiary_gateway.providers.kubernetes.object_reading import OddScalar, Unreadable

# The steps to a field: names, and None for every item of a list.
Steps = tuple[str | None, ...]
# Whether a value that stands in the field, and is not null, makes the capability; raises `Unreadable`.
Test = Callable[[object], bool]

# Fields and items. A pod with forty containers has less.
MOST_LOOKED_AT = 50_000
_SUFFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class LookedAt:
    """How much of one object was looked at by all rules together: nobody else is served meanwhile."""

    __slots__ = ("_rest",)

    def __init__(self, most: int = MOST_LOOKED_AT) -> None:
        self._rest = most

    def add(self, number: int) -> None:
        self._rest -= number
        if self._rest < 0:
            raise Unreadable("it has too many parts")


@dataclass(frozen=True, slots=True)
class FieldRule:
    """`name` is the capability. With `names_value` the value is told, too: ``added-capability:NET_ADMIN``.

    `in_capitals`: the field is read without regard to case, so the value is told in one.
    """

    name: str
    steps: Steps
    test: Test
    names_value: bool = False
    in_capitals: bool = False

    def capabilities(self, document: object, looked_at: LookedAt) -> Iterator[str]:
        """The capabilities that *document* asks for by this field; raises `Unreadable`."""
        for value in values_at(document, self.steps, looked_at):
            if self.test(value):
                is_told = self.names_value and isinstance(value, str) and _SUFFIX.fullmatch(value)
                shown = value.upper() if self.in_capitals and isinstance(value, str) else value
                yield f"{self.name}:{shown}" if is_told else self.name


def values_at(node: object, steps: Steps, looked_at: LookedAt) -> Iterator[object]:
    """Every value at *steps* that is not null; raises `Unreadable` if something else than a path leads there."""
    if node is None:
        return
    if isinstance(node, OddScalar):
        raise Unreadable("a field has a value that readers of YAML differ in")
    if not steps:
        yield node
        return
    step, rest = steps[0], steps[1:]
    if step is None:
        if not isinstance(node, list):
            raise Unreadable("a list is something else in it")
        looked_at.add(len(node))
        for item in node:
            yield from values_at(item, rest, looked_at)
        return
    if not isinstance(node, dict):
        raise Unreadable("an object is something else in it")
    looked_at.add(len(node))
    folded = step.casefold()
    for key, value in node.items():
        if key == step:
            yield from values_at(value, rest, looked_at)
        elif len(key) == len(step) and key.casefold() == folded:
            # kube-apiserver tells capital letters from small ones. Others behind it need not.
            raise Unreadable("a field is written in other letters")


# --- tests ---


def is_true(value: object) -> bool:
    return _boolean(value)


def is_false(value: object) -> bool:
    return not _boolean(value)


def is_zero(value: object) -> bool:
    return _integer(value) == 0


def is_not_zero(value: object) -> bool:
    return _integer(value) != 0


def is_set(value: object) -> bool:
    return True


def is_one_of(*values: str) -> Test:
    return lambda value: _spelled(value) in values


def is_none_of(*values: str) -> Test:
    """For fields where the harmless values are known, and all others are not."""
    return lambda value: _text(value) not in values


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise Unreadable("a field that is true or false is something else in it")
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unreadable("a field that is a number is something else in it")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise Unreadable("a field that is a text is something else in it")
    return value


def _spelled(value: object) -> str:
    """A scalar as settings write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, str)):
        return str(value)
    raise Unreadable("a field has a value that is neither a text nor a whole number")
