"""Recent decisions of this worker, including allowed requests, while an operator watches.

    watch (page load, open stream)  ->  record, for each request  ->  after, recall (pages, other workers)

If no operator watches, a request costs one check of `is_watched`. Bounded in bytes, entries and decisions per second,
in total and per user: one user's requests neither evict nor hide those of others. Omitted decisions are counted.

Denials are always recorded, by `authorization.denials`.
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
# In bytes: attributes may be as large as a request's head.
SIZE = 4 * 1024 * 1024
SIZE_PER_USER = 512 * 1024
# Per worker.
PER_SECOND = 200
PER_USER_AND_SECOND = 50
# How long after a page load decisions are recorded, so that the operator can reload the page.
WATCHED_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class RecentDecision:
    """A decided request. `seconds` is its duration; None if it continues, like a watch.

    `actor` is who sent it on behalf of the user. `scope` is that of the token if the scope caused the denial.
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
        """This decision as a `Refusal`, for code that explains denials. The request may have been allowed."""
        return Refusal(self.id, self.attributes, self.decision, self.at, self.scope)

    @property
    def place(self) -> tuple[datetime, str]:
        """The sort key: chronological, newest last."""
        return self.at, self.id


@dataclass(frozen=True, slots=True)
class DecisionBatch:
    """The decisions after some number: the latest of them, oldest first. `missed` more were omitted or evicted."""

    number: int
    left_out: int
    decisions: Sequence[RecentDecision] = ()
    missed: int = 0


class RecentDecisions:
    """Bounded cache of the latest decisions of this worker. It is filled only while an operator watches."""

    def __init__(self, *, clock: Clock) -> None:
        self._now, self._monotonic = clock.now, clock.monotonic
        # Read for every request. Stays True until the first request after the watch has ended.
        self.is_watched = False
        self._until = 0.0
        self._number = 0
        self._left_out = 0
        # By id, each with its number, ordered by number.
        self._kept: BoundedByOwner[str, tuple[int, RecentDecision]] = BoundedByOwner(
            SIZE, SIZE_PER_USER, entries=ENTRIES, share=ENTRIES_PER_USER
        )
        # The number of decisions in the second that began at `_second`, in total and per user.
        self._second = 0.0
        self._taken = 0
        self._of_users: dict[str, int] = {}

    def watch(self, seconds: float = WATCHED_SECONDS) -> None:
        """Record for at least *seconds*."""
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
        """Record a decision if `is_watched`. A long-running request is recorded when it begins, not when it ends."""
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
        """Return the latest decisions with numbers above *number*. *left_out* is the caller's last count.

        A *number* above the current one comes from an earlier worker process.
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
        """Return recent decisions, newest first."""
        return list(self.after(0, 0, limit).decisions)[::-1]

    def recall(self, decision_id: str) -> RecentDecision | None:
        """Return the decision with this id, unless it was evicted.

        Ids are case-insensitive, because they are read out.
        """
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
