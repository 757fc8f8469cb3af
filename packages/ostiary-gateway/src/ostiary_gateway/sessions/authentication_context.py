"""How a user signed in, as reported by the IdP, and whether that satisfies a step-up rule. Pure.

    with_context(user, AuthenticationContext(acr="urn:example:gold", amr=("pwd", "otp"), auth_time=moment))

Identity providers store it in `UserInfo.extra`, where step-up rules read it. A refresh does not make `auth_time` newer,
unless the IdP reports a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.identity import RequiredAuthentication

ACR = "ostiary.dev/acr"
AMR = "ostiary.dev/amr"
AUTH_TIME = "ostiary.dev/auth-time"
KEYS = (ACR, AMR, AUTH_TIME)

# Maximum time by which the IdP's clock may be ahead. A time further ahead would count as recent for too long.
MAX_AHEAD = timedelta(minutes=1)
_FORM = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class AuthenticationContext:
    """The level that was reached (`acr`), the methods that were used (`amr`), and the time of authentication.

    A field is empty or None if the IdP does not report it.
    """

    acr: str = ""
    amr: tuple[str, ...] = ()
    auth_time: datetime | None = None


def with_context(user: UserInfo, context: AuthenticationContext) -> UserInfo:
    """Return *user* with *context*, which replaces any previous one."""
    fields = {key: values for key, values in user.extra if key not in KEYS}
    if context.acr:
        fields[ACR] = (context.acr,)
    if context.amr:
        fields[AMR] = tuple(dict.fromkeys(context.amr))
    if context.auth_time is not None:
        fields[AUTH_TIME] = (context.auth_time.astimezone(UTC).strftime(_FORM),)
    return replace(user, extra=tuple(sorted(fields.items())))


def context_of(user: UserInfo) -> AuthenticationContext:
    """Return the authentication context of *user*. A field that cannot be parsed counts as absent."""
    fields = dict(user.extra)
    return AuthenticationContext(
        acr=_only(fields.get(ACR, ())), amr=fields.get(AMR, ()), auth_time=_time(_only(fields.get(AUTH_TIME, ())))
    )


def with_latest_context(user: UserInfo, before: UserInfo) -> UserInfo:
    """Return *user*, as a refresh reports them, with the later context: that of the refresh, or that of *before*.

    At a refresh, an IdP repeats the context of the sign-in that the refresh token came from, or reports none.
    """
    said_now, said_before = context_of(user), context_of(before)
    if said_before == AuthenticationContext():
        return user
    if said_now.auth_time is None or said_before.auth_time is None:
        # Without times, the refresh is later only if neither has one.
        is_later = said_before.auth_time is None and said_now != AuthenticationContext()
    else:
        # With equal times it may mix the previous context with that of the refresh token's sign-in.
        is_later = said_now.auth_time > said_before.auth_time
    return user if is_later else with_context(user, said_before)


def without_context(user: UserInfo) -> UserInfo:
    """Return *user* without an authentication context."""
    return replace(user, extra=tuple((key, values) for key, values in user.extra if key not in KEYS))


def satisfies(context: AuthenticationContext, required: RequiredAuthentication, *, now: datetime) -> bool:
    """Whether *context* satisfies *required*: one of its levels, one of its methods, and recent enough.

    A field that the IdP does not report never satisfies a requirement.
    """
    if required.acr_values and context.acr not in required.acr_values:
        return False
    if required.amr_values and not set(required.amr_values) & set(context.amr):
        return False
    return required.max_age is None or _is_recent(context.auth_time, required.max_age, now)


def satisfied_until(context: AuthenticationContext, required: RequiredAuthentication) -> datetime | None:
    """Return when *context* is no longer recent enough for *required*; None if *required* has no `max_age`."""
    if required.max_age is None or context.auth_time is None:
        return None
    return context.auth_time + required.max_age


def _is_recent(auth_time: datetime | None, max_age: timedelta, now: datetime) -> bool:
    return auth_time is not None and auth_time - MAX_AHEAD <= now <= auth_time + max_age


def _only(values: Iterable[str]) -> str:
    match tuple(values):
        case (value,):
            return value
        case _:
            return ""


def _time(text: str) -> datetime | None:
    try:
        moment = datetime.strptime(text, _FORM).replace(tzinfo=UTC)
    except ValueError:
        return None
    # Far from the ends of the calendar, so that a span can be added or subtracted.
    return moment if 1970 <= moment.year < 9000 else None
