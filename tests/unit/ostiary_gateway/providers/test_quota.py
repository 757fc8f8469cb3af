"""Quotas: so many requests in a span, no larger bodies, and a refused creation does not count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import ConfigurationError
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.catalog import Context
from ostiary_gateway.providers.quota import Limit, RequestQuota
from ostiary_gateway.testing import FakeClock


def request(user: str = "jane", verb: str = "create", what: str = "pods", **more: Any) -> Attributes:
    groups = more.pop("groups", ())
    resource, _, subresource = what.partition("/")
    more.setdefault("namespace", "dev")
    info = RequestInfo(verb, "POST", "/", is_resource=True, resource=resource, subresource=subresource, **more)
    return Attributes(UserInfo(user, groups=groups), info)


def quota(clock: FakeClock, *, key_limit: int = 10_000, **limit: Any) -> RequestQuota:
    return RequestQuota([Limit("pods", **limit)], clock=clock, key_limit=key_limit)


def admitted(quota: RequestQuota, attributes: Attributes, size: int | None = 0) -> bool:
    return quota.admit(attributes, size=size).admitted


def read(text: str, clock: FakeClock) -> RequestQuota:
    reading = ConfigReader(parse(text, file="gateway.yaml"))
    made = RequestQuota.from_config(reading.root, Context("quota", clock=clock))
    reading.finish("the configuration cannot be used", strict=True)
    return made


# --- counting ---


def test_so_many_requests_and_no_more(clock: FakeClock) -> None:
    """S71."""
    limit = quota(clock, count=2)
    assert [admitted(limit, request()) for _ in range(4)] == [True, True, False, False]


def test_a_refusal_is_told_in_the_words_of_kubernetes(clock: FakeClock) -> None:
    """S71."""
    limit = quota(clock, count=1)
    limit.admit(request(), size=0)
    answer = limit.admit(request(), size=0)
    assert answer.reason == "exceeded quota: pods, requested: requests=1, used: requests=1, limited: requests=1"
    assert answer.retry_after is None, "nobody is kept waiting for an hour: it is forbidden"


def test_a_short_span_says_when_to_come_again(clock: FakeClock) -> None:
    """S71."""
    limit = quota(clock, count=1, per=timedelta(seconds=10))
    limit.admit(request(), size=0)
    seconds = limit.admit(request(), size=0).retry_after
    assert seconds is not None
    assert 10 <= seconds <= 10 + 10 / 60
    clock.advance(seconds + 0.001)
    assert admitted(limit, request())


def test_the_span_slides(clock: FakeClock) -> None:
    limit = quota(clock, count=2)
    admitted(limit, request())
    clock.advance(minutes=50)
    admitted(limit, request())
    clock.advance(minutes=9, seconds=59)
    assert not admitted(limit, request())
    clock.advance(minutes=2)
    assert admitted(limit, request())
    assert not admitted(limit, request())


def test_a_refused_creation_does_not_count(clock: FakeClock) -> None:
    """S71."""
    limit = quota(clock, count=1)
    for status in (400, 403, 409, 500):
        assert admitted(limit, request())
        limit.settled(request(), status=status)
    assert admitted(limit, request())
    limit.settled(request(), status=201)
    assert not admitted(limit, request())


def test_a_request_that_one_limit_refuses_is_not_charged_to_another(clock: FakeClock) -> None:
    limit = RequestQuota([Limit("all", count=2), Limit("small", largest_body=10)], clock=clock)
    for _ in range(5):
        assert not admitted(limit, request(), size=11)
    assert admitted(limit, request(), size=10)


@pytest.mark.parametrize(
    ("by", "other", "shares"),
    [
        ("user", request("joe"), False),
        ("user", request(namespace="prod"), True),
        ("namespace", request("joe"), True),
        ("namespace", request(namespace="prod"), False),
        ("everyone", request("joe", namespace="prod"), True),
    ],
)
def test_who_shares_a_count(clock: FakeClock, by: str, other: Attributes, shares: bool) -> None:
    limit = quota(clock, count=1, by=by)
    assert admitted(limit, request())
    assert admitted(limit, other) is not shares


def test_a_count_of_zero_forbids(clock: FakeClock) -> None:
    answer = quota(clock, count=0, per=timedelta(seconds=1)).admit(request(), size=0)
    assert not answer.admitted
    assert answer.retry_after is None


@given(
    st.lists(
        st.tuples(
            st.floats(min_value=0, max_value=30), st.sampled_from(["ask", "ask", "ok", "first refused", "last refused"])
        ),
        max_size=60,
    )
)
@settings(max_examples=200)
def test_no_span_ever_holds_more_than_the_count(steps: list[tuple[float, str]]) -> None:
    """S71: however late it is known how a request ended."""
    clock = FakeClock()
    limit = quota(clock, count=3, per=timedelta(seconds=60))
    unsettled: list[float] = []
    counted: list[float] = []
    for pause, action in steps:
        clock.advance(pause)
        if action == "ask":
            if admitted(limit, request()):
                unsettled.append(clock.monotonic())
        elif unsettled:
            asked_at = unsettled.pop(0 if action == "first refused" else -1)
            limit.settled(request(), status=201 if action == "ok" else 409)
            if action == "ok":
                counted.append(asked_at)
    counted = sorted(counted + unsettled)
    for first, fourth in zip(counted, counted[3:], strict=False):
        assert fourth - first >= 60 - 1e-6


# --- which requests ---


def test_a_limit_is_about_the_requests_that_it_names(subtests: pytest.Subtests) -> None:
    """S71."""
    cases: list[tuple[dict[str, set[str]], Attributes, bool]] = [
        ({}, request(), True),
        ({"users": {"jane"}}, request(), True),
        ({"users": {"joe"}}, request(), False),
        ({"groups": {"dev"}}, request(groups=("dev",)), True),
        ({"groups": {"dev"}}, request(), False),
        ({"users": {"jane"}, "groups": {"dev"}}, request(), True),
        ({"namespaces": {"dev"}}, request(), True),
        ({"namespaces": {"prod"}}, request(), False),
        ({"verbs": {"create"}}, request(), True),
        ({"verbs": {"delete"}}, request(), False),
        ({"resources": {"pods"}}, request(), True),
        ({"resources": {"pods"}}, request(what="pods/exec"), False),
        ({"resources": {"pods/exec"}}, request(what="pods/exec"), True),
        ({"resources": {"deployments"}}, request(what="deployments", api_group="apps"), True),
        ({"resources": {"deployments.apps"}}, request(what="deployments", api_group="apps"), True),
        ({"resources": {"deployments.apps/scale"}}, request(what="deployments/scale", api_group="apps"), True),
        ({"resources": {"deployments.extensions"}}, request(what="deployments", api_group="apps"), False),
        ({"resources": {"*"}}, request(what="pods/exec"), True),
        ({"resources": {"*"}}, Attributes(UserInfo("jane"), RequestInfo("get", "GET", "/")), False),
    ]
    for limit, attributes, matches in cases:
        with subtests.test(limit=limit, attributes=attributes, matches=matches):
            clock = FakeClock()
            conditions: Any = {name: frozenset(values) for name, values in limit.items()}
            assert admitted(quota(clock, count=0, **conditions), attributes) is not matches


# --- sizes ---


@pytest.mark.parametrize(("size", "fits"), [(0, True), (100, True), (101, False), (None, False)])
def test_a_body_may_not_be_larger_than_allowed(clock: FakeClock, size: int | None, fits: bool) -> None:
    """S71: a body of unannounced length could be of any."""
    answer = quota(clock, largest_body=100).admit(request(), size=size)
    assert answer.admitted is fits
    assert fits or answer.reason.startswith("exceeded quota: pods,")
    assert answer.retry_after is None


# --- memory ---


def test_the_tables_are_bounded_and_nobody_is_forgotten_early(clock: FakeClock) -> None:
    """T2: inventing namespaces does not empty one's own account."""
    limit = quota(clock, count=1, by="namespace", key_limit=10)
    assert admitted(limit, request(namespace="mine"))
    limit.settled(request(namespace="mine"), status=201)
    passed = sum(admitted(limit, request(namespace=str(number))) for number in range(100))
    assert passed == 9
    assert not admitted(limit, request(namespace="mine"))
    assert len(limit._limits[0].windows) == 10
    for number in range(9):
        limit.settled(request(namespace=str(number)), status=201)
    clock.advance(hours=2)
    assert admitted(limit, request(namespace="new"))
    assert len(limit._limits[0].windows) == 1


def test_a_refusal_that_comes_after_the_span_gives_nothing_back(clock: FakeClock) -> None:
    """S71."""
    limit = quota(clock, count=1)
    assert admitted(limit, request())
    clock.advance(hours=2)
    assert admitted(limit, request())
    limit.settled(request(), status=504)
    assert not admitted(limit, request())


def test_what_was_taken_back_leaves_no_trace(clock: FakeClock) -> None:
    """T2."""
    limit = quota(clock, count=1)
    for number in range(100):
        limit.admit(request(str(number)), size=0)
        limit.settled(request(str(number)), status=500)
    assert len(limit._limits[0].windows) == 0


# --- the configuration ---


def test_limits_are_read_from_the_configuration(clock: FakeClock) -> None:
    """S71."""
    limit = read(
        """
        limits:
        - name: creations
          users: [jane]
          groups: [dev]
          namespaces: [dev]
          verbs: [create]
          resources: [pods]
          count: 1
          per: 10s
          by: namespace
          maxBytes: 1Ki
        - {count: 5}
        - {maxBytes: 2000}
        """,
        clock,
    )
    assert not admitted(limit, request(), size=1025)
    assert admitted(limit, request(), size=1024)
    assert "creations" in limit.admit(request(), size=1).reason
    assert "limit-3" in limit.admit(request(verb="get"), size=2001).reason


def test_a_mistake_is_told_with_its_place(subtests: pytest.Subtests) -> None:
    """T7."""
    cases = [
        ("limits: []", "limits"),
        ("limits: [{}]", "limits[0]"),
        ("limits: [{count: -1}]", "limits[0].count"),
        ("limits: [{count: many}]", "limits[0].count"),
        ("limits: [{count: 1, per: 5}]", "limits[0].per"),
        ("limits: [{count: 1, per: 1ms}]", "limits[0].per"),
        ("limits: [{count: 1, by: team}]", "limits[0].by"),
        ("limits: [{maxBytes: 1MB}]", "limits[0].maxBytes"),
        ("limits: [{maxBytes: true}]", "limits[0].maxBytes"),
        ("limits: [{maxBytes: -1}]", "limits[0].maxBytes"),
        ("limits: [{count: 1, users: []}]", "limits[0].users"),
        ("limits: [{count: 1, user: [jane]}]", "limits[0].user"),
        ("limits: [{name: a, count: 1}, {name: a, count: 2}]", "limits"),
    ]
    for text, place in cases:
        with subtests.test(text=text, place=place):
            clock = FakeClock()
            with pytest.raises(ConfigurationError) as caught:
                read(text, clock)
            assert place in {problem.place.path for problem in caught.value.problems}
