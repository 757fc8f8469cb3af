"""Session lifetimes, and whether a session's user can be checked again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from ostiary_gateway.config.provider import Groups, Identity
from ostiary_gateway.config.refresh_check import renewal_check
from ostiary_gateway.interfaces.identity import RenewalCheck


class SessionLifetimes:
    """Lifetimes of sessions. *unchecked* applies to sessions whose user cannot be checked again."""

    def __init__(
        self, identity: Mapping[str, Identity], groups: Sequence[Groups] = (), *, unchecked: timedelta
    ) -> None:
        self._identity = identity
        self._groups = groups
        self._unchecked = unchecked

    def of(self, provider: str, *, kept: bool) -> timedelta | None:
        """Return the lifetime; None for the default. *kept*: the provider stores state to check the user with."""
        accepted = self._check(provider) is RenewalCheck.ACCEPTED
        return None if accepted or not self.asks_nobody(provider, kept=kept) else self._unchecked

    def asks_nobody(self, provider: str, *, kept: bool) -> bool:
        """Report whether such a session is refreshed without a check of its user."""
        check = self._check(provider)
        return not kept and check not in (RenewalCheck.ASKED, RenewalCheck.SIGN_IN)

    def _check(self, provider: str) -> RenewalCheck:
        configured = self._identity.get(provider)
        return RenewalCheck.NOBODY if configured is None else renewal_check(configured, self._groups)
