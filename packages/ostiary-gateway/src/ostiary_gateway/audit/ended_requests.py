"""What became of requests that never reached a decision: nobody was identified, a sign-in failed, a limit was reached.

Called where such an answer is sent; read by ``ostiary-gateway explain <id> --server``. Decisions are remembered by
`ostiary_gateway.authorization.denials`. Bounded, and one address cannot evict the entries of all others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from ostiary.core.cache import Cache
from ostiary.core.clock import Clock

ENTRIES = 4096
# An operator who is asked about an id is asked the same day.
KEPT_SECONDS = 24 * 3600.0
# Strangers write these: paths as long as a head, names as long as a form.
LONGEST_TEXT = 512


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """How a request ended. `username` is who was identified, or who somebody claimed to be at sign-in.

    `login` is what became of a sign-in, and `provider` whom it was with; both are empty for other requests.
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
    def __init__(self, *, clock: Clock, entries: int = ENTRIES) -> None:
        self._kept: Cache[str, EndedRequest] = Cache(seconds=KEPT_SECONDS, clock=clock, entries=entries)
        # Told of each request; it must return at once.
        self.on_recorded: Callable[[EndedRequest], None] = lambda request: None

    def record(self, request: EndedRequest) -> None:
        texts = {name: getattr(request, name) for name in ("reason", "method", "path", "username")}
        if any(len(text) > LONGEST_TEXT for text in texts.values()):
            request = replace(request, **{name: text[:LONGEST_TEXT] for name, text in texts.items()})
        self._kept.put(request.id, request, owner=request.address)
        self.on_recorded(request)

    def recall(self, request_id: str) -> EndedRequest | None:
        """How the request of this id ended, unless it is forgotten. Case does not matter: ids are read out."""
        return self._kept.get(request_id.strip().lower())
