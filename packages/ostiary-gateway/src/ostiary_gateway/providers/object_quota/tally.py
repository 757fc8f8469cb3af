"""The amounts counted for one subject of a limit, and how requests and lists change them.

    used        what the upstream had when it was last listed, plus what was stored since
    open        reserved by in-flight requests
    doubtful    reserved by requests with an unknown outcome

The sum of the three is never lower than what the upstream has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostiary_gateway.interfaces.shared_counts import WIDE, State

# Longer than any request that changes an object takes, in the gateway and at the upstream.
SPAN_SECONDS = 120.0
# The tally of a subject expires after this time without use; its next request lists it again.
KEPT_SECONDS = 7 * 24 * 3600.0
# An amount is stored as two floats, since one holds no more than 53 bits exactly.
_LIMB = 2**50
_FIXED = 7
MOST_ITEMS = (WIDE - _FIXED) // 8

Amounts = tuple[int, ...]


def plus(*amounts: Sequence[int]) -> Amounts:
    return tuple(map(sum, zip(*amounts, strict=True)))


def minus(amounts: Sequence[int], less: Sequence[int]) -> Amounts:
    """Subtract *less* from *amounts*, never below zero."""
    return tuple(max(0, amount - part) for amount, part in zip(amounts, less, strict=True))


@dataclass(slots=True)
class QuotaTally:
    """The amounts of one subject, in the order of the limit's items.

    A list of the upstream replaces `used` only if no request was open while it was made, because the list may or may
    not include such a request. So the tally is exact whenever a list is adopted, and errs on the side of denying in
    between.

    A request that never ends (its gateway died) does not stay open forever. Requests are grouped by the time span in
    which they began; those of the span before the last become doubtful. A list that begins a span after the latest
    doubt clears it: by then the upstream has processed the request, or never will.

    `changes` counts updates: if it is the same before and after a list, the list can be adopted. `outdated` means that
    the upstream has less than `used`, or other amounts.
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
        """Decode a state, which must not be empty. Amounts that were open for too long become doubtful."""
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
        """Whether *wanted* can be reserved. An item of which nothing more is wanted is not limited."""
        return all(
            not more or limit is None or total + more <= limit
            for total, more, limit in zip(self.total, wanted, limits, strict=True)
        )

    def open(self, reserved: Amounts) -> int:
        """Reserve amounts for a new request. Return its span."""
        self.open_latest += 1
        self.latest = plus(self.latest, reserved)
        self.changes += 1
        return self.span

    def add(self, span: int, reserved: Amounts) -> bool:
        """Reserve more for an open request. Return False if it has been open for too long."""
        self.changes += 1
        if span == self.span and self.open_latest:
            self.latest = plus(self.latest, reserved)
        elif span == self.span - 1 and self.open_earlier:
            self.earlier = plus(self.earlier, reserved)
        else:
            return False
        return True

    def close(self, span: int, reserved: Amounts) -> None:
        """End a request and release its reservation. The amounts of an expired request stay doubtful."""
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
        """Count *amounts* that the upstream has stored."""
        self.used = plus(self.used, amounts)
        self.changes += 1

    def doubt(self, amounts: Amounts, now: float) -> None:
        """Count *amounts* that the upstream may have stored."""
        self.doubtful = plus(self.doubtful, amounts)
        self.doubt_at = now
        self.outdated = True
        self.changes += 1

    def expect_less(self) -> None:
        """Mark as outdated: the upstream deleted or reduced something, and the next list shows how much."""
        self.outdated = True
        self.changes += 1

    # --- lists ---

    def adopt(self, listed: Amounts, *, began_at: float) -> None:
        """Replace `used` by *listed*. Only call it if nothing changed since the list began, and nothing is open."""
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
