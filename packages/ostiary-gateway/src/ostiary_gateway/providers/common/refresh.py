"""The setting ``renewal``: how sessions are refreshed if the identity provider cannot be queried without the user.

    (left out)          a refresh token is used if there is one; else the session ends sooner, uncheckedSession
    renewal: session    without a refresh token the session lasts as long as others: the operator accepts that
    renewal: signIn     sessions are not refreshed: when the first token expires, the user or client signs in again

A proxy, a cookie and a certificate identify the user only while the client presents them; the gateway cannot present
them again. An OpenID Connect issuer may return a refresh token.
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
        """Return what a provider with this setting checks when a session is refreshed."""
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
    """Deny the refresh. The `revalidate` of a provider whose sessions are not refreshed."""
    raise LoginRefused(
        "this session has expired or was revoked: sign in again", cause="the identity provider has renewal: signIn"
    )
