"""The latest decisions of this worker, allowed ones too, while somebody watches.

    watch (a page is loaded, a stream is open)  ->  record, at each request  ->  after, recall (pages, other workers)

Called by `request.records` for every decision while `is_watched`; when nobody watches, a request costs no more than the
question whether somebody does. Bounded in bytes, in entries and in decisions per second, in all and for each user: one
user's requests neither evict nor hide those of the others. What is left out is counted.

Refusals are remembered in any case, by `ostiary_gateway.authorization.denials`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ostiary.core.bounded_cache import BoundedByOwner
from ostiary.core.clock import Clock
from ostiary.model import Attributes, Decision
from ostiary_gateway.authorization.cached_decision import FIXED_BYTES, attributes_size
from ostiary_gateway.authorization.denials import Refusal

ENTRIES = 4096
ENTRIES_PER_USER = 1024
# In bytes: what was asked may be as long as a request's head.
SIZE = 4 * 1024 * 1024
SIZE_PER_USER = 512 * 1024
# Of one worker.
PER_SECOND = 200
PER_USER_AND_SECOND = 50
# For how long after a page was loaded its visitor may load it again, and see what happened meanwhile.
WATCHED_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class RecentDecision:
    """A request that was decided on. `seconds` is how long it took; None if it goes on, as a watch does.

    `actor` is who asked in the name of the user, `scope` that of a token which refused it.
    """

    id: str
    attributes: Attributes
    decision: Decision
    at: datetime
    seconds: float | None = None
    actor: str = ""
    scope: str = ""

    @property
    def remembered(self) -> Refusal:
        """In the form in which refusals are remembered, for those who explain them; it may be none."""
        return Refusal(self.id, self.attributes, self.decision, self.at, self.scope)

    @property
    def place(self) -> tuple[datetime, str]:
        """Its place among all of them, the newest last."""
        return self.at, self.id


@dataclass(frozen=True, slots=True)
class DecisionBatch:
    """What came after some number: the latest of it, the oldest first; `missed` more were left out or forgotten."""

    number: int
    left_out: int
    decisions: Sequence[RecentDecision] = ()
    missed: int = 0


class RecentDecisions:
    def __init__(self, *, clock: Clock) -> None:
        self._now, self._monotonic = clock.now, clock.monotonic
        # Read at every request. It is True for a little longer than somebody watches: until the next request.
        self.is_watched = False
        self._until = 0.0
        self._number = 0
        self._left_out = 0
        # By id, each with its number, in the order of the numbers.
        self._kept: BoundedByOwner[str, tuple[int, RecentDecision]] = BoundedByOwner(
            SIZE, SIZE_PER_USER, entries=ENTRIES, share=ENTRIES_PER_USER
        )
        # Within the second that began at `_second`: how many in all, and of each user.
        self._second = 0.0
        self._taken = 0
        self._of_users: dict[str, int] = {}

    def watch(self, seconds: float = WATCHED_SECONDS) -> None:
        """Record for so long, at least."""
        self._end_if_over()
        self._until = max(self._until, self._monotonic() + seconds)
        self.is_watched = True

    def record(
        self,
        decision_id: str,
        attributes: Attributes,
        decision: Decision,
        *,
        seconds: float | None,
        actor: str = "",
        scope: str = "",
    ) -> None:
        """Called if `is_watched`. A watch is recorded when it begins, and not again when it ends."""
        self._end_if_over()
        if not self.is_watched or decision_id in self._kept:
            return
        user = attributes.user.username
        if not self._is_within_rate(user):
            self._left_out += 1
            return
        self._number += 1
        recent = RecentDecision(decision_id, attributes, decision, self._now(), seconds, actor, scope)
        size = FIXED_BYTES + attributes_size(attributes) + len(decision.reason) + len(scope)
        if not self._kept.keep(decision_id, (self._number, recent), owner=user, size=size):
            self._left_out += 1

    def after(self, number: int, left_out: int, limit: int) -> DecisionBatch:
        """The latest decisions with larger numbers than *number*; *left_out* is what the caller knows to be left out.

        A *number* larger than any is one of a worker that was here before.
        """
        if number > self._number:
            number, left_out = 0, 0
        decisions: list[RecentDecision] = []
        for key in reversed(self._kept):
            of_this, decision = self._kept[key]
            if of_this <= number or len(decisions) >= limit:
                break
            decisions.append(decision)
        missed = self._number - number - len(decisions) + self._left_out - left_out
        return DecisionBatch(self._number, self._left_out, decisions[::-1], max(0, missed))

    def latest(self, limit: int) -> list[RecentDecision]:
        """The newest first."""
        return list(self.after(0, 0, limit).decisions)[::-1]

    def recall(self, decision_id: str) -> RecentDecision | None:
        """The decision with this id, unless it is forgotten. Case does not matter: ids are read out."""
        entry = self._kept.get(decision_id.strip().lower())
        return None if entry is None else entry[1]

    def _end_if_over(self) -> None:
        if self.is_watched and self._monotonic() >= self._until:
            self.is_watched = False
            self._kept.clear()

    def _is_within_rate(self, user: str) -> bool:
        now = self._monotonic()
        if now - self._second >= 1:
            self._second, self._taken = now, 0
            self._of_users.clear()
        of_user = self._of_users.get(user, 0)
        if self._taken >= PER_SECOND or of_user >= PER_USER_AND_SECOND:
            return False
        self._taken += 1
        self._of_users[user] = of_user + 1
        return True
