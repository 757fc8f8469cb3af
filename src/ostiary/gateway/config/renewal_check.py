"""Who is asked about a user when a session of an identity provider is renewed. Pure.

Called by the checks of the configuration, and by `gateway.login` for the length of sessions.
"""

from __future__ import annotations

from ostiary.interfaces.identity import RenewalCheck, Revalidates, TellsRenewalCheck


def renewal_check(instance: object) -> RenewalCheck:
    """What the provider says, or what follows from what it can do."""
    if isinstance(instance, TellsRenewalCheck) and isinstance(instance.renewal_check, RenewalCheck):
        return instance.renewal_check
    return RenewalCheck.ASKED if isinstance(instance, Revalidates) else RenewalCheck.NOBODY
