"""What becomes of a session when nobody can be asked about its user without the user.

    renewal: session     the session is renewed until it ends; who leaves is out by then at the latest, or when revoked
    renewal: signIn      it is not renewed: with its first token the person, or the program, has to sign in again

An OpenID Connect issuer, a proxy, a cookie and a certificate say who somebody is at the moment they are presented, and
we keep nothing that could be presented again in their place: no refresh token lies in the store of a gateway.
"""

from __future__ import annotations

from enum import Enum

from ostiary.core.config import Fields
from ostiary.errors import LoginRefused
from ostiary.model import UserInfo


class Renewal(Enum):
    SESSION = "session"
    SIGN_IN = "signIn"


def read_renewal(fields: Fields) -> Renewal:
    text = fields.optional_string("renewal")
    try:
        return Renewal.SESSION if text is None else Renewal(text)
    except ValueError:
        fields.problem(f"it must be {' or '.join(choice.value for choice in Renewal)}", "renewal")
        return Renewal.SESSION


async def sign_in_again(user: UserInfo) -> UserInfo:
    """The `revalidate` of a provider whose sessions are not renewed."""
    raise LoginRefused("this session has ended: sign in again", cause="the identity provider has renewal: signIn")
