"""Changes, in whatever order and by whichever way, end in the policy that a fresh load gives."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.policy_rules import PolicyRule
from ostiary.errors import ConfigurationError
from ostiary.model import Attributes, Place, RequestInfo, Requirement, UserInfo
from ostiary_gateway.interfaces.authorization import Subject
from ostiary_gateway.providers.rbac import RbacAuthorization, explain
from ostiary_gateway.providers.rbac import policy as policy_module
from ostiary_gateway.providers.rbac import provider as listing
from ostiary_gateway.providers.rbac.defaults import AGGREGATE_TO
from ostiary_gateway.providers.rbac.index import Index, ObjectKey
from ostiary_gateway.providers.rbac.policy import ObjectChange, RbacPolicy, key_of
from ostiary_gateway.wire.rbac import Binding, LabelSelector, Manifests, Role, as_yaml
from tests.unit.ostiary_gateway.providers.rbac.policies import ask, bind, cluster_role, policy, role, rule

NAMESPACES = ["", "n1", "n2"]
# Some are names of roles and bindings that every cluster begins with.
ROLES = ["view", "edit", "system:discovery", "own"]
BINDINGS = ["b1", "b2", "system:discovery", "cluster-admin"]
PEOPLE = ["alice", "bob"]
TEAMS = ["devs", "system:authenticated", "system:masters"]
RESOURCES = ["pods", "nodes", "namespaces"]
Objects = dict[ObjectKey, Role | Binding]


class Chance:
    """Objects from a seed. Made of few words, so that they meet."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.one = self.random.choice

    def rule(self) -> PolicyRule:
        if self.one([True, False, False]):
            return PolicyRule(("get",), non_resource_urls=(self.one(["/a", "/b/*"]),))
        names = (self.one(["x", "y"]),) if self.one([True, False]) else ()
        return PolicyRule((self.one(["get", "list", "*"]),), ("",), (self.one(RESOURCES),), names)

    def role(self) -> Role:
        namespace, name = self.one(NAMESPACES), self.one(ROLES)
        if namespace:
            rules = tuple(rule for rule in (self.rule() for _ in range(2)) if not rule.non_resource_urls)
            return Role("Role", name, namespace, rules)
        labels = tuple((AGGREGATE_TO + to, "true") for to in ("edit", "view") if self.one([True, False, False]))
        aggregates = None
        if self.one([True, False, False]):
            aggregates = (LabelSelector((Requirement(AGGREGATE_TO + self.one(["edit", "view"]), "In", ("true",)),)),)
        rules = tuple(self.rule() for _ in range(self.random.randint(0, 2)))
        return Role("ClusterRole", name, "", rules, labels, aggregates)

    def binding(self) -> Binding:
        namespace = self.one(NAMESPACES)
        kind = "RoleBinding" if namespace else "ClusterRoleBinding"
        role_kind = self.one(["Role", "ClusterRole"]) if namespace else "ClusterRole"
        subjects = [
            self.one(
                [
                    Subject("User", self.one(PEOPLE)),
                    Subject("Group", self.one(TEAMS)),
                    Subject("ServiceAccount", "robot", namespace or "n1"),
                ]
            )
            for _ in range(self.random.randint(0, 3))
        ]
        return Binding(
            kind, self.one(BINDINGS), namespace, role_kind, self.one([*ROLES, "gone", "admin"]), tuple(subjects)
        )

    def item(self) -> Role | Binding:
        return self.role() if self.one([True, False]) else self.binding()

    def changes(self, objects: Objects) -> list[ObjectChange]:
        """Some objects that are new, or others, or gone; *objects* is kept true."""
        changes = []
        for _ in range(self.random.randint(1, 5)):
            item = self.item()
            key, gone = key_of(item), self.one([True, False, False])
            if gone and objects:
                key = self.one([*objects, key])
            changes.append(ObjectChange(key, None if gone else item))
            if gone:
                objects.pop(key, None)
            else:
                objects[key] = item
        return changes


chances = st.integers(0, 2**32).map(Chance)
USERS = [
    *(UserInfo(name, groups=groups) for name in PEOPLE for groups in ((), ("devs",), ("system:authenticated",))),
    UserInfo("system:serviceaccount:n1:robot"),
    UserInfo("carol", groups=("system:masters",)),
]
REQUESTS = [
    *(RequestInfo("get", "GET", path) for path in ("/a", "/b/c", "/healthz")),
    *(
        RequestInfo(verb, "GET", "", True, namespace=namespace, resource=resource, name=name)
        for verb in ("get", "delete")
        for namespace in NAMESPACES
        for resource in RESOURCES
        for name in ("", "x")
    ),
]


def everything(index: Index) -> list[object]:
    """Whatever can be asked of a policy, for all users and requests that the objects could speak of."""
    told: list[object] = [index.decide(user, request) for user in USERS for request in REQUESTS]
    told += [listing.rules_for(index, user, namespace) for user in USERS for namespace in NAMESPACES]
    told += [explain.explain(index, user, request) for user in USERS[:3] for request in REQUESTS[::5]]
    told += [listing.who_can(index, request) for request in REQUESTS]
    told += [index.gives_rights(user) for user in USERS]
    told += [tuple(listing.grants(index)), index.bindings, index.groups(), index.missing_roles, index.named_resources]
    told += [sorted(index.roles.items())]
    return told


def manifests_of(objects: Objects) -> Manifests:
    return policy(*objects.values())


@settings(max_examples=60, deadline=None)
@given(chances, st.booleans())
def test_changes_one_after_the_other_end_in_the_policy_of_a_fresh_load(chance: Chance, defaults: bool) -> None:
    objects: Objects = {}
    changed = RbacPolicy(defaults=defaults)
    for _ in range(6):
        before = changed.index
        is_change = changed.apply(chance.changes(objects))
        assert changed.index.revision == before.revision + is_change
    assert everything(changed.index) == everything(RbacPolicy(manifests_of(objects), defaults=defaults).index)


@settings(max_examples=30, deadline=None)
@given(chances)
def test_a_version_of_the_policy_stays_what_it_was_while_others_follow(chance: Chance) -> None:
    objects: Objects = {}
    changed = RbacPolicy()
    changed.apply(chance.changes(objects))
    version, told = changed.index, everything(RbacPolicy(manifests_of(objects)).index)
    for _ in range(3):
        changed.apply(chance.changes(objects))
    # First asked now: what it opens must be of its own version.
    assert everything(version) == told


@settings(max_examples=30, deadline=None)
@given(chances)
def test_replacing_everything_ends_in_the_policy_of_a_fresh_load(chance: Chance) -> None:
    objects: Objects = {}
    changed = RbacPolicy()
    for _ in range(3):
        chance.changes(objects)
        changed.replace(manifests_of(objects))
    fresh = RbacPolicy(manifests_of(objects))
    assert everything(changed.index) == everything(fresh.index)
    assert sorted(map(key_of, changed.own_objects())) == sorted(objects)
    assert not changed.replace(manifests_of(objects))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_changed_files_end_in_the_policy_of_a_fresh_load(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Objects move between files, files come and go, and the files that did not change are not read."""
    chance, objects, files = Chance(seed), Objects(), dict[ObjectKey, str]()
    directory = tmp_path_factory.mktemp("policy")
    followed = RbacAuthorization([directory], watch=False)
    for _ in range(5):
        chance.changes(objects)
        moved = chance.one([True, False])
        files = {key: chance.one("abc") if moved or key not in files else files[key] for key in objects}
        write_files(directory, {name: [objects[key] for key in objects if files[key] == name] for name in "abc"})
        followed.check_now()
        assert followed.problems == ()
    fresh = RbacAuthorization([directory], watch=False)
    questions = [Attributes(user, request) for user in USERS for request in REQUESTS]
    assert [followed.decide(each) for each in questions] == [fresh.decide(each) for each in questions]
    # With places: an operator is told where the rule stands now.
    assert [followed.explain(each) for each in questions[::7]] == [fresh.explain(each) for each in questions[::7]]
    assert followed.grants() == fresh.grants()
    assert followed.named_subjects() == fresh.named_subjects()


def write_files(directory: Path, files: dict[str, list[Role | Binding]]) -> None:
    for name, items in files.items():
        path = directory / f"{name}.yaml"
        if items:
            path.write_text("---\n".join(map(written, items)))
        else:
            path.unlink(missing_ok=True)


def written(item: Role | Binding) -> str:
    text = as_yaml(item)
    if isinstance(item, Role) and item.labels:
        text = text.replace("metadata:\n", f"metadata:\n  labels: {json.dumps(dict(item.labels))}\n")
    if isinstance(item, Role) and item.aggregates is not None:
        key = item.aggregates[0].requirements[0].key
        text += f"aggregationRule:\n  clusterRoleSelectors:\n  - matchLabels: {{{key}: 'true'}}\n"
    return text


# --- by example ---


def test_a_default_comes_back_when_what_replaced_it_is_gone() -> None:
    changed = RbacPolicy()
    own = cluster_role("view", rule("get", "core", "secrets"))
    changed.apply([ObjectChange(key_of(own), own)])
    assert changed.get(key_of(own)) is own
    assert changed.index.roles["ClusterRole", "", "view"] is not None
    assert changed.apply([ObjectChange(key_of(own), None)])
    assert changed.get(key_of(own)) is None
    assert everything(changed.index) == everything(RbacPolicy().index)


def test_only_what_decides_something_raises_the_revision() -> None:
    binding = bind("view", "User:alice")
    changed = RbacPolicy(policy(binding))
    moved = replace(binding, place=Place("other.yaml", "", 7))
    assert not changed.apply([ObjectChange(key_of(moved), moved)])
    assert changed.index.revision == 1
    assert next(each for each in changed.index.bindings if each == moved).place == moved.place
    assert not changed.apply([ObjectChange(ObjectKey("Role", "nowhere", "gone"), None)])
    assert changed.index.revision == 1


def test_an_aggregate_follows_its_parts_and_nothing_else_is_made_again() -> None:
    part = replace(cluster_role("part", rule("get", "core", "nodes")), labels=((AGGREGATE_TO + "view", "true"),))
    other = cluster_role("other", rule("get", "core", "pods"))
    changed = RbacPolicy(policy(other, bind("view", "User:alice")))
    admin, lone = changed.index.roles["ClusterRole", "", "admin"], changed.index.roles["ClusterRole", "", "other"]
    assert not changed.index.decide(*asked("nodes")).allowed
    changed.apply([ObjectChange(key_of(part), part)])
    assert changed.index.decide(*asked("nodes")).allowed
    changed.apply([ObjectChange(key_of(other), replace(other, rules=()))])
    assert changed.index.roles["ClusterRole", "", "other"] is not lone
    changed.apply([ObjectChange(key_of(part), None)])
    assert not changed.index.decide(*asked("nodes")).allowed
    assert changed.index.roles["ClusterRole", "", "admin"] == admin


def asked(resource: str) -> tuple[UserInfo, RequestInfo]:
    attributes = ask("get", resource)
    return attributes.user, attributes.request


def test_a_policy_that_grows_too_large_never_comes_into_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "MAX_OBJECTS", 3)
    changed = RbacPolicy(policy(bind("view", "User:alice")), defaults=False)
    before = changed.index
    many = [role(f"r{number}", "ns1", rule("get", "core", "pods")) for number in range(3)]
    with pytest.raises(ConfigurationError, match="too large"):
        changed.apply(ObjectChange(key_of(item), item) for item in many)
    assert changed.index is before
    assert changed.apply([ObjectChange(key_of(many[0]), many[0])])
    with pytest.raises(ConfigurationError, match="too large"):
        RbacPolicy(policy(*many, bind("view", "User:alice")), defaults=False)


def test_readers_see_one_policy_with_its_revision_while_it_changes() -> None:
    """Two bindings change places all the time: whoever reads has always exactly one of them."""
    here, there = bind("view", "User:alice", namespace="n1"), bind("view", "User:alice", namespace="n2")
    changed = RbacPolicy(policy(here))
    wrong: list[list[bool]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            index = changed.index
            allowed = [index.decide(*in_namespace(namespace)).allowed for namespace in ("n1", "n2")]
            if allowed != [bool(index.revision % 2), not index.revision % 2]:
                wrong.append(allowed)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(300):
        gone, now = (here, there) if number % 2 == 0 else (there, here)
        changed.apply([ObjectChange(key_of(gone), None), ObjectChange(key_of(now), now)])
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def in_namespace(namespace: str) -> tuple[UserInfo, RequestInfo]:
    attributes = ask("get", "pods", namespace)
    return attributes.user, attributes.request
