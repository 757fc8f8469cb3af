"""What is counted for one subject of a limit, and how requests and lists change it. Pure.

    used        what the upstream had when it was last listed, and what was stored since
    open        reserved by requests that are under way
    doubtful    reserved by requests of which nobody knows whether they were done

The sum of the three is never lower than what the upstream has. A list of the upstream replaces `used` only if no
request was open while it was made: whether such a request is in the list would be a guess. So the tally is exact
whenever it is adopted, and errs on the side of refusing in between.

A request that never ends (its gateway died) does not stay open for ever. Requests are kept by the span of time in which
they began; those of the span before the last are doubtful. A list that begins a span after the latest doubt clears it:
by then the upstream has done what it was asked, or never will.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostiary_gateway.interfaces.shared_counts import WIDE, State

# Longer than any request that changes an object takes, at the gateway and at the upstream.
SPAN_SECONDS = 120.0
# A subject of which nothing is heard for so long is listed again when it comes back.
KEPT_SECONDS = 7 * 24 * 3600.0
# An amount is kept in two numbers, since one holds no more than 53 bits exactly.
_LIMB = 2**50
_FIXED = 7
MOST_ITEMS = (WIDE - _FIXED) // 8

Amounts = tuple[int, ...]


def plus(*amounts: Sequence[int]) -> Amounts:
    return tuple(map(sum, zip(*amounts, strict=True)))


def minus(amounts: Sequence[int], less: Sequence[int]) -> Amounts:
    """Never below zero."""
    return tuple(max(0, amount - part) for amount, part in zip(amounts, less, strict=True))


@dataclass(slots=True)
class QuotaTally:
    """The amounts of one subject, in the order of the limit's items.

    `changes` counts what has happened to it: if it is the same after a list as before, nothing has. `outdated`: the
    upstream has less, or something else, than `used` says.
    """

    used: Amounts
    latest: Amounts
    earlier: Amounts
    doubtful: Amounts
    listed_at: float = 0.0
    changes: int = 0
    outdated: bool = False
    span: int = 0
    open_latest: int = 0
    open_earlier: int = 0
    doubt_at: float = 0.0

    @classmethod
    def empty(cls, items: int, now: float) -> QuotaTally:
        none = (0,) * items
        return cls(none, none, none, none, span=_span(now))

    @classmethod
    def read(cls, state: State, now: float) -> QuotaTally:
        """From a state that is not empty. What has been open for too long is doubtful from here on."""
        listed_at, changes, outdated, span, open_latest, open_earlier, doubt_at = state[:_FIXED]
        amounts = [
            int(high) * _LIMB + int(low) for high, low in zip(state[_FIXED::2], state[_FIXED + 1 :: 2], strict=True)
        ]
        items = len(amounts) // 4
        used, latest, earlier, doubtful = (tuple(amounts[place * items : (place + 1) * items]) for place in range(4))
        tally = cls(used, latest, earlier, doubtful, listed_at, int(changes), bool(outdated), int(span))
        tally.open_latest, tally.open_earlier, tally.doubt_at = int(open_latest), int(open_earlier), doubt_at
        tally._move_on(now)
        return tally

    def state(self) -> State:
        numbers: list[float] = []
        for amount in (*self.used, *self.latest, *self.earlier, *self.doubtful):
            high, low = divmod(amount, _LIMB)
            numbers += (float(high), float(low))
        fixed = (self.listed_at, self.changes % _LIMB, self.outdated, self.span, self.open_latest, self.open_earlier)
        return (*map(float, fixed), self.doubt_at, *numbers)

    @property
    def total(self) -> Amounts:
        return plus(self.used, self.latest, self.earlier, self.doubtful)

    @property
    def is_quiet(self) -> bool:
        return not (self.open_latest or self.open_earlier)

    # --- requests ---

    def fits(self, wanted: Amounts, limits: Sequence[int | None]) -> bool:
        """Whether *wanted* can be had. What asks for nothing more of an item is not stopped by its limit."""
        return all(
            not more or limit is None or total + more <= limit
            for total, more, limit in zip(self.total, wanted, limits, strict=True)
        )

    def open(self, reserved: Amounts) -> int:
        """A request begins; returns the span that it belongs to."""
        self.open_latest += 1
        self.latest = plus(self.latest, reserved)
        self.changes += 1
        return self.span

    def add(self, span: int, reserved: Amounts) -> bool:
        """A request that is open needs more; False if it has been open for too long."""
        self.changes += 1
        if span == self.span and self.open_latest:
            self.latest = plus(self.latest, reserved)
        elif span == self.span - 1 and self.open_earlier:
            self.earlier = plus(self.earlier, reserved)
        else:
            return False
        return True

    def close(self, span: int, reserved: Amounts) -> None:
        """A request is over, and what it reserved is free. One that is doubtful already stays so."""
        self.changes += 1
        if span == self.span and self.open_latest:
            self.open_latest -= 1
            self.latest = minus(self.latest, reserved)
        elif span == self.span - 1 and self.open_earlier:
            self.open_earlier -= 1
            self.earlier = minus(self.earlier, reserved)
        else:
            self.outdated = True

    def store(self, amounts: Amounts) -> None:
        """The upstream has stored so much more."""
        self.used = plus(self.used, amounts)
        self.changes += 1

    def doubt(self, amounts: Amounts, now: float) -> None:
        """Perhaps the upstream has stored so much more."""
        self.doubtful = plus(self.doubtful, amounts)
        self.doubt_at = now
        self.outdated = True
        self.changes += 1

    def expect_less(self) -> None:
        """The upstream has deleted or reduced something: the next list tells how much."""
        self.outdated = True
        self.changes += 1

    # --- lists ---

    def adopt(self, listed: Amounts, *, began_at: float) -> None:
        """The upstream has *listed*: only if nothing has happened since the list began, and nothing is open."""
        self.used = listed
        self.listed_at = began_at
        self.outdated = False
        if any(self.doubtful) and began_at >= self.doubt_at + SPAN_SECONDS:
            self.doubtful = (0,) * len(listed)
        self.changes += 1

    @property
    def has_doubt(self) -> bool:
        return any(self.doubtful)

    # --- time ---

    def _move_on(self, now: float) -> None:
        passed = _span(now) - self.span
        if passed <= 0:
            return
        none = (0,) * len(self.used)
        overdue, count = self.earlier, self.open_earlier
        if passed > 1:
            overdue, count = plus(overdue, self.latest), count + self.open_latest
            self.earlier, self.open_earlier = none, 0
        else:
            self.earlier, self.open_earlier = self.latest, self.open_latest
        self.latest, self.open_latest = none, 0
        self.span += passed
        if count:
            self.doubt(overdue, now)


def _span(now: float) -> int:
    return int(now // SPAN_SECONDS)
