"""Whether somebody can use a cluster, as far as the policy can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, UserInfo
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.cluster_access import ClusterUse, use_of
from tests.unit.ostiary_gateway.authorization.providers import ALICE, ALLOW, DENY, PASS, AtOnce, Slow, chain, raises


class Telling(AtOnce):
    """Knows whether its policy gives alice something."""

    def __init__(self, rights: Any, decision: Decision = PASS) -> None:
        super().__init__(decision)
        self._rights = rights

    def gives_rights(self, user: UserInfo) -> bool:
        if isinstance(self._rights, Exception):
            raise self._rights
        return bool(self._rights) if isinstance(self._rights, bool) else self._rights


def only(*paths: str) -> Callable[[Attributes], Decision]:
    return lambda attributes: ALLOW if attributes.request.path in paths else PASS


async def test_the_use_of_a_cluster(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[Any], ClusterUse]] = [
        ([Telling(True)], ClusterUse.GRANTED),
        # What everybody may read is no reason to be offered a cluster.
        ([Telling(False, ALLOW)], ClusterUse.NONE),
        ([Telling(False), Telling(True)], ClusterUse.GRANTED),
        # Another one denies it before, or everything in general.
        ([AtOnce(DENY), Telling(True)], ClusterUse.NONE),
        ([Telling(False, DENY), Telling(True)], ClusterUse.NONE),
        # These cannot tell: they are asked about what most users do.
        ([Slow(only("/api"))], ClusterUse.UNKNOWN),
        ([Slow(only("/api/v1/pods"))], ClusterUse.GRANTED),
        ([Slow(only("/api", "/api/v1/namespaces"))], ClusterUse.GRANTED),
        ([Slow(PASS)], ClusterUse.NONE),
        ([Telling(False), Slow(only("/api"))], ClusterUse.UNKNOWN),
        ([], ClusterUse.NONE),
    ]
    for providers, use in cases:
        with subtests.test(providers=providers, use=use):
            assert await use_of(chain(*providers), ALICE, "dev") is use


async def test_only_policies_for_the_upstream_count() -> None:
    authorizer = Authorizer([Link("dev", Telling(True), upstreams=frozenset(["dev"])), Link("both", Telling(False))])
    assert await use_of(authorizer, ALICE, "dev") is ClusterUse.GRANTED
    assert await use_of(authorizer, ALICE, "prod") is ClusterUse.NONE


@pytest.mark.parametrize("provider", [Slow(raises(OSError("gone"))), Telling(OSError("gone")), Telling("yes")])
async def test_what_cannot_be_asked_is_no_yes(provider: Any) -> None:
    with pytest.raises(ProviderError):
        await use_of(chain(provider), ALICE, "dev")


async def test_questions_name_the_upstream_and_are_those_of_kubectl() -> None:
    provider = Slow(PASS)
    await use_of(chain(provider), ALICE, "dev")
    assert [(each.request.verb, each.request.path, each.upstream) for each in provider.asked] == [
        ("get", "/api", "dev"),
        ("list", "/api/v1/namespaces", "dev"),
        ("list", "/api/v1/pods", "dev"),
    ]
