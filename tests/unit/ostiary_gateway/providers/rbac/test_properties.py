"""The index says what a scan of everything would say, for policies and requests that nobody thought of."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.policy_rules import PolicyRule
from ostiary.model import Attributes, RequestInfo, UserInfo, Verdict
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.providers.rbac import RbacAuthorization
from ostiary_gateway.providers.rbac.presence import namespace_of
from ostiary_gateway.wire.rbac import Binding, Manifests, Role
from tests.unit.ostiary_gateway.providers.rbac.policies import policy, read

VERBS, GROUPS, NAMES = ["get", "list", "create", "*"], ["", "apps", "*"], ["a", "b", "*", ""]
RESOURCES = ["pods", "pods/log", "pods/*", "*/log", "*", "nodes", "namespaces"]
URLS = ["/a", "/a/*", "/a*", "*", "/b"]
NAMESPACES = ["", "n1", "n2"]
PEOPLE = ["alice", "bob", "system:serviceaccount:n1:alice", "system:anonymous", ""]
TEAMS = ["devs", "alice", "system:authenticated", "system:unauthenticated"]


class Chance:
    """Policies and questions from a seed. Made of few words, so that they meet; quicker than composing strategies."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.one = self.random.choice

    def some(self, values: list[str], least: int = 1) -> tuple[str, ...]:
        return tuple(self.one(values) for _ in range(self.random.randint(least, 3)))

    def rule(self) -> PolicyRule:
        if self.one([True, False, False]):
            return PolicyRule(self.some(VERBS), non_resource_urls=self.some(URLS))
        names = self.some(NAMES) if self.one([True, False]) else ()
        return PolicyRule(self.some(VERBS), self.some(GROUPS), self.some(RESOURCES), names)

    def role(self, name: str, namespace: str) -> Role:
        rules = tuple(self.rule() for _ in range(self.random.randint(0, 3)))
        return Role("Role" if namespace else "ClusterRole", name, namespace, rules)

    def binding(self, number: int) -> Binding:
        namespace = self.one(NAMESPACES)
        kinds = ["User", "Group", "ServiceAccount", "Robot"]
        subjects = (Subject(self.one(kinds), self.one(PEOPLE + TEAMS), self.one(NAMESPACES)) for _ in range(3))
        return Binding(
            "RoleBinding" if namespace else "ClusterRoleBinding",
            f"b{number}",
            namespace,
            self.one(["Role", "ClusterRole", "ClusterRole", "Other"]),
            self.one(["r1", "r2", "gone"]),
            tuple(subjects),
        )

    def policy(self) -> Manifests:
        keys = [(name, namespace) for name in ("r1", "r2") for namespace in NAMESPACES]
        roles = tuple(self.role(*key) for key in keys if self.random.random() < 0.8)
        return Manifests(roles, tuple(self.binding(number) for number in range(self.random.randint(0, 7))))

    def user(self) -> UserInfo:
        return UserInfo(self.one(PEOPLE), groups=self.some(TEAMS, 0))

    def request(self) -> RequestInfo:
        if self.one([True, False, False]):
            verb = self.one(["get", "list", "post"])
            return RequestInfo(verb, verb.upper(), self.one(["/a", "/a/b", "/ab", "/b", "/c"]))
        return RequestInfo(
            self.one(["get", "list", "create", "delete"]),
            "GET",
            "",
            is_resource=True,
            api_group=self.one(["", "apps"]),
            namespace=self.one(NAMESPACES),
            resource=self.one(["pods", "nodes", "namespaces", "x"]),
            subresource=self.one(["", "", "log", "status"]),
            name=self.one(["", "a", "n1", "z"]),
        )

    def question(self) -> Attributes:
        return Attributes(self.user(), self.request())

    def questions(self) -> list[Attributes]:
        return [self.question() for _ in range(12)]


chances = st.builds(Chance, st.integers(0, 2**40))


# --- the reference: the statements R1 to R8, one after the other, looking at everything ---


def reference(policy: Manifests, asked: Attributes) -> bool:
    user, request = asked.user, asked.request
    for binding in policy.bindings:
        if binding.kind == "RoleBinding" and (not request.is_resource or binding.namespace != request.namespace):
            continue
        if not any(names(subject, binding, user) for subject in binding.subjects):
            continue
        for role in policy.roles:
            if refers_to(binding, role) and any(matches(rule, request) for rule in role.rules):
                return True
    return False


def refers_to(binding: Binding, role: Role) -> bool:
    if (binding.role_kind, binding.role_name) != (role.kind, role.name):
        return False
    return role.kind == "ClusterRole" or (bool(binding.namespace) and role.namespace == binding.namespace)


def names(subject: Subject, binding: Binding, user: UserInfo) -> bool:
    groups = set(user.groups)
    if user.username not in ("", "system:anonymous") and not groups & {
        "system:authenticated",
        "system:unauthenticated",
    }:
        groups.add("system:authenticated")
    if subject.kind == "User":
        return subject.name != "" and subject.name == user.username
    if subject.kind == "Group":
        return subject.name in groups
    namespace = subject.namespace or binding.namespace
    return (
        subject.kind == "ServiceAccount"
        and namespace != ""
        and user.username == f"system:serviceaccount:{namespace}:{subject.name}"
    )


def matches(rule: PolicyRule, request: RequestInfo) -> bool:
    if request.verb not in rule.verbs and "*" not in rule.verbs:
        return False
    if not request.is_resource:
        return any(
            url == request.path or (url.endswith("*") and request.path.startswith(url.rstrip("*")))
            for url in rule.non_resource_urls
        )
    if request.api_group not in rule.api_groups and "*" not in rule.api_groups:
        return False
    if rule.resource_names and request.name not in rule.resource_names:
        return False
    whole = f"{request.resource}/{request.subresource}" if request.subresource else request.resource
    return any(
        resource == "*" or resource == whole or (request.subresource != "" and resource == f"*/{request.subresource}")
        for resource in rule.resources
    )


@settings(max_examples=150, deadline=None)
@given(chances)
def test_the_index_decides_as_a_scan_of_everything(chance: Chance) -> None:
    """R1, R2, R3, R4, R5, R6, R7, R8."""
    given_policy, questions = chance.policy(), chance.questions()
    provider = RbacAuthorization(policy=given_policy, defaults=False)
    for asked in questions:
        decision = provider.decide(asked)
        assert decision.verdict is not Verdict.DENY
        assert decision.allowed is reference(given_policy, asked)
        assert not (decision.allowed and decision.hidden)


@settings(max_examples=100, deadline=None)
@given(chances)
def test_equal_cache_keys_have_equal_decisions(chance: Chance) -> None:
    """S57."""
    provider = RbacAuthorization(policy=chance.policy(), defaults=False)
    user, other = chance.user(), chance.user()
    seen: dict[object, object] = {}
    for _ in range(40):
        asked = Attributes(chance.random.choice([user, other]), chance.request())
        decision = provider.decide(asked)
        assert seen.setdefault(provider.cache_key(asked), (decision.verdict, decision.hidden)) == (
            decision.verdict,
            decision.hidden,
        )


@settings(max_examples=100, deadline=None)
@given(chances)
def test_who_can_do_something_names_those_who_can(chance: Chance) -> None:
    """R10."""
    given_policy, asked = chance.policy(), chance.question()
    provider = RbacAuthorization(policy=given_policy, defaults=False)
    first, *others = provider.who_can(asked)
    assert (first.kind, first.name) == ("Group", "system:masters")
    whole = [Binding("ClusterRoleBinding", "x", subjects=(one,)) for one in others]
    named = any(names(one.subjects[0], one, asked.user) for one in whole)
    assert named is reference(given_policy, asked)


@settings(max_examples=100, deadline=None)
@given(chances)
def test_the_rules_of_a_user_allow_what_is_allowed(chance: Chance) -> None:
    """R1: told as rules, or decided one by one, it is the same."""
    given_policy, user, request = chance.policy(), chance.user(), chance.request()
    provider = RbacAuthorization(policy=given_policy, defaults=False)
    found = provider.rules_for(user, request.namespace)
    told = [
        PolicyRule(rule.verbs, rule.api_groups, rule.resources, rule.resource_names) for rule in found.resource_rules
    ] + [PolicyRule(rule.verbs, non_resource_urls=rule.paths) for rule in found.non_resource_rules]
    assert any(matches(rule, request) for rule in told) is reference(given_policy, Attributes(user, request))


@settings(max_examples=100, deadline=None)
@given(chances)
def test_the_remedy_allows_the_request_and_nothing_else(chance: Chance) -> None:
    """Idea 2: applied to the policy, the smallest manifest opens just this door."""
    given_policy, asked, others = chance.policy(), chance.question(), chance.questions()
    before = RbacAuthorization(policy=given_policy, defaults=False)
    explained = before.explain(asked)
    if explained.decision.allowed or not asked.user.username:
        assert explained.remedy == ""
        return
    remedy = read(explained.remedy)
    after = RbacAuthorization(
        policy=policy(*given_policy.roles, *given_policy.bindings, *remedy.roles, *remedy.bindings), defaults=False
    )
    assert after.decide(asked).allowed
    for other in others:
        same = other.user.username == asked.user.username and covered(asked.request, other.request)
        assert after.decide(other).allowed is (same or before.decide(other).allowed)


def covered(asked: RequestInfo, other: RequestInfo) -> bool:
    """Whether allowing *asked* cannot but allow *other*: it is the same, or has a name where *asked* had none."""
    if not asked.is_resource:
        return (asked.is_resource, asked.verb, asked.path) == (other.is_resource, other.verb, other.path)
    return (
        other.is_resource
        and (asked.verb, asked.api_group, asked.resource, asked.subresource)
        == (other.verb, other.api_group, other.resource, other.subresource)
        and asked.namespace in ("", other.namespace)
        and asked.name in ("", other.name)
    )


@settings(max_examples=100, deadline=None)
@given(chances)
def test_a_refusal_is_hidden_only_where_nothing_in_the_namespace_is_allowed(chance: Chance) -> None:
    """S55: whoever may do something to a namespaced object there is told "forbidden", never "not found"."""
    given_policy, asked = chance.policy(), chance.question()
    decision = RbacAuthorization(policy=given_policy, defaults=False).decide(asked)
    namespace = namespace_of(asked.request)
    assert not decision.hidden or namespace
    inside = (
        RequestInfo(
            verb, "", "", True, api_group=group, namespace=namespace, resource=resource, subresource=sub, name=name
        )
        for verb in ("get", "list", "create")
        for group in ("", "apps")
        for resource in ("pods", "x")
        for sub in ("", "log")
        for name in ("", "a")
    )
    if decision.hidden:
        assert not any(reference(given_policy, Attributes(asked.user, request)) for request in inside)
