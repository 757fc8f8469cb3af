"""Required authentication of a sign-in: serialization, and the check of the result."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.authorization.step_up import describe
from ostiary_gateway.interfaces.identity import RequiredAuthentication
from ostiary_gateway.sessions.authentication_context import context_of, satisfies

RequiredJson: TypeAlias = tuple[Sequence[str], Sequence[str], float | None]


def required_json(required: RequiredAuthentication) -> list[object]:
    seconds = None if required.max_age is None else required.max_age.total_seconds()
    return [required.acr_values, required.amr_values, seconds]


def required_from_json(value: RequiredJson) -> RequiredAuthentication:
    acr_values, amr_values, seconds = value
    return RequiredAuthentication(
        acr_values=tuple(acr_values),
        amr_values=tuple(amr_values),
        max_age=None if seconds is None else timedelta(seconds=seconds),
    )


def is_enough(user: UserInfo, required: RequiredAuthentication | None, now: datetime) -> bool:
    """Report whether the sign-in of *user* satisfies *required*."""
    return required is None or satisfies(context_of(user), required, now=now)


def check_required(user: UserInfo, required: RequiredAuthentication | None, now: datetime) -> None:
    """Raise `LoginRefused` if the sign-in does not satisfy *required*. Another attempt would not change it."""
    if required is not None and not is_enough(user, required, now):
        context = context_of(user)
        acr, amr, at = context.acr or "none", ", ".join(context.amr) or "none", context.auth_time or "no time"
        raise LoginRefused(
            "your identity provider did not confirm the sign-in that this needs",
            cause=f"required: {describe(required)}; the identity system said: acr {acr}, amr {amr}, signed in at {at}",
        )
