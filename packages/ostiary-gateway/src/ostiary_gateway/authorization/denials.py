"""The latest refusals, each under a decision id that the caller is told and an operator can have explained.

Called by `ostiary_gateway.authorization.chain`. The id says nothing by itself and cannot be guessed; what was refused
is shown to operators only. Bounded in bytes: one user's refusals evict only that user's.
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
# In bytes: what was asked may be as long as a request's head.
SIZE = 8 * 1024 * 1024
SIZE_PER_USER = 512 * 1024
LATEST = 100
# People ask an operator about a refusal on the same day.
KEPT_SECONDS = 24 * 3600.0
# 80 bits are 16 letters and digits without padding: short enough to be read out.
_ID_BYTES = 10


@dataclass(frozen=True, slots=True)
class Refusal:
    id: str
    attributes: Attributes
    decision: Decision
    at: datetime
    # Of the token, if that refused it and not the policy.
    scope: str = ""

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return FIXED_BYTES + attributes_size(self.attributes) + len(self.decision.reason) + len(self.scope)


class RecentDenials:
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
        # Told of each refusal; it must return at once.
        self.on_recorded: Callable[[Refusal], None] = lambda refusal: None

    def record(self, attributes: Attributes, decision: Decision, decision_id: str | None = None) -> str:
        """Remember a refusal under the id of its request, or under a new one, which is returned."""
        decision_id = decision_id or base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()
        scope = decision.scope if isinstance(decision, OutOfScope) else ""
        refusal = Refusal(decision_id, attributes, decision, self._clock.now(), scope)
        self._kept.put(decision_id, refusal, owner=attributes.user.username)
        self._latest.append(refusal)
        self.on_recorded(refusal)
        return decision_id

    def recent(self, limit: int) -> list[Refusal]:
        """The latest ones, the newest first."""
        return list(self._latest)[: -limit - 1 : -1]

    def recall(self, decision_id: str) -> Refusal | None:
        """What was refused under this id, unless it is forgotten. Case does not matter: ids are read out."""
        return self._kept.get(decision_id.strip().lower())
