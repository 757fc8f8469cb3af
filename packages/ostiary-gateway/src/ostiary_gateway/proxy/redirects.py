"""Redirects allowed requests to the backend itself, with proof that they are allowed: for large downloads.

Called by the forwarder for upstreams with ``redirect``. The bytes of the answer then do not pass through the gateway.
Where to is the origin of the configuration, whatever a request says; the proof is an action token, which the library
for backends verifies (`wire.ostiary_dev.action_token`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from ostiary_gateway.config.upstream import RedirectSettings
from ostiary_gateway.config.values import is_listed
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.wire.action_token import LONGEST_URL, METHODS, AllowedAction, add_parameter


class SignAction(Protocol):
    """Raises `ProviderError` if there is no key. The proof ends at *ends_at* in any case."""

    def __call__(
        self, session: Session, action: AllowedAction, *, audience: str, lifetime: timedelta, ends_at: datetime
    ) -> str: ...


class Redirects:
    """Those of one upstream."""

    def __init__(self, settings: RedirectSettings, sign: SignAction) -> None:
        self.origin = settings.to
        self._origin = settings.to.encode("ascii")
        self._paths = settings.paths
        self._lifetime = settings.lifetime
        self._sign = sign

    def cover(self, method: str, path: str) -> bool:
        """Whether such requests are redirected, if they have no body."""
        return method in METHODS and is_listed(path, self._paths)

    def url(self, target: bytes) -> bytes:
        """Where the backend has *target*, path and query, which was checked by `request.target`."""
        return self._origin + target

    def location(self, session: Session, action: AllowedAction, ends_at: datetime) -> bytes | None:
        """The URL of *action* with its proof; None if that is too long. Raises `ProviderError`.

        It is never made shorter: without some of their groups, a user would be somebody else to the backend.
        """
        proof = self._sign(session, action, audience=self.origin, lifetime=self._lifetime, ends_at=ends_at)
        location = add_parameter(action.url, proof)
        return location if len(location) <= LONGEST_URL else None
