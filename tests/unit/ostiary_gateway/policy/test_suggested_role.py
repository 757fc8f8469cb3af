"""Roles from use: they allow every request of the log, and nothing that nobody used."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.policy_rules import PolicyRule
from ostiary.core.yaml import parse_all
from ostiary.errors import ConfigurationError
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.audit.recorded import RecordedRequest
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.policy.impersonation_role import manifest
from ostiary_gateway.policy.suggested_role import fewest_products, object_name, smallest_rules, suggested_objects
from ostiary_gateway.policy.usage import Right, UsageCollector, UsageSelection
from ostiary_gateway.providers.kubernetes.attributes import KubernetesAttributes
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.wire.rbac import Binding, Manifests, Role, is_dns_name, read_manifests, together

AT = datetime(2026, 1, 1, tzinfo=UTC)
ALICE = UserInfo("alice", groups=("system:authenticated",))
VERBS = ("get", "list", "watch", "create", "delete")
NAMES = ("", "a", "b")
NAMESPACES = ("", "team", "other")
KINDS = (
    ("", "pods", ""),
    ("", "pods", "log"),
    ("", "pods", "exec"),
    ("apps", "deployments", ""),
    ("batch", "pods", ""),
)
PATHS = ("/metrics", "/logs/a", "/logs")
GRID = [
    *(
        RequestInfo(
            verb,
            "",
            "",
            is_resource=True,
            api_group=group,
            api_version="v1",
            namespace=namespace,
            resource=resource,
            subresource=subresource,
            name=name,
        )
        for verb, (group, resource, subresource), namespace, name in product(VERBS, KINDS, NAMESPACES, NAMES)
    ),
    *(RequestInfo(verb, verb.upper(), path) for verb, path in product(("get", "post"), PATHS)),
]


def recorded(
    asked: RequestInfo, *, allowed: bool = True, status: int = 200, actor: str = "", user: UserInfo = ALICE
) -> RecordedRequest:
    verdict = Verdict.ALLOW if allowed else Verdict.NO_OPINION
    return RecordedRequest("id", AT, Attributes(user, asked), Decision(verdict), status, "", actor)


def policy_of(objects: tuple[Role | Binding, ...]) -> RbacAuthorization:
    """The policy as it is read back from its manifest, so that writing it is tried, too."""
    text = manifest(objects)
    manifests = together([read_manifests(parse_all(text))]) if text else Manifests()
    assert not manifests.problems
    return RbacAuthorization(policy=manifests, defaults=False)


def suggested(
    records: list[RecordedRequest],
    selection: UsageSelection = UsageSelection(),  # noqa: B008
) -> tuple[Role | Binding, ...]:
    uses = UsageCollector(selection, [KubernetesAttributes()]).collect(records)
    return tuple(item for use in uses for item in suggested_objects(use.subject, use.uses, prefix="used-by"))


def needed(asked: RequestInfo) -> list[RequestInfo]:
    more = KubernetesAttributes().also_required(asked)
    return [asked] if more is None else [asked, more]


def is_covered(asked: RequestInfo, used: list[RequestInfo], *, names: bool) -> bool:
    """Whether RBAC's smallest rule for one of *used* allows *asked*: without a namespace it is for all of them."""
    return any(
        (asked.verb, asked.api_group, asked.resource, asked.subresource, asked.path)
        == (each.verb, each.api_group, each.resource, each.subresource, each.path)
        and each.namespace in ("", asked.namespace)
        and (not names or each.name in ("", asked.name))
        for each in used
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(GRID), max_size=14), st.lists(st.sampled_from(GRID), max_size=6), st.booleans())
def test_all_that_was_used_is_allowed_and_nothing_else(
    used: list[RequestInfo], denied: list[RequestInfo], names: bool
) -> None:
    records = [recorded(asked) for asked in used] + [recorded(asked, allowed=False) for asked in denied]
    policy = policy_of(suggested(records, UsageSelection(names=names)))
    all_used = [each for asked in used for each in needed(asked)]
    for asked in GRID:
        is_allowed = policy.decide(Attributes(ALICE, asked)).allowed
        assert is_allowed is is_covered(asked, all_used, names=names), asked
        assert not policy.decide(Attributes(UserInfo("mallory"), asked)).allowed


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdefg"), st.sets(st.sampled_from(VERBS), min_size=1), max_size=7))
def test_products_are_exactly_the_rows_and_never_more_than_one_for_each(rows: dict[str, set[str]]) -> None:
    pairs = fewest_products(rows)
    assert {(row, verb) for verbs, members in pairs for row in members for verb in verbs} == {
        (row, verb) for row, verbs in rows.items() for verb in verbs
    }
    assert len(pairs) <= len({frozenset(verbs) for verbs in rows.values()})


def test_a_resource_that_others_cover_together_needs_no_rule_of_its_own() -> None:
    rows = {"services": {"get", "list"}, "endpoints": {"watch"}, "pods": {"get", "list", "watch"}}
    assert sorted(fewest_products(rows)) == [
        (("get", "list"), ("pods", "services")),
        (("watch",), ("endpoints", "pods")),
    ]


def test_rules_are_merged_as_far_as_nothing_is_added() -> None:
    rights = [
        *(Right(verb, api_group=group, resource="ingresses") for verb in ("get", "list") for group in ("a", "b")),
        *(Right(verb, api_group="a", resource="gateways") for verb in ("get",)),
        Right("get", path="/metrics"),
        Right("get", path="/logs"),
    ]
    assert smallest_rules(rights) == (
        PolicyRule(("get",), ("a",), ("gateways",)),
        PolicyRule(("get", "list"), ("a", "b"), ("ingresses",)),
        PolicyRule(("get",), non_resource_urls=("/logs", "/metrics")),
    )


def test_namespaces_with_the_same_use_share_a_role() -> None:
    objects = suggested([recorded(asked) for asked in GRID if asked.namespace and asked.resource == "deployments"])
    kinds = [(item.kind, item.namespace) for item in objects]
    assert kinds == [("ClusterRole", ""), ("RoleBinding", "other"), ("RoleBinding", "team")]
    roles = [item.rules for item in objects if isinstance(item, Role)]
    assert roles == [(PolicyRule(tuple(sorted(VERBS)), ("apps",), ("deployments",)),)]


def test_what_must_not_become_a_right_does_not(subtests: pytest.Subtests) -> None:
    """Refused, done by somebody else, allowed to everybody, or a text that a rule would take for a wildcard."""
    cases = [
        recorded(GRID[1], allowed=False),
        recorded(GRID[1], status=403),
        recorded(GRID[1], status=401),
        recorded(GRID[1], actor="root"),
        recorded(RequestInfo("get", "GET", "/api/v1")),
        recorded(RequestInfo("*", "GET", "", is_resource=True, resource="pods", namespace="team")),
        recorded(RequestInfo("get", "GET", "", is_resource=True, resource="*", namespace="team")),
        recorded(RequestInfo("get", "GET", "", is_resource=True, resource="pods", subresource="*", namespace="team")),
        recorded(RequestInfo("get", "GET", "", is_resource=True, resource="pods", api_group="*", namespace="team")),
        recorded(RequestInfo("get", "GET", "", is_resource=True, resource="pods", namespace="Team: x")),
        recorded(RequestInfo("get", "GET", "/metrics*")),
        recorded(RequestInfo("get", "GET", "")),
    ]
    for record in cases:
        with subtests.test(record=record):
            assert suggested([record]) == ()


def test_a_name_with_a_star_is_left_out_where_names_count() -> None:
    """No object has such a name, and a reader would take it for all of them."""
    record = recorded(RequestInfo("get", "GET", "", is_resource=True, resource="pods", namespace="team", name="*"))
    assert suggested([record], UsageSelection(names=True)) == ()
    assert len(suggested([record])) == 2


def test_what_was_left_out_is_counted() -> None:
    records = [
        recorded(GRID[1], allowed=False),
        recorded(GRID[1], actor="root"),
        recorded(RequestInfo("get", "GET", "/apis/apps/v1")),
        recorded(RequestInfo("get", "GET", "/metrics*")),
    ]
    (use,) = UsageCollector(UsageSelection()).collect(records)
    assert (use.denied, use.by_others, use.others, use.discovery, use.inexpressible) == (1, 1, {"root"}, 1, 1)
    (use,) = UsageCollector(UsageSelection(proxies=frozenset({"root"}), include_denied=True)).collect(records)
    assert (use.denied, use.by_others, next(iter(use.uses.values())).count) == (0, 0, 2)


def test_a_capability_is_allowed_by_its_name() -> None:
    asked = RequestInfo(
        "create", "POST", "", is_resource=True, resource="pods", namespace="team", capabilities=("privileged",)
    )
    (role, _) = suggested([recorded(asked)])
    assert isinstance(role, Role)
    assert PolicyRule(("use",), ("ostiary.dev",), ("capabilities",), ("privileged",)) in role.rules


@pytest.mark.parametrize(("verb", "status", "creates"), [("patch", 201, True), ("update", 201, True),
                                                          ("patch", 200, False), ("get", 201, False)])  # fmt: skip
def test_who_applies_an_object_that_is_new_needs_to_create_it(verb: str, status: int, creates: bool) -> None:
    """The API server asks for both permissions, by the object's name."""
    asked = RequestInfo(verb, "", "", is_resource=True, resource="pods", namespace="team", name="web")
    policy = policy_of(suggested([recorded(asked, status=status)], UsageSelection(names=True)))
    for name in ("web", "other"):
        create = RequestInfo("create", "", "", is_resource=True, resource="pods", namespace="team", name=name)
        assert policy.decide(Attributes(ALICE, create)).allowed is (creates and name == "web")


def test_the_search_for_fewer_rules_ends_soon_whatever_verbs_there_are() -> None:
    """With every verb allowed on paths, verbs are any methods."""
    rows = {f"/{number}": {f"verb-{number}"} for number in range(20_000)}
    assert len(fewest_products(rows)) == 20_000


def test_subjects_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostiary_gateway.policy.usage.MOST_RIGHTS", 10)
    records = [recorded(GRID[1], user=UserInfo(f"u{number}"), actor="root") for number in range(11)]
    with pytest.raises(ConfigurationError):
        UsageCollector(UsageSelection()).collect(records)


def test_members_of_a_group_and_service_accounts_are_subjects_of_their_own() -> None:
    builder = UserInfo("system:serviceaccount:shop:builder", groups=("ci",))
    records = [recorded(GRID[1], user=builder), recorded(GRID[2], user=UserInfo("bob", groups=("dev", "ci", "ci")))]
    uses = UsageCollector(UsageSelection(groups=frozenset({"ci"}), accounts=frozenset({("shop", "builder")}))).collect(
        records
    )
    assert [(use.subject, use.requests) for use in uses] == [
        (Subject("Group", "ci"), 2),
        (Subject("ServiceAccount", "builder", "shop"), 1),
    ]


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_name_of_a_subject_gives_a_valid_name_of_its_own(first: str, second: str) -> None:
    names = {object_name("used-by", Subject("User", text)) for text in (first, second)}
    assert all(is_dns_name(name) and len(name) < 64 for name in names)
    assert len(names) == len({first, second})


def test_names_of_roles_cannot_be_made_to_collide() -> None:
    """Whoever chooses their own user name could try a few billion of them, and so get a role that is bound to them."""
    assert re.fullmatch(r"used-by-alice-[0-9a-f]{16}", object_name("used-by", Subject("User", "alice")))


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(lambda text: "*" not in text))
def test_any_text_of_the_log_is_quoted_safely(text: str) -> None:
    """Control characters and YAML's own signs, as a user, a resource, a name and a path."""
    user = UserInfo(text)
    asked = RequestInfo("get", "GET", "", is_resource=True, resource=text, namespace="team", name=text)
    records = [recorded(asked, user=user), recorded(RequestInfo("get", "GET", f"/{text}"), user=user)]
    objects = suggested(records, UsageSelection(names=True))
    policy = policy_of(objects)
    assert policy.decide(Attributes(user, asked)).allowed
    assert manifest(objects).replace("\n", "").isprintable()
