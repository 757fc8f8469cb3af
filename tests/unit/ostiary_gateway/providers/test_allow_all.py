from __future__ import annotations

from ostiary.core.yaml import ConfigReader, parse
from ostiary.model import Attributes, RequestInfo, UserInfo
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.catalog import Context, load
from ostiary_gateway.providers.allow_all import AllowAllAuthorization

QUESTION = Attributes(UserInfo("system:anonymous"), RequestInfo("delete", "DELETE", "/"))


async def test_everything_is_allowed_and_the_reason_is_loud() -> None:
    """S2, S15: whoever reads the audit log must not take this for a policy."""
    reading = ConfigReader(parse("{}"))
    provider = AllowAllAuthorization.from_config(reading.root, Context())
    decision = Authorizer([Link("demo", provider)]).decide(QUESTION)
    assert reading.problems == []
    assert decision is not None
    assert decision.allowed
    assert decision.reason.startswith("ALLOW ALL")
    assert await provider.relevant_groups() == frozenset()


def test_everybody_can() -> None:
    assert {subject.name for subject in AllowAllAuthorization().who_can(QUESTION)} == {
        "system:authenticated",
        "system:unauthenticated",
    }
    rules = AllowAllAuthorization().rules_for(QUESTION.user, "x")
    assert (rules.resource_rules[0].verbs, rules.non_resource_rules[0].paths) == (("*",), ("*",))


def test_the_catalog_finds_it() -> None:
    """S2."""
    assert load("authorization", "allow_all") is AllowAllAuthorization


def test_allow_all_tells_that_everybody_has_everything() -> None:
    told = {(one.subject.name, type(one.rule)) for one in AllowAllAuthorization().grants()}
    assert len(told) == 4
