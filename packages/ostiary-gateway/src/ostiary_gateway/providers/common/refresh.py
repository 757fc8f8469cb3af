"""The setting ``renewal``: what happens at a renewal when the identity system cannot be asked without the person.

    (left out)          a refresh token is used where there is one; else the session ends sooner, uncheckedSession
    renewal: session    the same, but without a refresh token it lasts as long as others: the operator accepts it
    renewal: signIn     it is not renewed: with its first token the person, or the program, has to sign in again

A proxy, a cookie and a certificate say who somebody is at the moment they are presented, and cannot be presented again
by the gateway. An OpenID Connect issuer may give a refresh token. Read by the providers of these kinds.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeAlias

from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.identity import RenewalCheck
from ostiary_gateway.settings.kinds import OneOf


class Renewal(Enum):
    DEFAULT = ""
    SESSION = "session"
    SIGN_IN = "signIn"

    def check(self, *, with_kept: bool = False) -> RenewalCheck:
        """Who is asked at renewals by a provider that has this setting."""
        if self is Renewal.SIGN_IN:
            return RenewalCheck.SIGN_IN
        if self is Renewal.SESSION:
            return RenewalCheck.ACCEPTED
        return RenewalCheck.WITH_KEPT if with_kept else RenewalCheck.NOBODY


RenewalSetting: TypeAlias = Annotated[
    Renewal,
    OneOf(
        "what a renewal relies on where nobody can be asked about the user: `session`: sessions last as long as others;"
        " `signIn`: they are not renewed",
        Renewal,
        mistake=f"it must be {Renewal.SESSION.value} or {Renewal.SIGN_IN.value}",
        hint="",
        unset="`tokens.uncheckedSession` holds",
    ),
]


async def sign_in_again(user: UserInfo) -> UserInfo:
    """The `revalidate` of a provider whose sessions are not renewed."""
    raise LoginRefused(
        "this session has expired or was revoked: sign in again", cause="the identity provider has renewal: signIn"
    )
