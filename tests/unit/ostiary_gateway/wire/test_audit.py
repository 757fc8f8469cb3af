"""The audit API of Kubernetes: which requests a policy wants recorded, and what an event looks like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.errors import ConfigurationError
from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.wire.audit import (
    authentication_failed,
    body_object,
    event_list,
    frame,
    line,
    middle,
    origin,
    outcome,
    tail,
)
from ostiary_gateway.wire.audit_policy import (
    DEFAULT_POLICY,
    AuditLevel,
    AuditRule,
    GroupResources,
    Policy,
    Stage,
    carries_credentials,
    load_policy,
    parse_policy,
    redacted_uri,
)

JANE = UserInfo("jane", uid="7", groups=("dev", "ops"), extra=(("example.test/team", ("a", "b")),))


def resource(verb: str = "get", what: str = "pods", *, namespace: str = "dev", **more: Any) -> RequestInfo:
    name, _, subresource = what.partition("/")
    return RequestInfo(
        verb, "GET", "/", is_resource=True, resource=name, subresource=subresource, namespace=namespace, **more
    )


def path(url: str, verb: str = "get") -> RequestInfo:
    return RequestInfo(verb, "GET", url)


def policy(*rules: str, more: str = "") -> Policy:
    head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n" + more
    return parse_policy(head + "rules: [" + ", ".join(rules) + "]")


def level(rule: str, request: RequestInfo, user: UserInfo | None = JANE) -> AuditLevel:
    return policy("{level: Metadata, " + rule + "}").scope(request, user).level


# --- levels and rules ---


def test_the_levels_are_ordered() -> None:
    """2.7."""
    assert AuditLevel.NONE < AuditLevel.METADATA < AuditLevel.REQUEST < AuditLevel.REQUEST_RESPONSE


def test_the_first_rule_that_matches_wins() -> None:
    """2.7."""
    found = policy("{level: None, users: [jane]}", "{level: Request, verbs: [get]}", "{level: Metadata}")
    assert found.scope(resource(), JANE).level is AuditLevel.NONE
    assert found.scope(resource(), UserInfo("joe")).level is AuditLevel.REQUEST
    assert found.scope(resource("list"), UserInfo("joe")).level is AuditLevel.METADATA


def test_what_no_rule_matches_is_not_recorded() -> None:
    """2.7."""
    assert policy("{level: Request, users: [root]}").scope(resource(), JANE).level is AuditLevel.NONE


def test_the_stages_to_omit_are_those_of_the_policy_and_of_the_rule() -> None:
    """2.7."""
    found = policy(
        "{level: Metadata, verbs: [get], omitStages: [ResponseStarted]}",
        "{level: Metadata}",
        more="omitStages: [RequestReceived]\n",
    )
    assert found.scope(resource(), JANE).omit_stages == {Stage.RECEIVED, Stage.STARTED}
    assert found.scope(resource("list"), JANE).omit_stages == {Stage.RECEIVED}


def test_a_rule_overrides_whether_managed_fields_are_left_out() -> None:
    found = policy(
        "{level: Metadata, verbs: [get], omitManagedFields: false}",
        "{level: Metadata}",
        more="omitManagedFields: true\n",
    )
    assert not found.scope(resource(), JANE).omit_managed_fields
    assert found.scope(resource("list"), JANE).omit_managed_fields


def test_users_groups_verbs_and_then_resources_or_urls_must_match(subtests: pytest.Subtests) -> None:
    """2.7."""
    cases = [
        ("users: [jane]", resource(), True),
        ("users: [joe]", resource(), False),
        ("userGroups: [qa, ops]", resource(), True),
        ("userGroups: [qa]", resource(), False),
        ("verbs: [list, get]", resource(), True),
        ("verbs: [list]", resource(), False),
        ("users: [jane], verbs: [list]", resource(), False),
        ("namespaces: [dev]", resource(), True),
        ("namespaces: [prod]", resource(), False),
        ('namespaces: [""]', resource(namespace=""), True),
        ('namespaces: [""]', resource(), False),
        ("namespaces: [dev]", path("/healthz"), False),
        ('nonResourceURLs: ["*"]', path("/healthz"), True),
        ('nonResourceURLs: ["/healthz"]', path("/healthz"), True),
        ('nonResourceURLs: ["/healthz"]', path("/healthz/etcd"), False),
        ('nonResourceURLs: ["/healthz*"]', path("/healthz/etcd"), True),
        ('nonResourceURLs: ["/api/*"]', path("/api"), False),
        ('nonResourceURLs: ["/api/*"]', path("/api/v1"), True),
        ('nonResourceURLs: ["*"]', resource(), False),
        ("verbs: [get]", path("/healthz"), True),
    ]
    for rule, request_, matches in cases:
        with subtests.test(rule=rule, request_=request_, matches=matches):
            assert (level(rule, request_) is AuditLevel.METADATA) is matches


def test_the_forms_of_a_resource(subtests: pytest.Subtests) -> None:
    """2.7."""
    cases = [
        ("*", "pods", True),
        ("*", "pods/log", True),
        ("pods", "pods", True),
        ("pods", "pods/log", False),
        ("pods/log", "pods/log", True),
        ("pods/log", "pods", False),
        ("pods/log", "pods/exec", False),
        ("*/log", "pods/log", True),
        ("*/log", "jobs/log", True),
        ("*/log", "pods", False),
        ("*/log", "pods/exec", False),
        ("pods/*", "pods/log", True),
        ("pods/*", "pods", True),
        ("pods/*", "jobs/log", False),
        ("*/*", "pods", False),
    ]
    for pattern, asked, matches in cases:
        with subtests.test(pattern=pattern, asked=asked, matches=matches):
            assert (level(f'resources: [{{group: "", resources: ["{pattern}"]}}]', resource(what=asked)) > 0) is matches


def test_a_group_without_resources_is_all_of_the_group_and_of_no_other() -> None:
    """2.7."""
    assert level('resources: [{group: ""}]', resource())
    assert not level("resources: [{group: apps}]", resource())
    assert level("resources: [{group: apps}]", resource(what="deployments", api_group="apps"))


def test_resource_names_are_exact() -> None:
    rule = 'resources: [{group: "", resources: [pods], resourceNames: [web]}]'
    assert level(rule, resource(name="web"))
    assert not level(rule, resource(name="web2"))
    assert not level(rule, resource())


def test_nobody_meets_a_condition_about_users() -> None:
    """2.7: a failed authentication has no user, and is recorded by the rules that name none."""
    assert not level("users: [jane]", resource(), None)
    assert not level("userGroups: [dev]", resource(), None)
    assert level("verbs: [get]", resource(), None)


def test_the_default_policy_records_every_request_once() -> None:
    scope = DEFAULT_POLICY.scope(path("/"), None)
    assert scope.level is AuditLevel.METADATA
    assert scope.omit_stages == {Stage.RECEIVED}


NAMES = st.sampled_from(["pods", "jobs", "log", "*", "web", ""])


@given(
    st.lists(st.tuples(NAMES, NAMES), max_size=3),
    st.sampled_from(["pods", "jobs"]),
    st.sampled_from(["", "log", "exec"]),
)
@settings(max_examples=200)
def test_matching_agrees_with_a_spelled_out_reading_of_the_rules(
    patterns: list[tuple[str, str]], asked: str, subresource: str
) -> None:
    written = tuple(f"{left}/{right}" if right else left for left, right in patterns)
    expected = not written
    for pattern in written:
        left, slash, right = pattern.partition("/")
        exact = (left, right) == (asked, subresource) and bool(slash) == bool(subresource)
        any_of_resource = slash and left == asked and right == "*"
        any_with_subresource = slash and left == "*" and right == subresource and subresource
        expected = bool(expected or pattern == "*" or exact or any_of_resource or any_with_subresource)
    what = f"{asked}/{subresource}" if subresource else asked
    assert GroupResources("", written).matches(resource(what=what)) is expected


# --- the policy file ---


def test_a_policy_of_a_file_is_read_with_both_versions(tmp_path: Path) -> None:
    """2.7."""
    file = tmp_path / "policy.yaml"
    file.write_text("apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules:\n- level: RequestResponse\n")
    assert load_policy(file) == Policy((AuditRule(AuditLevel.REQUEST_RESPONSE),))


def test_a_mistake_is_told_with_its_place(subtests: pytest.Subtests) -> None:
    """2.7, T7: a policy without rules is illegal, and a restriction that would be ignored stops the start."""
    cases = [
        ("rules: []", "there must be a rule", "rules"),
        ("rules: [{}]", "expected one of None, Metadata", "rules[0].level"),
        ("rules: [{level: metadata}]", "expected one of None, Metadata", "rules[0].level"),
        ("rules: [{level: None, omitStages: [Received]}]", "there are only the stages", "rules[0].omitStages"),
        (
            'rules: [{level: None, nonResourceURLs: ["/a"], namespaces: [dev]}]',
            "and not about both",
            "rules[0].nonResourceURLs",
        ),
        ('rules: [{level: None, nonResourceURLs: ["a"]}]', "begins with a slash", "rules[0].nonResourceURLs"),
        ('rules: [{level: None, nonResourceURLs: ["/a*/b"]}]', "at the end", "rules[0].nonResourceURLs"),
        (
            'rules: [{level: None, resources: [{group: "", resourceNames: [a]}]}]',
            "names need the resources",
            "rules[0].resources[0].resourceNames",
        ),
        ("rules: [{level: None, resources: [{group: apps/v1}]}]", "no version", "rules[0].resources[0].group"),
        ("rules: [{level: None, user: [jane]}]", "unknown field", "rules[0].user"),
    ]
    for text, message, place in cases:
        with subtests.test(text=text, message=message, place=place):
            with pytest.raises(ConfigurationError) as caught:
                parse_policy(f"apiVersion: audit.k8s.io/v1\nkind: Policy\n{text}", file="policy.yaml")
            assert any(message in problem.message and problem.place.path == place for problem in caught.value.problems)


def test_another_kind_of_file_is_no_policy() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_policy("apiVersion: v1\nkind: ConfigMap\nrules: [{level: None}]")
    assert {problem.place.path for problem in caught.value.problems} == {"apiVersion", "kind"}


# --- secrets in addresses ---


def test_secret_parameters_lose_their_value(subtests: pytest.Subtests) -> None:
    """2.7, L6."""
    for name in ["access_token", "code", "state", "token", "id_token", "Token", "%74oken", "client_secret"]:
        with subtests.test(name=name):
            shown = redacted_uri(f"/auth/provider?a=1&{name}=canary&b=2")
            assert shown == f"/auth/provider?a=1&{name}=REDACTED&b=2"


def test_no_spelling_lets_a_secret_through(subtests: pytest.Subtests) -> None:
    """L6."""
    cases = [
        "/x?token=canary",
        "/x?a;token=canary",
        "/x?token=canary&token=canary",
        "/x?+token+=canary",
        "/x?a=b#token=canary",
        "/x/ost_canarycanarycanary?y",
    ]
    for uri in cases:
        with subtests.test(uri=uri):
            assert "canary" not in redacted_uri(uri)


def test_other_parameters_and_paths_stay_as_they_were() -> None:
    uri = "/api/v1/pods?labelSelector=app%3Dweb&watch=true&continue=abc==&tokens=3&&x"
    assert redacted_uri(uri) == uri


@given(st.text(max_size=40), st.text(alphabet="canry", min_size=6, max_size=10))
@settings(max_examples=200)
def test_redaction_is_the_same_when_repeated(before: str, value: str) -> None:
    once = redacted_uri(f"/{before}?code={value}")
    assert redacted_uri(once) == once


def test_bodies_that_are_credentials_are_known(subtests: pytest.Subtests) -> None:
    """L6."""
    cases = [
        (resource(what="secrets"), True),
        (resource("create", what="serviceaccounts/token"), True),
        (resource("create", what="serviceaccounts/token", api_group="ostiary.dev"), True),
        (resource("create", what="apitokens", api_group="ostiary.dev"), True),
        (resource("create", what="tokenreviews", api_group="authentication.k8s.io"), True),
        (resource(what="serviceaccounts"), False),
        (resource(what="secrets", api_group="example.test"), False),
        (resource(), False),
    ]
    for request_, carries in cases:
        with subtests.test(request_=request_, carries=carries):
            assert carries_credentials(request_) is carries


# --- events ---


def event(**changes: Any) -> dict[str, Any]:
    request = changes.pop("request", resource(name="web", api_version="v1"))
    made = frame(
        changes.pop("level", AuditLevel.METADATA), request, changes.pop("user", JANE), request_uri="/x", **changes
    )
    text = line(
        made.head,
        "id-1",
        middle(Stage.COMPLETE, made.about),
        origin(["192.0.2.1"], "kubectl"),
        outcome(200),
        "2026-01-01T00:00:00.000001Z",
        "2026-01-01T00:00:00.000002Z",
        made.tail,
    )
    assert text.isascii()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    found: dict[str, Any] = json.loads(text)
    return found


def test_an_event_has_the_fields_of_the_api() -> None:
    """2.7."""
    found = event(
        request=resource("create", "pods/exec", name="web", api_version="v1"),
        impersonated=UserInfo("joe", groups=("qa",)),
        impersonation_constraint="impersonate:user-info",
        annotations={"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "because"},
    )
    assert found == {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": "id-1",
        "stage": "ResponseComplete",
        "requestURI": "/x",
        "verb": "create",
        "user": {"username": "jane", "uid": "7", "groups": ["dev", "ops"], "extra": {"example.test/team": ["a", "b"]}},
        "impersonatedUser": {"username": "joe", "groups": ["qa"]},
        "authenticationMetadata": {"impersonationConstraint": "impersonate:user-info"},
        "objectRef": {
            "resource": "pods",
            "namespace": "dev",
            "name": "web",
            "apiVersion": "v1",
            "subresource": "exec",
        },
        "sourceIPs": ["192.0.2.1"],
        "userAgent": "kubectl",
        "responseStatus": {"metadata": {}, "code": 200},
        "requestReceivedTimestamp": "2026-01-01T00:00:00.000001Z",
        "stageTimestamp": "2026-01-01T00:00:00.000002Z",
        "annotations": {"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "because"},
    }


def test_what_is_empty_is_left_out() -> None:
    found = event(request=path("/healthz"), user=None)
    assert found["user"] == {}
    assert not {"objectRef", "annotations", "impersonatedUser", "authenticationMetadata"} & set(found)


def test_a_long_user_agent_is_cut() -> None:
    """2.7."""
    assert json.loads("{" + origin([], "x" * 1025)[1:] + "}") == {"userAgent": "x" * 1024 + "...TRUNCATED"}
    assert json.loads("{" + origin([], "x" * 1024)[1:] + "}") == {"userAgent": "x" * 1024}


def test_a_token_in_a_user_agent_is_not_recorded() -> None:
    """L6."""
    assert "canary" not in origin([], "curl ost_canarycanarycanary eyJcanarycanary.canary.canary")


@given(st.text(), st.text(), st.text(), st.text())
@settings(max_examples=200)
def test_every_event_is_one_line_of_json_whatever_the_strings(name: str, group: str, reason: str, agent: str) -> None:
    """S14: what can be said in UTF-8 comes back unchanged."""
    user = UserInfo(name, groups=(group,))
    made = frame(AuditLevel.METADATA, path("/"), user, request_uri="/", annotations={"reason": reason})
    text = line(made.head, "i", middle(Stage.RECEIVED, made.about), origin([], agent), "", "t", "t", made.tail)
    assert text.isascii()
    assert text.index("\n") == len(text) - 1
    found = json.loads(text)
    assert found["user"].get("username", "") == name.encode("utf-8", "replace").decode()
    assert found["annotations"]["reason"] == reason.encode("utf-8", "replace").decode()


def test_bytes_that_are_no_text_do_not_spoil_an_event() -> None:
    found = event(user=UserInfo("a\udcffb\U0001f600"))
    assert found["user"]["username"] == "a?b\U0001f600"


def test_a_list_of_events_is_an_event_list() -> None:
    """2.7."""
    found = json.loads(event_list(['{"a":1}', '{"a":2}']))
    assert found["kind"] == "EventList"
    assert found["apiVersion"] == "audit.k8s.io/v1"
    assert found["items"] == [{"a": 1}, {"a": 2}]


def test_a_failed_authentication_is_told_in_the_words_of_the_api_server() -> None:
    """2.7."""
    assert authentication_failed(["bearer"]) == "Authentication failed, attempted: bearer"
    assert authentication_failed(["bearer", "x509"]) == "Authentication failed, attempted: bearer, x509"
    assert authentication_failed([]) == "Authentication failed, no credentials provided"


def test_a_body_that_is_no_json_object_is_not_one(subtests: pytest.Subtests) -> None:
    for body in [b"", b"[1]", b"k8s\x00\n\x0c", b'{"a":', b'{"a": NaN}', b'{"a":' * 100_000, b"\xff"]:
        with subtests.test(body=body):
            assert body_object(body) is None


def test_managed_fields_are_left_out_of_an_object_and_of_a_list() -> None:
    one = {"metadata": {"name": "a", "managedFields": [1]}}
    body = json.dumps({**one, "items": [one, 3, {"metadata": 4}]}).encode()
    left = json.loads(body_object(body, without_managed_fields=True) or "")
    assert left == {"metadata": {"name": "a"}, "items": [{"metadata": {"name": "a"}}, 3, {"metadata": 4}]}
    assert "managedFields" in (body_object(body) or "")


def test_a_star_for_the_group_is_every_group() -> None:
    """As in Kubernetes 1.36. Compared as a name it would match nothing, and events would be missing in silence."""
    policy = parse_policy("apiVersion: audit.k8s.io/v1\nrules: [{level: Request, resources: [{group: '*'}]}]")
    for group in ("", "apps", "example.com"):
        asked = RequestInfo("get", "GET", "", True, api_group=group, resource="things")
        assert policy.scope(asked, None).level is AuditLevel.REQUEST
    assert policy.scope(RequestInfo("get", "GET", "/healthz"), None).level is AuditLevel.NONE


def test_what_is_not_understood_in_a_policy_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        "rules: [{level: None, resources: [{group: 'a b'}]}]",
        "rules: [{level: None, resources: [{group: '**'}]}]",
        "rules: [{level: None, resources: [{groups: ['*']}]}]",
        "rules: [{level: None, Verbs: [get]}]",
        "metadata: {name: 5}\nrules: [{level: None}]",
        "metadata: x\nrules: [{level: None}]",
    ]
    for text in cases:
        with subtests.test(text=text), pytest.raises(ConfigurationError):
            parse_policy(f"apiVersion: audit.k8s.io/v1\nkind: Policy\n{text}\n")


@pytest.mark.parametrize("end", ["# a comment", "", " ", ","])
def test_a_policy_that_begins_with_a_brace_is_json_and_nothing_else(end: str, tmp_path: Path) -> None:
    text = f'{{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{{"level": "None"}}]}}{end}'
    file = tmp_path / "policy.json"
    file.write_text(text)
    if end.strip():
        with pytest.raises(ConfigurationError):
            parse_policy(text)
        with pytest.raises(ConfigurationError):
            load_policy(file)
    else:
        assert parse_policy(text) == load_policy(file)


TOKEN = "ost_" + "aB3-_xYz" * 6


def test_a_parameter_with_the_name_of_a_secret_loses_its_value(subtests: pytest.Subtests) -> None:
    cases = [
        *("api_key", "apikey", "API-Key", "x-api-key", "sig", "Signature", "secret", "client_secret", "passwd", "pwd"),
        *("X-Amz-Signature", "X-Amz-Security-Token", "X-Amz-Credential", "X-Goog-Signature", "aws_secret_access_key"),
        *("auth", "Authorization", "bearer", "jwt", "session_id", "sid", "otp", "device_code", "code_verifier"),
        *("SAMLResponse", "private_key", "db.password", "%70assword", "access%5Ftoken", "to%6Ben"),
    ]
    for name in cases:
        with subtests.test(name=name):
            assert redacted_uri(f"/x?a=1&{name}=canary&b=2") == f"/x?a=1&{name}=REDACTED&b=2"


def test_other_parameters_keep_theirs(subtests: pytest.Subtests) -> None:
    for name in [
        "limit",
        "continue",
        "fieldSelector",
        "labelSelector",
        "watch",
        "command",
        "container",
        "keys",
        "codec",
    ]:
        with subtests.test(name=name):
            assert redacted_uri(f"/x?{name}=v") == f"/x?{name}=v"


def test_a_token_has_no_place_in_an_address(subtests: pytest.Subtests) -> None:
    cases = [
        f"/api/v1/namespaces/{TOKEN}/pods",
        f"/api/v1/namespaces/ns{TOKEN}",
        f"/x?y={TOKEN}",
        f"/x?{TOKEN}",
        f"/x?{TOKEN}=1",
        "/x?y=%6Fst%5F" + TOKEN[4:],
        "/%6Fst_" + TOKEN[4:] + "/y",
        f"/x#{TOKEN}",
        f"*{TOKEN}",
    ]
    for uri in cases:
        with subtests.test(uri=uri):
            assert TOKEN[4:] not in redacted_uri(uri)


def test_a_token_in_any_field_of_an_event_is_taken_out_by_its_form() -> None:
    user = UserInfo(TOKEN, TOKEN, (TOKEN,), ((TOKEN, (TOKEN,)),))
    request = RequestInfo(TOKEN, "GET", f"/{TOKEN}", True, "", TOKEN, TOKEN, TOKEN, TOKEN, TOKEN, TOKEN)
    made = frame(
        AuditLevel.METADATA,
        request,
        user,
        request_uri=f"/{TOKEN}",
        impersonated=user,
        impersonation_constraint=TOKEN,
        annotations={TOKEN: TOKEN},
    )
    texts = [made.head, made.about, made.tail]
    texts += [outcome(400, reason=TOKEN, message=f"no {TOKEN}"), origin([TOKEN], f"curl {TOKEN}"), tail({"a": TOKEN})]
    texts.append(body_object(json.dumps({"metadata": {"name": TOKEN}}).encode()) or "")
    assert all(TOKEN[8:] not in text for text in texts)
