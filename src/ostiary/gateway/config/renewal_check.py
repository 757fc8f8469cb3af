"""Who is asked about a user when a session of an identity provider is renewed. Pure.

Called by the checks of the configuration, and by `gateway.login` for the length of sessions.
"""

from __future__ import annotations

from ostiary.core.abilities import ability
from ostiary.interfaces.identity import RenewalCheck, Revalidates, TellsRenewalCheck


def renewal_check(instance: object) -> RenewalCheck:
    """What the provider says, or what follows from what it can do."""
    telling = ability(instance, TellsRenewalCheck)
    if telling is not None and isinstance(telling.renewal_check, RenewalCheck):
        return telling.renewal_check
    return RenewalCheck.NOBODY if ability(instance, Revalidates) is None else RenewalCheck.ASKED
