"""Rules that map field values to capabilities.

A rule looks only at what is in the object itself: an absent field needs no capability. A value of a type that the field
cannot have is `Unreadable`, never a no.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ostiary_gateway.providers.kubernetes.object_reading import OddScalar, Unreadable

# The steps to a field: names, and None for every item of a list.
Steps = tuple[str | None, ...]
# Whether a value that is present and not null needs the capability. Raises `Unreadable`.
Test = Callable[[object], bool]

# Maximum number of fields and items. A pod with forty containers has fewer.
MOST_LOOKED_AT = 50_000
_SUFFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class LookedAt:
    """Limits how much of one object all rules together examine: the event loop is blocked meanwhile."""

    __slots__ = ("_rest",)

    def __init__(self, most: int = MOST_LOOKED_AT) -> None:
        self._rest = most

    def add(self, number: int) -> None:
        self._rest -= number
        if self._rest < 0:
            raise Unreadable("it has too many parts")


@dataclass(frozen=True, slots=True)
class FieldRule:
    """A rule for one capability, `name`. With `names_value` the value is added: ``added-capability:NET_ADMIN``.

    `in_capitals`: the field is case-insensitive, so the value is shown in upper case.
    """

    name: str
    steps: Steps
    test: Test
    names_value: bool = False
    in_capitals: bool = False

    def capabilities(self, document: object, looked_at: LookedAt) -> Iterator[str]:
        """Yield the capabilities that *document* needs because of this field. Raises `Unreadable`."""
        for value in values_at(document, self.steps, looked_at):
            if self.test(value):
                is_told = self.names_value and isinstance(value, str) and _SUFFIX.fullmatch(value)
                shown = value.upper() if self.in_capitals and isinstance(value, str) else value
                yield f"{self.name}:{shown}" if is_told else self.name


def values_at(node: object, steps: Steps, looked_at: LookedAt) -> Iterator[object]:
    """Yield every value at *steps* that is not null. Raises `Unreadable` if a step does not have the expected type."""
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
            # kube-apiserver is case-sensitive, but other servers behind it need not be.
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
    """For fields where only the harmless values are known."""
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
    """Return a scalar as written in settings."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, str)):
        return str(value)
    raise Unreadable("a field has a value that is neither a text nor a whole number")
