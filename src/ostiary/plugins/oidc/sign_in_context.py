"""How a person signed in, as an ID token says it: ``acr``, ``amr``, ``auth_time``. Pure; called by `oidc.identity`.

At a renewal the person was not there, so what is known stays, unless the issuer itself says something else. An issuer
may leave out at a refresh what it said at the sign-in (OpenID Connect Core, 12.2); what it does say takes the place of
the old. If it names another time, the person has signed in there again: then nothing of the earlier sign-in counts. A
time that is well after the issuance of the token which says so is not believed.
"""

from __future__ import annotations

from datetime import UTC, datetime

from ostiary.core.users.authentication_context import MAX_AHEAD, AuthenticationContext
from ostiary.interfaces.identity import RequiredAuthentication
from ostiary.plugins.common.jwt.tokens import Claims, TokenRefused, time_of

MAX_TEXT = 256
MAX_METHODS = 32
NOTHING_KNOWN = AuthenticationContext()


def sign_in_context(id_token: Claims, before: AuthenticationContext = NOTHING_KNOWN) -> AuthenticationContext:
    """What *id_token* says, and for what it does not say *before*, if it is about the same sign-in."""
    auth_time = _auth_time(id_token)
    if auth_time not in (None, before.auth_time):
        before = NOTHING_KNOWN
    return AuthenticationContext(
        acr=_text(id_token.get("acr")) or before.acr,
        amr=_texts(id_token.get("amr")) or before.amr,
        auth_time=auth_time or before.auth_time,
    )


def required_parameters(required: RequiredAuthentication | None) -> dict[str, str]:
    """How the issuer is asked for a sign-in as *required* says (OpenID Connect Core, 3.1.2.1).

    It cannot be asked for methods (``amr``). Where only these are required the person signs in anew: an issuer that
    remembers them would otherwise repeat the methods of an earlier sign-in, which were not enough.
    """
    if required is None:
        return {}
    parameters = {"acr_values": " ".join(required.acr_values)} if required.acr_values else {}
    if required.max_age is not None:
        parameters["max_age"] = str(int(required.max_age.total_seconds()))
    if required.amr_values and not required.acr_values:
        parameters["prompt"] = "login"
    return parameters


def _text(value: object) -> str:
    """*value*, if it is a text that a header can carry."""
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable() or value != value.strip():
        return ""
    return value


def _texts(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    texts = tuple(text for item in values if (text := _text(item)))
    # A list of which a part cannot be read does not say how somebody signed in.
    return texts if len(texts) == len(values) <= MAX_METHODS else ()


def _auth_time(id_token: Claims) -> datetime | None:
    try:
        seconds, issued = time_of(id_token, "auth_time"), time_of(id_token, "iat")
    except TokenRefused:
        return None
    if not seconds or issued is None or seconds > issued + MAX_AHEAD.total_seconds():
        return None
    # Two machines of one issuer may differ by seconds.
    return datetime.fromtimestamp(min(seconds, issued), UTC)
