"""Whether a name was likely meant to be another one. Pure; called by `ostiary.core.abilities.flaws`."""

from __future__ import annotations

# A replaced letter makes another word too easily where there are few: prove and probe, roles_for and rules_for.
_LONG, _VERY_LONG = 9, 10


def is_misspelt(name: str, meant: str) -> bool:
    """Whether *name* was likely meant to be *meant*.

    Capitals and underscores do not count. Otherwise one letter may be added, left out, or swapped with the next; in a
    long name replaced as well. In a very long one that begins with the same letter there may be two such mistakes. Very
    short names (``lint``, ``path``) are near to too many others, so nothing else is taken for them.
    """
    spelling, right = name.replace("_", "").lower(), meant.replace("_", "").lower()
    if spelling == right:
        return True
    if len(right) < 5:
        return False
    if _edits(spelling, right) == 1:
        return len(right) >= _LONG or len(spelling) != len(right) or sorted(spelling) == sorted(right)
    return len(right) >= _VERY_LONG and spelling[:1] == right[0] and _edits(spelling, right) == 2


def _edits(one: str, other: str) -> int:
    """How many letters must be added, removed, replaced, or swapped with the next, to make one of the other."""
    rows = [list(range(len(other) + 1))]
    for index, letter in enumerate(one, 1):
        row = [index]
        for place, expected in enumerate(other, 1):
            row.append(min(rows[-1][place] + 1, row[-1] + 1, rows[-1][place - 1] + (letter != expected)))
            if index > 1 and place > 1 and letter == other[place - 2] and one[index - 2] == expected:
                row[-1] = min(row[-1], rows[-2][place - 2] + 1)
        rows.append(row)
    return rows[-1][-1]
