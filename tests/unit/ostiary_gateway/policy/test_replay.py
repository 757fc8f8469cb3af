"""Recorded requests, decided anew."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary_gateway.audit.recorded import RecordedRequest
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.interfaces.attributes import RequestLine
from ostiary_gateway.policy.diff import Effect
from ostiary_gateway.policy.replay import replay
from ostiary_gateway.providers.kubernetes.attributes import KubernetesAttributes
from ostiary_gateway.wire.request_info import request_info
from tests.unit.ostiary_gateway.providers.rbac.policies import bind, cluster_role, rbac, rule

AT = datetime(2026, 1, 1, tzinfo=UTC)
CANDIDATE = Authorizer(
    [Link("rbac", rbac(cluster_role("r", rule("get", "core", "pods pods/exec")), bind("r", "User:alice")))]
)


def asked(user: str, method: str, path: str, *, allowed: bool, id: str = "id") -> RecordedRequest:
    verdict = Verdict.ALLOW if allowed else Verdict.NO_OPINION
    return RecordedRequest(
        id, AT, Attributes(UserInfo(user), request_info(RequestLine(method, path))), Decision(verdict)
    )


async def test_what_is_decided_as_before_is_no_difference() -> None:
    records = [
        asked("alice", "GET", "/api/v1/pods/a", allowed=True),
        asked("bob", "GET", "/api/v1/pods/a", allowed=False),
    ]
    told = await replay(records, CANDIDATE)
    assert (told.asked, told.differences) == (2, ())


async def test_gains_and_losses_are_told_once_and_counted() -> None:
    """Idea 3."""
    lost = [asked("bob", "GET", f"/api/v1/pods/{number}", allowed=True, id=f"id-{number}") for number in range(3)]
    gained = asked("alice", "GET", "/api/v1/pods/a", allowed=False, id="id-a")
    told = await replay([*lost, gained], CANDIDATE)
    found = [(one.effect, one.username, one.request.resource, one.count, one.example) for one in told.differences]
    assert found == [(Effect.GAIN, "alice", "pods", 1, "id-a"), (Effect.LOSS, "bob", "pods", 3, "id-0")]


async def test_what_everybody_may_ask_of_themselves_is_no_question_of_policy() -> None:
    review = asked("bob", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", allowed=True)
    told = await replay([review], CANDIDATE)
    assert (told.asked, told.free, told.differences) == (0, 1, ())


async def test_what_a_token_was_not_for_is_no_question_of_policy() -> None:
    """Its owner may do it: no policy has changed that."""
    record = asked("alice", "GET", "/api/v1/pods/a", allowed=False)
    record = replace(record, decision=Decision(Verdict.DENY, "beyond this token's scope: get nodes -A"))
    told = await replay([record], CANDIDATE)
    assert (told.asked, told.free, told.differences) == (0, 1, ())


async def test_a_terminal_needs_what_the_gateway_asks_for_it() -> None:
    record = asked("alice", "GET", "/api/v1/namespaces/team/pods/web/exec", allowed=False)
    assert (await replay([record], CANDIDATE, [KubernetesAttributes()])).differences == ()
    assert len((await replay([record], CANDIDATE)).differences) == 1


class Broken:
    async def authorize(self, attributes: Attributes) -> Decision:
        raise ProviderError("gone")

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


async def test_what_cannot_be_decided_is_neither_a_gain_nor_a_loss() -> None:
    told = await replay([asked("a", "GET", "/x", allowed=True)] * 2, Authorizer([Link("broken", Broken())]))
    assert (told.failed, told.differences) == (2, ())
    assert '"broken" is unavailable' in told.error
