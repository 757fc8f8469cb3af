"""What the identity system says about a sign-in goes into the user and comes out again, and is judged the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.identity import RequiredAuthentication
from ostiary_gateway.sessions.authentication_context import (
    ACR,
    AMR,
    AUTH_TIME,
    MAX_AHEAD,
    AuthenticationContext,
    context_of,
    satisfied_until,
    satisfies,
    with_context,
    with_latest_context,
    without_context,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
WORDS = st.text(min_size=1, max_size=8)
TIMES = st.integers(-100_000, 100_000).map(lambda seconds: NOW + timedelta(seconds=seconds))
CONTEXTS = st.builds(
    AuthenticationContext,
    acr=st.just("") | WORDS,
    amr=st.lists(WORDS, max_size=4, unique=True).map(tuple),
    auth_time=st.none() | TIMES,
)
REQUIRED = st.builds(
    RequiredAuthentication,
    acr_values=st.lists(WORDS, max_size=3).map(tuple),
    amr_values=st.lists(WORDS, max_size=3).map(tuple),
    max_age=st.none() | st.integers(0, 10_000).map(lambda seconds: timedelta(seconds=seconds)),
)
USER = UserInfo("ann", extra=(("example.com/team", ("red",)),))


@given(CONTEXTS)
def test_what_was_written_is_read(context: AuthenticationContext) -> None:
    assert context_of(with_context(USER, context)) == context


@given(CONTEXTS, CONTEXTS)
def test_nothing_of_an_earlier_sign_in_stays(earlier: AuthenticationContext, later: AuthenticationContext) -> None:
    twice = with_context(with_context(USER, earlier), later)
    assert twice == with_context(USER, later)
    assert without_context(twice) == USER
    assert list(twice.extra) == sorted(twice.extra)


@given(CONTEXTS, CONTEXTS)
def test_a_refresh_keeps_one_of_the_two_whole_and_never_an_older_one(
    said_now: AuthenticationContext, said_before: AuthenticationContext
) -> None:
    """A mixture could have the second factor of an old sign-in, and the time of a new one."""
    kept = context_of(with_latest_context(with_context(USER, said_now), with_context(USER, said_before)))
    assert kept in (said_now, said_before)
    if said_before.auth_time is not None:
        assert kept.auth_time is not None
        assert kept.auth_time >= said_before.auth_time


def test_the_keys_and_forms_are_those_that_others_rely_on() -> None:
    context = AuthenticationContext("gold", ("pwd", "otp"), NOW)
    extra = dict(with_context(UserInfo("ann"), context).extra)
    assert extra == {ACR: ("gold",), AMR: ("pwd", "otp"), AUTH_TIME: ("2026-03-01T12:00:00Z",)}


@pytest.mark.parametrize("values", [(), ("yesterday",), ("2026-03-01T12:00:00Z", "2026-03-01T12:00:01Z")])
def test_a_time_that_cannot_be_read_is_absent(values: tuple[str, ...]) -> None:
    user = UserInfo("ann", extra=((AUTH_TIME, values),))
    assert context_of(user).auth_time is None
    assert not satisfies(context_of(user), RequiredAuthentication(max_age=timedelta(days=365)), now=NOW)


@given(CONTEXTS, REQUIRED, TIMES)
def test_asking_for_more_never_helps(
    context: AuthenticationContext, required: RequiredAuthentication, now: datetime
) -> None:
    """Each part of a requirement is a condition of its own, and all of them count."""
    parts = [
        RequiredAuthentication(acr_values=required.acr_values),
        RequiredAuthentication(amr_values=required.amr_values),
        RequiredAuthentication(max_age=required.max_age),
    ]
    assert satisfies(context, required, now=now) == all(satisfies(context, part, now=now) for part in parts)


@given(REQUIRED, TIMES)
def test_who_is_said_nothing_about_meets_only_what_requires_nothing(
    required: RequiredAuthentication, now: datetime
) -> None:
    assert satisfies(AuthenticationContext(), required, now=now) == (required == RequiredAuthentication())


@given(CONTEXTS, REQUIRED, TIMES, st.integers(0, 100_000))
def test_only_a_new_sign_in_makes_good_what_time_has_ended(
    context: AuthenticationContext, required: RequiredAuthentication, now: datetime, later: int
) -> None:
    ahead = context.auth_time is not None and context.auth_time > now
    if not ahead and not satisfies(context, required, now=now):
        assert not satisfies(context, required, now=now + timedelta(seconds=later))


@given(CONTEXTS, REQUIRED, TIMES)
def test_it_holds_until_the_time_that_is_told(
    context: AuthenticationContext, required: RequiredAuthentication, now: datetime
) -> None:
    until = satisfied_until(context, required)
    if satisfies(context, required, now=now) and until is not None:
        assert now <= until
        assert not satisfies(context, required, now=until + timedelta(seconds=1))


@pytest.mark.parametrize(("ahead", "enough"), [(MAX_AHEAD, True), (MAX_AHEAD + timedelta(seconds=1), False)])
def test_a_sign_in_of_the_future_does_not_count(ahead: timedelta, enough: bool) -> None:
    context = AuthenticationContext(auth_time=NOW + ahead)
    assert satisfies(context, RequiredAuthentication(max_age=timedelta(minutes=15)), now=NOW) is enough
