"""Which requests fall under a step-up rule, and until when a sign-in is enough for it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.authorization.step_up import AppliedRules, StepUpRule, StepUpRules, describe, describe_request
from ostiary_gateway.config.step_up import StepUpRuleSettings
from ostiary_gateway.interfaces.identity import RequiredAuthentication
from ostiary_gateway.sessions.authentication_context import AuthenticationContext, satisfies, with_context

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def rule(**settings: Any) -> StepUpRule:
    return StepUpRule(StepUpRuleSettings(**{"name": "r", "amr": ("mfa",), **settings}))


def resource(verb: str, kind: str, name: str = "", namespace: str = "", **more: Any) -> RequestInfo:
    path = f"/api/v1/namespaces/{namespace}/{kind}/{name}"
    kind, _, subresource = kind.partition("/")
    return RequestInfo(
        verb, "", path, is_resource=True, resource=kind, subresource=subresource, name=name, namespace=namespace, **more
    )


def path(verb: str, target: str) -> RequestInfo:
    return RequestInfo(verb, verb.upper(), target)


def test_what_falls_under_a_rule(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], RequestInfo, bool]] = [
        ({"resources": ("*",)}, resource("get", "pods", "a", "x"), True),
        ({"resources": ("*",)}, path("get", "/metrics"), False),
        ({"resources": ("*",), "verbs": ("delete",)}, resource("get", "pods", "a", "x"), False),
        ({"resources": ("pods",)}, resource("get", "pods/exec", "a", "x"), False),
        ({"resources": ("pods/exec",)}, resource("create", "pods/exec", "a", "x"), True),
        # A connection may be opened by GET as well (kubectl does, for a WebSocket), which is the verb get.
        ({"resources": ("pods/exec",), "verbs": ("create",)}, resource("get", "pods/exec", "a", "x"), True),
        ({"resources": ("pods/attach",), "verbs": ("create",)}, resource("get", "pods/attach", "a", "x"), True),
        ({"resources": ("pods/portforward",), "verbs": ("get",)}, resource("create", "pods/portforward", "a"), True),
        ({"resources": ("pods/exec",), "verbs": ("delete",)}, resource("get", "pods/exec", "a", "x"), False),
        ({"resources": ("pods/log",), "verbs": ("create",)}, resource("get", "pods/log", "a", "x"), False),
        ({"resources": ("*/scale",)}, resource("patch", "deployments/scale", "a", "x"), True),
        ({"resources": ("pods",), "api_groups": ("apps",)}, resource("get", "pods"), False),
        ({"resources": ("pods",), "api_groups": ("",)}, resource("get", "pods"), True),
        # In the namespace; across all of them; in another; an object that is in none.
        ({"resources": ("*",), "namespaces": ("prod",)}, resource("get", "pods", "a", "prod"), True),
        ({"resources": ("*",), "namespaces": ("prod",)}, resource("list", "secrets"), True),
        ({"resources": ("*",), "namespaces": ("prod",)}, resource("get", "pods", "a", "dev"), False),
        ({"resources": ("*",), "namespaces": ("prod",)}, resource("get", "nodes", "a"), False),
        # The object; all of its kind; another one.
        ({"resources": ("secrets",), "resource_names": ("ca",)}, resource("get", "secrets", "ca", "x"), True),
        ({"resources": ("secrets",), "resource_names": ("ca",)}, resource("list", "secrets", "", "x"), True),
        ({"resources": ("secrets",), "resource_names": ("ca",)}, resource("get", "secrets", "db", "x"), False),
        ({"resources": ("*",), "upstreams": ("prod",)}, resource("get", "pods", upstream="prod"), True),
        ({"resources": ("*",), "upstreams": ("prod",)}, resource("get", "pods", upstream="dev"), False),
        ({"paths": ("/admin/*",)}, path("post", "/admin/users"), True),
        ({"paths": ("/admin/*",)}, path("post", "/admin"), False),
        ({"paths": ("/admin",), "verbs": ("post",)}, path("get", "/admin"), False),
        ({"paths": ("*",)}, resource("get", "pods"), False),
    ]
    for settings, request_, covers in cases:
        with subtests.test(settings=settings, request_=request_, covers=covers):
            assert rule(**settings).covers(request_) is covers


def test_where_nobody_knows_the_upstream_a_rule_for_one_of_them_counts() -> None:
    only_prod = rule(resources=("*",), upstreams=("prod",))
    assert not only_prod.covers(resource("get", "pods"))
    assert only_prod.covers(resource("get", "pods"), any_upstream=True)


NAMES = st.sampled_from(["", "a", "b"])
REQUESTS = st.builds(
    resource, st.sampled_from(["get", "list", "delete"]), st.sampled_from(["pods", "secrets", "pods/log"]), NAMES, NAMES
)
LISTS = {
    "verbs": st.sampled_from([("*",), ("get",), ("list", "delete")]),
    "resources": st.sampled_from([("*",), ("pods",), ("pods/log", "secrets")]),
    "resource_names": st.sampled_from([(), ("a",), ("a", "b")]),
    "namespaces": st.sampled_from([(), ("a",), ("a", "b")]),
}


@given(REQUESTS, st.fixed_dictionaries(LISTS), st.sampled_from(["resource_names", "namespaces"]))
def test_a_restriction_never_makes_a_rule_cover_more(
    request: RequestInfo, settings: dict[str, Any], restriction: str
) -> None:
    if rule(**settings).covers(request):
        assert rule(**{**settings, restriction: ()}).covers(request)


@given(REQUESTS, st.fixed_dictionaries(LISTS))
def test_a_request_without_name_or_namespace_cannot_get_around_a_rule(
    request: RequestInfo, settings: dict[str, Any]
) -> None:
    """Whoever may delete all of them at once must prove as much as for one of them."""
    for name in settings["resource_names"] or ("a",):
        for namespace in settings["namespaces"] or ("a",):
            single = resource(request.verb, request.resource, name, namespace)
            if rule(**settings).covers(single):
                assert rule(**settings).covers(resource(request.verb, request.resource))


SECONDS = st.integers(-4000, 4000).map(lambda seconds: NOW + timedelta(seconds=seconds))
CONTEXTS = st.builds(
    AuthenticationContext,
    acr=st.sampled_from(["", "gold"]),
    amr=st.sampled_from([(), ("pwd",), ("pwd", "mfa")]),
    auth_time=st.none() | SECONDS,
)
RULES = st.builds(
    lambda acr, amr, minutes: rule(
        resources=("*",), acr=acr, amr=amr, max_age=None if minutes is None else minutes * MINUTE
    ),
    st.sampled_from([(), ("gold",)]),
    st.sampled_from([(), ("mfa",)]),
    st.sampled_from([None, 1, 15]),
)


@given(st.lists(RULES, min_size=1, max_size=3), CONTEXTS, SECONDS)
def test_the_two_comparisons_say_the_same_as_the_judgement(
    rules: list[StepUpRule], context: AuthenticationContext, now: datetime
) -> None:
    applied = AppliedRules(rules, context)
    met = [satisfies(context, each.required, now=now) for each in rules]
    assert applied.is_met(now) is all(met)
    assert applied.first_unmet(now) == (None if all(met) else rules[met.index(False)])


def test_it_is_the_sign_in_of_who_sends_it_that_counts() -> None:
    rules = StepUpRules([rule(resources=("secrets",)).settings, rule(name="other", resources=("pods",)).settings])
    strong = with_context(UserInfo("ann"), AuthenticationContext(amr=("mfa",)))
    asked = (resource("get", "secrets", "a", "x"),)
    for sender, met in ((UserInfo("ann"), False), (strong, True)):
        applied = rules.applying(asked, sender)
        assert applied is not None
        assert (applied.names, applied.is_met(NOW)) == ("r", met)
    assert rules.applying((resource("get", "nodes"),), strong) is None
    both = rules.applying((*asked, resource("get", "pods")), strong)
    assert both is not None
    assert both.names == "r,other"


def test_what_people_read() -> None:
    required = RequiredAuthentication(("gold", "silver"), 15 * MINUTE, ("mfa",))
    assert describe(required) == "a sign-in with one of gold, silver, by mfa, in the last 15 minutes"
    spans = {30: "30s", 60: "minute", 90: "1m30s", 120: "2 minutes", 119 * 60: "119 minutes", 120 * 60: "2h"}
    for seconds, said in spans.items():
        within = RequiredAuthentication(max_age=timedelta(seconds=seconds))
        assert describe(within) == f"a sign-in in the last {said}"
    assert (
        describe_request(resource("delete", "pods/log", "web", "prod")) == "delete pods/log web in the namespace prod"
    )
    assert describe_request(path("get", "/metrics")) == "get /metrics"
