"""Whether the names of objects matter to a ruling: asked of the providers that it depends on, and of no others."""

from __future__ import annotations

import json

import pytest

from ostiary.core.scopes import Delegation, parse_scope
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo
from ostiary_gateway.providers.rbac.provider import RbacAuthorization
from ostiary_gateway.wire.audit_policy import AuditLevel, AuditRule, GroupResources, Policy
from tests.support.gateway import role
from tests.unit.ostiary_gateway.authorization.providers import ALLOW, GET_POD, PASS, AtOnce, Slow, chain, raises


class Telling(AtOnce):
    """Says whether names matter to it, or fails to."""

    def __init__(self, decision: Decision, matters: object) -> None:
        super().__init__(decision)
        self._matters = matters

    def name_matters(self, attributes: Attributes) -> bool:
        if isinstance(self._matters, Exception):
            raise self._matters
        return self._matters  # type: ignore[return-value]


def test_all_that_a_ruling_depends_on_must_say_no(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[AtOnce | Slow], bool]] = [
        ([Telling(ALLOW, False)], False),
        ([Telling(ALLOW, True)], True),
        ([Telling(PASS, False), Telling(ALLOW, False)], False),
        ([Telling(PASS, True), Telling(ALLOW, False)], True),
        ([Telling(PASS, False), Telling(ALLOW, True)], True),
        ([Telling(PASS, False), AtOnce(ALLOW)], True),
        ([Telling(ALLOW, False), AtOnce(ALLOW)], False),
        ([AtOnce(ALLOW)], True),
        ([Slow(ALLOW)], True),
        ([Telling(ALLOW, RuntimeError("broken"))], True),
        ([Telling(ALLOW, None)], True),
        ([Telling(ALLOW, "no")], True),
    ]
    for providers, matters in cases:
        with subtests.test(providers=providers, matters=matters):
            authorizer = chain(*providers)
            authorizer.decide(GET_POD)
            assert authorizer.name_matters(GET_POD) is matters


def test_names_matter_if_the_provider_cannot_be_asked() -> None:
    provider = Telling(ALLOW, False)
    provider.rule = raises(RuntimeError("broken"))
    assert chain(provider).name_matters(GET_POD)


def test_names_matter_to_rbac_where_rules_have_them(tmp_path_factory: pytest.TempPathFactory) -> None:
    policy = tmp_path_factory.mktemp("policy") / "policy.yaml"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["settings"], "verbs": ["get"]}
    policy.write_text("\n---\n".join(map(json.dumps, role("", rule, User="alice"))))
    provider = RbacAuthorization([policy], defaults=False, watch=False)

    def matters(resource: str, *, is_resource: bool = True) -> bool:
        info = RequestInfo("get", "GET", "/x", is_resource=is_resource, resource=resource, name="x")
        return provider.name_matters(Attributes(UserInfo("alice"), info))

    assert matters("configmaps")
    assert matters("namespaces")
    assert matters("", is_resource=False)
    assert not matters("pods")


def test_names_matter_to_a_scope_and_to_an_audit_policy_that_have_them() -> None:
    assert Delegation((parse_scope("get pods -n a"), parse_scope("get pods --name x -n a"))).has_names
    assert not Delegation((parse_scope("get pods -n a"),)).has_names
    assert Policy((AuditRule(AuditLevel.NONE, resources=(GroupResources(names=frozenset({"x"})),)),)).has_names
    assert not Policy((AuditRule(AuditLevel.METADATA),)).has_names
