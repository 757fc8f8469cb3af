"""Recent denials, by decision ids that clients receive and operators can have explained.

An id reveals nothing and cannot be guessed; only operators see what was denied. Bounded in bytes: a user's denials
evict only denials of the same user.
"""

from __future__ import annotations

import base64
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from ostiary.core.cache import Cache
from ostiary.core.clock import Clock
from ostiary.model import Attributes, Decision
from ostiary_gateway.authorization.cached_decision import FIXED_BYTES, OutOfScope, attributes_size

ENTRIES = 4096
# In bytes: attributes may be as large as a request's head.
SIZE = 8 * 1024 * 1024
SIZE_PER_USER = 512 * 1024
LATEST = 100
# Users contact an operator about a denial on the same day.
KEPT_SECONDS = 24 * 3600.0
# 80 bits are 16 letters and digits without padding: short enough to be read out.
_ID_BYTES = 10


@dataclass(frozen=True, slots=True)
class Refusal:
    id: str
    attributes: Attributes
    decision: Decision
    at: datetime
    # The token's scope, if the scope caused the denial and not the policy.
    scope: str = ""

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return FIXED_BYTES + attributes_size(self.attributes) + len(self.decision.reason) + len(self.scope)


class RecentDenials:
    """Bounded cache of denials by decision id."""

    def __init__(self, *, clock: Clock, entries: int = ENTRIES) -> None:
        self._clock = clock
        self._kept: Cache[str, Refusal] = Cache(
            seconds=KEPT_SECONDS,
            clock=clock,
            entries=entries,
            size=SIZE,
            share_size=SIZE_PER_USER,
            value_size=lambda refusal: refusal.size,
        )
        self._latest: deque[Refusal] = deque(maxlen=LATEST)
        # Called with each denial; must return quickly.
        self.on_recorded: Callable[[Refusal], None] = lambda refusal: None

    def record(self, attributes: Attributes, decision: Decision, decision_id: str | None = None) -> str:
        """Record a denial under the id of its request or a new one. Return the id."""
        decision_id = decision_id or base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()
        scope = decision.scope if isinstance(decision, OutOfScope) else ""
        refusal = Refusal(decision_id, attributes, decision, self._clock.now(), scope)
        self._kept.put(decision_id, refusal, owner=attributes.user.username)
        self._latest.append(refusal)
        self.on_recorded(refusal)
        return decision_id

    def recent(self, limit: int) -> list[Refusal]:
        """Return recent denials, newest first."""
        return list(self._latest)[: -limit - 1 : -1]

    def recall(self, decision_id: str) -> Refusal | None:
        """Return the denial with this id, unless it was evicted.

        Ids are case-insensitive, because they are read out.
        """
        return self._kept.get(decision_id.strip().lower())
