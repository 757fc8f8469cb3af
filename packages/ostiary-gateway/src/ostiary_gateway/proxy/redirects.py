"""Redirect allowed requests to the backend itself, with an action token as proof: for large downloads.

The response then does not pass through the gateway. The origin comes from the configuration, never from the request.
Backends verify the proof with the library for backends (`wire.action_token`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol

from ostiary_gateway.config.upstream import RedirectSettings
from ostiary_gateway.config.values import is_listed
from ostiary_gateway.interfaces.token_store import Session
from ostiary_gateway.wire.action_token import LONGEST_URL, METHODS, AllowedAction, add_parameter


class SignAction(Protocol):
    """Sign an action token that expires at *ends_at* at the latest; raises `ProviderError` if there is no key."""

    def __call__(
        self, session: Session, action: AllowedAction, *, audience: str, lifetime: timedelta, ends_at: datetime
    ) -> str: ...


class Redirects:
    """The redirects of one upstream."""

    def __init__(self, settings: RedirectSettings, sign: SignAction) -> None:
        self.origin = settings.to
        self._origin = settings.to.encode("ascii")
        self._paths = settings.paths
        self._lifetime = settings.lifetime
        self._sign = sign

    def cover(self, method: str, path: str) -> bool:
        """Whether requests of this method and path are redirected, if they have no body."""
        return method in METHODS and is_listed(path, self._paths)

    def url(self, target: bytes) -> bytes:
        """Return the backend's URL of *target*, a path and query checked by `proxy.target`."""
        return self._origin + target

    def location(self, session: Session, action: AllowedAction, ends_at: datetime) -> bytes | None:
        """Return the URL of *action* with its proof; None if it is too long. Raises `ProviderError`.

        It is never shortened: with fewer groups, the backend would see a different user.
        """
        proof = self._sign(session, action, audience=self.origin, lifetime=self._lifetime, ends_at=ends_at)
        location = add_parameter(action.url, proof)
        return location if len(location) <= LONGEST_URL else None
