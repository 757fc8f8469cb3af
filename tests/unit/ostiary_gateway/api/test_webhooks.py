"""What a cluster asks of us, and what it is told."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ostiary.core.scopes import narrow, parse_scope
from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, UserInfo, Verdict
from ostiary.wire.status import Answer
from ostiary_gateway.api.webhooks import LONGEST_QUESTION, SubjectAccessReviews, TokenReviews
from ostiary_gateway.authentication.authenticator import TokenAuthenticator
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.step_up import StepUpRules
from ostiary_gateway.config.step_up import StepUpRuleSettings
from ostiary_gateway.interfaces.token_store import Found, RevocationKind, TokenRecord
from ostiary_gateway.proxy.token_review import NARROWED
from ostiary_gateway.sessions import Tokens, digest, new_token
from ostiary_gateway.sessions.authentication_context import AuthenticationContext, with_context
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

ANN = UserInfo("ann", "u1", ("dev", "a,b"), (("team", ("x",)),))


def token_review(token: str, *audiences: str, version: str = "v1") -> bytes:
    spec = {"token": token, **({"audiences": audiences} if audiences else {})}
    kind = {"kind": "TokenReview", "apiVersion": f"authentication.k8s.io/{version}"}
    return json.dumps({**kind, "metadata": {"creationTimestamp": None}, "spec": spec, "status": {"user": {}}}).encode()


async def told(answer: Answer | Awaitable[Answer]) -> tuple[int, dict[str, Any]]:
    found = await answer if inspect.isawaitable(answer) else answer
    return found.code, json.loads(found.body)


class BrokenStore(MemoryTokenStore):
    async def find(self, digest: bytes) -> Found | None:
        raise ProviderError("the token store does not answer", cause="canary-cause")


@pytest.fixture
def tokens(clock: FakeClock) -> Tokens:
    return Tokens(MemoryTokenStore(clock=clock), clock=clock)


@pytest.fixture
def authenticator(tokens: Tokens, clock: FakeClock) -> TokenAuthenticator:
    return TokenAuthenticator(tokens, clock)


# --- TokenReview ---


async def test_a_token_that_is_less_than_its_owner_is_nobody_to_a_cluster(
    tokens: Tokens, authenticator: TokenAuthenticator
) -> None:
    """The cluster would let it do what the owner may."""
    issued = await tokens.issue(ANN, provider="staff")
    delegation = narrow(None, parse_scope("get pods -n shop")).encode()
    token = new_token().reveal()
    times = (issued.session.created_at, issued.expires_at)
    added = TokenRecord(digest(token), issued.session.id, *times, delegation=delegation)
    await tokens.store.add(issued.session, [added])
    reviews = TokenReviews(authenticator)
    for _ in range(3):
        code, body = await told(reviews.answer(token_review(token)))
        assert code == 200
        assert body["status"] == {"authenticated": False, "error": NARROWED}


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_a_token_is_answered_with_its_user_in_the_version_asked(
    tokens: Tokens, authenticator: TokenAuthenticator, version: str
) -> None:
    """S17, S40."""
    issued = await tokens.issue(ANN, provider="staff")
    reviews = TokenReviews(authenticator)
    code, body = await told(reviews.answer(token_review(issued.token.reveal(), version=version)))
    assert code == 200
    assert body["apiVersion"] == f"authentication.k8s.io/{version}"
    assert body["status"]["authenticated"] is True
    assert body["status"]["user"] == {
        "username": "ann",
        "uid": "u1",
        "groups": ["dev", "a,b", "system:authenticated"],
        "extra": {
            "team": ["x"],
            "authentication.kubernetes.io/credential-id": [f"OSTIARY={issued.session.id}"],
        },
    }
    assert "audiences" not in body["status"]


async def test_a_token_in_memory_is_answered_at_once(tokens: Tokens, authenticator: TokenAuthenticator) -> None:
    issued = await tokens.issue(ANN, provider="staff")
    reviews = TokenReviews(authenticator)
    asked = token_review(issued.token.reveal())
    first = reviews.answer(asked)
    assert not isinstance(first, Answer), "the store had to be asked"
    looked_up = await first
    assert reviews.answer(asked) == looked_up
    assert isinstance(reviews.answer(asked), Answer)


async def test_the_unknown_the_expired_the_revoked_and_the_renewal_token_are_answered_alike(
    tokens: Tokens, authenticator: TokenAuthenticator, clock: FakeClock
) -> None:
    """S39: in 200, because a cluster asks again after a 500."""
    expired = await tokens.issue(ANN, provider="staff")
    clock.advance(minutes=16)
    revoked = await tokens.issue(ANN, provider="staff")
    await tokens.revoke(RevocationKind.SESSION, revoked.session.id)
    good = await tokens.issue(ANN, provider="staff")
    reviews = TokenReviews(authenticator)
    bad = ["", "x", "ost_" + "0" * 51, expired.token.reveal(), revoked.token.reveal(), good.renewal.reveal()]
    answers = [await told(reviews.answer(token_review(token))) for token in bad]
    assert all(answer == answers[0] for answer in answers)
    code, body = answers[0]
    assert (code, body["status"]["authenticated"]) == (200, False)
    assert "user" not in body["status"]


async def test_a_revoked_token_is_no_longer_answered_from_memory(
    tokens: Tokens, authenticator: TokenAuthenticator
) -> None:
    issued = await tokens.issue(ANN, provider="staff")
    reviews = TokenReviews(authenticator)
    await told(reviews.answer(token_review(issued.token.reveal())))
    await tokens.revoke(RevocationKind.USER, "ann")
    await authenticator.feed.confirm()
    _, body = await told(reviews.answer(token_review(issued.token.reveal())))
    assert body["status"]["authenticated"] is False


@pytest.mark.parametrize(
    ("ours", "asked", "expected"),
    [
        ((), (), None),
        ((), ("api",), None),
        (("api", "vault"), (), None),
        (("api", "vault"), ("api",), ["api"]),
        (("api", "vault"), ("x", "vault", "api"), ["vault", "api"]),
        (("api",), ("vault",), False),
    ],
)
async def test_audiences(
    tokens: Tokens, authenticator: TokenAuthenticator, ours: tuple[str, ...], asked: tuple[str, ...], expected: object
) -> None:
    """The answer names those that were asked for and that our tokens are for; with none left, the token is no good."""
    issued = await tokens.issue(ANN, provider="staff")
    reviews = TokenReviews(authenticator, ours)
    _, body = await told(reviews.answer(token_review(issued.token.reveal(), *asked)))
    assert body["status"]["authenticated"] is (expected is not False)
    assert body["status"].get("audiences") == (expected or None)


async def test_a_store_that_fails_is_a_500_that_tells_nothing(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """S53: an outage is no "no", and a cluster tries again."""
    tokens = Tokens(MemoryTokenStore(clock=clock), clock=clock)
    issued = await tokens.issue(ANN, provider="staff")
    authenticator = TokenAuthenticator(Tokens(BrokenStore(clock=clock), clock=clock), clock)
    with caplog.at_level(logging.ERROR):
        code, body = await told(TokenReviews(authenticator).answer(token_review(issued.token.reveal())))
    assert (code, body["reason"]) == (500, "InternalError")
    assert "canary" not in json.dumps(body)
    assert [record.cause for record in caplog.records] == ["canary-cause"]  # type: ignore[attr-defined]
    assert issued.token.reveal() not in caplog.text


@pytest.mark.parametrize("body", [b"", b"{}", token_review("canary", version="v2"), b'{"spec":{"token":"canary"'])
async def test_what_is_no_token_review_is_a_400(authenticator: TokenAuthenticator, body: bytes) -> None:
    """S17."""
    code, answer = await told(TokenReviews(authenticator).answer(body))
    assert (code, answer["reason"]) == (400, "BadRequest")
    assert "canary" not in json.dumps(answer)


# --- SubjectAccessReview ---


class Policy:
    """Decides without waiting."""

    def __init__(self, decision: Decision | Exception) -> None:
        self.decision = decision
        self.asked: list[Attributes] = []

    def decide(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        if isinstance(self.decision, Exception):
            raise self.decision
        return self.decision

    async def authorize(self, attributes: Attributes) -> Decision:
        return self.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


class Elsewhere:
    """Must be waited for."""

    def __init__(self, decision: Decision | Exception) -> None:
        self._policy = Policy(decision)

    async def authorize(self, attributes: Attributes) -> Decision:
        return self._policy.decide(attributes)

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


def access_review(version: str = "v1", **spec: Any) -> bytes:
    asked = {"user": "ann", "groups" if version == "v1" else "group": ["dev"], **spec}
    asked.setdefault("resourceAttributes", {"namespace": "n", "verb": "get", "resource": "pods", "name": "p"})
    kind = {"kind": "SubjectAccessReview", "apiVersion": f"authorization.k8s.io/{version}", "metadata": {}}
    return json.dumps({**kind, "spec": asked}).encode()


STEP_UP = StepUpRules(
    [
        StepUpRuleSettings(
            name="delete-in-prod",
            verbs=("delete",),
            resources=("pods",),
            upstreams=("prod",),
            amr=("mfa",),
            max_age=timedelta(minutes=15),
        )
    ]
)


async def test_what_needs_a_step_up_is_denied_with_the_reason_until_the_user_has_proved_it(clock: FakeClock) -> None:
    """For whichever upstream: a cluster does not say which one it is. And nothing of it is kept: time passes."""
    authorizer = Authorizer([Link("policy", Policy(Decision(Verdict.ALLOW)))], clock=clock)
    reviews = SubjectAccessReviews(authorizer, step_up=STEP_UP, clock=clock)
    now = clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
    attributes = {"verb": "delete", "resource": "pods", "namespace": "shop"}
    proved = {"ostiary.dev/amr": ["mfa"], "ostiary.dev/auth-time": [now]}
    for extra, allowed in (({}, False), (proved, True), ({**proved, "ostiary.dev/amr": ["pwd"]}, False)):
        _, said = await told(reviews.answer(access_review(user="ann", extra=extra, resourceAttributes=attributes)))
        assert said["status"]["allowed"] is allowed
        if not allowed:
            assert said["status"]["reason"].startswith("step-up required by the rule delete-in-prod: a sign-in by mfa")
    clock.advance(901)
    _, later = await told(reviews.answer(access_review(user="ann", extra=proved, resourceAttributes=attributes)))
    assert later["status"]["allowed"] is False
    _, other = await told(reviews.answer(access_review(user="ann", resourceAttributes={**attributes, "verb": "get"})))
    assert other["status"]["allowed"] is True


async def test_a_cluster_is_told_how_the_person_has_signed_in_by_now(
    tokens: Tokens, authenticator: TokenAuthenticator
) -> None:
    issued = await tokens.issue(ANN, provider="idp")
    body = token_review(issued.token.reveal())
    for fresh, seen in ((False, None), (True, ["mfa"])):
        reviews = TokenReviews(authenticator, fresh=fresh)
        await told(reviews.answer(body))
        stronger = with_context(ANN, AuthenticationContext(amr=("mfa",)))
        await tokens.store.add(replace(issued.session, user=stronger), [])
        _, said = await told(reviews.answer(body))
        assert said["status"]["user"]["extra"].get("ostiary.dev/amr") == seen


def reviews_of(provider: Policy | Elsewhere, clock: FakeClock) -> tuple[SubjectAccessReviews, Authorizer]:
    authorizer = Authorizer([Link("policy", provider)], clock=clock)
    return SubjectAccessReviews(authorizer), authorizer


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
async def test_an_allowed_request(clock: FakeClock, version: str) -> None:
    """S43."""
    policy = Policy(Decision(Verdict.ALLOW, "because"))
    reviews, _ = reviews_of(policy, clock)
    answer = reviews.answer(access_review(version))
    assert isinstance(answer, Answer), "nothing had to be waited for"
    code, body = await told(answer)
    assert (code, body["status"]) == (200, {"allowed": True, "reason": "because"})
    assert body["apiVersion"] == f"authorization.k8s.io/{version}"
    (asked,) = policy.asked
    assert (asked.user.username, asked.user.groups) == ("ann", ("dev", "system:authenticated"))


async def test_the_same_question_is_answered_from_memory_as_long_as_the_ruling_holds(clock: FakeClock) -> None:
    """S44, S57."""
    policy = Policy(Decision(Verdict.ALLOW, "because"))
    reviews, _ = reviews_of(policy, clock)
    first = reviews.answer(access_review())
    assert reviews.answer(access_review()) is first
    assert reviews.answer(access_review(user="joe")) is not first
    policy.decision = Decision(Verdict.DENY, "not any more")
    clock.advance(11)
    _, body = await told(reviews.answer(access_review()))
    assert body["status"]["allowed"] is False


async def test_a_long_question_is_not_kept(clock: FakeClock, tokens: Tokens, authenticator: TokenAuthenticator) -> None:
    """T2: users of the cluster decide how long it is."""
    reviews, _ = reviews_of(Policy(Decision(Verdict.ALLOW)), clock)
    assert (await told(reviews.answer(access_review(extra={"a": ["x" * LONGEST_QUESTION]}))))[0] == 200
    assert len(reviews._allowed) == 0
    issued = await tokens.issue(ANN, provider="staff")
    asks = TokenReviews(authenticator)
    for _ in range(2):
        _, body = await told(asks.answer(token_review(issued.token.reveal(), "x" * (LONGEST_QUESTION + 1))))
        assert body["status"]["authenticated"] is True
    assert len(asks._questions) == 0
    live = authenticator.recall(digest(issued.token.reveal()))
    assert live is not None
    assert live.review_answers == {}


@pytest.mark.parametrize("hidden", [True, False])
async def test_a_refusal_reads_alike_whether_it_is_hidden_or_not(clock: FakeClock, hidden: bool) -> None:
    """S51, S54, S55: a review cannot say 404, so it says no without the reason."""
    reviews, authorizer = reviews_of(Policy(Decision(Verdict.DENY, "canary-reason", hidden)), clock)
    code, body = await told(reviews.answer(access_review()))
    assert code == 200
    status = body["status"]
    words, _, decision_id = status.pop("reason").rpartition(" ")
    assert (status, words) == ({"allowed": False, "denied": True}, "ostiary: decision")
    refusal = authorizer.recall(decision_id)
    assert refusal is not None
    assert refusal.decision.reason == "canary-reason"


async def test_no_opinion_lets_the_clusters_next_authorizer_decide(clock: FakeClock) -> None:
    reviews, _ = reviews_of(Policy(Decision(Verdict.NO_OPINION)), clock)
    _, body = await told(reviews.answer(access_review()))
    assert body["status"]["allowed"] is False
    assert "denied" not in body["status"]


async def test_a_provider_elsewhere_is_waited_for(clock: FakeClock) -> None:
    reviews, _ = reviews_of(Elsewhere(Decision(Verdict.ALLOW)), clock)
    answer = reviews.answer(access_review())
    assert not isinstance(answer, Answer)
    assert (await told(answer))[1]["status"] == {"allowed": True}


@pytest.mark.parametrize("kind", [Policy, Elsewhere])
async def test_a_provider_that_cannot_be_asked_is_a_500(clock: FakeClock, kind: type[Policy] | type[Elsewhere]) -> None:
    """S53: so that the failure policy of the cluster applies, and not ours."""
    reviews, _ = reviews_of(kind(ConnectionError("canary")), clock)
    code, body = await told(reviews.answer(access_review()))
    assert (code, body["reason"]) == (500, "InternalError")
    assert "canary" not in json.dumps(body)


async def test_what_is_no_access_review_is_a_400(subtests: pytest.Subtests) -> None:
    cases = [
        b"",
        b"[]",
        access_review("v2"),
        access_review(user="", groups=[]),
        access_review(nonResourceAttributes={"path": "/", "verb": "get"}),
        access_review().replace(b'"SubjectAccessReview"', b'"SelfSubjectAccessReview"'),
    ]
    for body in cases:
        with subtests.test(body=body):
            clock = FakeClock()
            policy = Policy(Decision(Verdict.ALLOW))
            reviews, _ = reviews_of(policy, clock)
            code, answer = await told(reviews.answer(body))
            assert (code, answer["reason"]) == (400, "BadRequest")
            assert policy.asked == []
