"""Requests that ended before a policy decision: unauthenticated, failed sign-in, limit reached.

``ostiary-gateway explain <id> --server`` reads them. The cache is bounded, and one address cannot evict the entries of
all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from ostiary.core.cache import Cache
from ostiary.core.clock import Clock

ENTRIES = 4096
# Users report a request id to their operator within a day.
KEPT_SECONDS = 24 * 3600.0
# Unauthenticated clients control these texts: a path can be as long as a request head.
LONGEST_TEXT = 512


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """How a request ended. `username` is the authenticated user, or the name that a client claimed at sign-in.

    `login` is the outcome of a sign-in, and `provider` its identity provider; both are empty for other requests.
    """

    id: str
    at: datetime
    status: int
    reason: str = ""
    method: str = ""
    path: str = ""
    address: str = ""
    username: str = ""
    login: str = ""
    provider: str = ""


class EndedRequests:
    """Bounded cache of requests that ended before a policy decision, by request id."""

    def __init__(self, *, clock: Clock, entries: int = ENTRIES) -> None:
        self._kept: Cache[str, EndedRequest] = Cache(seconds=KEPT_SECONDS, clock=clock, entries=entries)
        # Called with each request. Must not block.
        self.on_recorded: Callable[[EndedRequest], None] = lambda request: None

    def record(self, request: EndedRequest) -> None:
        texts = {name: getattr(request, name) for name in ("reason", "method", "path", "username")}
        if any(len(text) > LONGEST_TEXT for text in texts.values()):
            request = replace(request, **{name: text[:LONGEST_TEXT] for name, text in texts.items()})
        self._kept.put(request.id, request, owner=request.address)
        self.on_recorded(request)

    def recall(self, request_id: str) -> EndedRequest | None:
        """Return how the request with this id ended, if it is still cached.

        Case does not matter: users read ids aloud.
        """
        return self._kept.get(request_id.strip().lower())
