"""What the identity system says about how a person signed in, and whether that is enough. Pure.

    with_context(user, AuthenticationContext(acr="urn:example:gold", amr=("pwd", "otp"), auth_time=moment))

Identity providers write it into `UserInfo.extra`, so that it goes wherever the user goes; step-up rules read it there.
It is kept through renewals: a refresh does not make `auth_time` newer, unless the identity system itself says so.
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

# How far the identity system's clock may be ahead of ours. A time further ahead would stay new for longer than allowed.
MAX_AHEAD = timedelta(minutes=1)
_FORM = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class AuthenticationContext:
    """`acr` is the level that was reached, `amr` are the methods that were used, `auth_time` is when the person proved
    who they are. Empty and None where the identity system does not say."""

    acr: str = ""
    amr: tuple[str, ...] = ()
    auth_time: datetime | None = None


def with_context(user: UserInfo, context: AuthenticationContext) -> UserInfo:
    """*user* with what *context* says, and with nothing of what was said before."""
    fields = {key: values for key, values in user.extra if key not in KEYS}
    if context.acr:
        fields[ACR] = (context.acr,)
    if context.amr:
        fields[AMR] = tuple(dict.fromkeys(context.amr))
    if context.auth_time is not None:
        fields[AUTH_TIME] = (context.auth_time.astimezone(UTC).strftime(_FORM),)
    return replace(user, extra=tuple(sorted(fields.items())))


def context_of(user: UserInfo) -> AuthenticationContext:
    """What is known of the sign-in of *user*. A field that cannot be read counts as absent."""
    fields = dict(user.extra)
    return AuthenticationContext(
        acr=_only(fields.get(ACR, ())), amr=fields.get(AMR, ()), auth_time=_time(_only(fields.get(AUTH_TIME, ())))
    )


def with_latest_context(user: UserInfo, before: UserInfo) -> UserInfo:
    """*user*, as a refresh describes them, with the later of the two sign-ins: the refresh's own, or that of *before*.

    An identity system repeats the sign-in that a refresh token came from, or says nothing of it.
    """
    said_now, said_before = context_of(user), context_of(before)
    if said_before == AuthenticationContext():
        return user
    if said_now.auth_time is None or said_before.auth_time is None:
        # Without a time it is later only if the other has none either.
        is_later = said_before.auth_time is None and said_now != AuthenticationContext()
    else:
        # Of the same time it may be a mixture: of what was said before, and of what the refresh token came from.
        is_later = said_now.auth_time > said_before.auth_time
    return user if is_later else with_context(user, said_before)


def without_context(user: UserInfo) -> UserInfo:
    """*user* without what is known of the sign-in."""
    return replace(user, extra=tuple((key, values) for key, values in user.extra if key not in KEYS))


def satisfies(context: AuthenticationContext, required: RequiredAuthentication, *, now: datetime) -> bool:
    """Whether a sign-in as *context* describes it is enough for *required*: one of its levels, one of its methods, and
    not too long ago. What the identity system has not said is not there."""
    if required.acr_values and context.acr not in required.acr_values:
        return False
    if required.amr_values and not set(required.amr_values) & set(context.amr):
        return False
    return required.max_age is None or _is_recent(context.auth_time, required.max_age, now)


def satisfied_until(context: AuthenticationContext, required: RequiredAuthentication) -> datetime | None:
    """When *context* is no longer recent enough for *required*; None where *required* has no `max_age`."""
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
    # Far from the ends of the calendar, so that a span can be added and taken away.
    return moment if 1970 <= moment.year < 9000 else None
