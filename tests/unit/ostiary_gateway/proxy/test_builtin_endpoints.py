"""What the gateway answers itself: paths that need no token of ours, and APIs of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.proxy.builtin_endpoints import OpenPaths
from ostiary_gateway.proxy.context import BuiltinApi, RequestContext, Served, UnauthenticatedRoute
from tests.support.http1 import connected, get, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import DENY, ImmediatePolicy, at, configured, kubernetes, serving

NOWHERE = "http://127.0.0.1:1"
REVOCATIONS = "/apis/ostiary.dev/v1/revocations"
REVOKE_BOB = json.dumps({"type": "user", "value": "bob"}).encode()
HOOKS = {"subjectAccessReview": True, "callers": {"tokenFile": "callers"}}
HOOK = "/webhooks/subject-access-review"
REVIEW = json.dumps(
    {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods"}},
    }
).encode()


# --- open paths ---


@pytest.mark.parametrize("target", ["/auth", "/auth/methods", "/auth?x=1", "http://gateway.test/auth"])
async def test_the_sign_in_page_needs_no_token_and_reaches_no_upstream(tmp_path: Path, target: str) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        assert (await site.client.ask(get(target, "Accept: text/html"))).status != 401
        assert made.requests == []
        assert site.count("requests_total") == 1
        assert site.count("authentications_total", "absent") == 0


@pytest.mark.parametrize("target", ["/authx", "/au", "/x/auth", "/webhooksx"])
async def test_a_path_that_only_looks_like_it_needs_one(tmp_path: Path, target: str) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        assert (await site.client.ask(get(target))).status == 401
        assert (await site.ask(target)).status == 200
        assert [request.target for request in made.requests] == [target.encode()]


async def test_a_target_is_told_from_the_open_paths_that_begin_like_it(tmp_path: Path) -> None:
    def never(ctx: RequestContext, served: Served) -> None:
        raise AssertionError

    async with serving(configured(tmp_path, NOWHERE)) as site:
        engine = site.worker.app.engine
        route = UnauthenticatedRoute(never, repeats=False, records_refusals=False)
        for names, above, expected in [
            ((), "/", False),
            (("/auth", "/webhooks"), "/", True),
            (("/auth", "/webhooks"), "/a", True),
            (("/auth", "/webhooks"), "/x/", False),
        ]:
            paths = {name.encode(): route for name in names}
            opened = OpenPaths(paths, engine._heads, engine._tasks, engine._records)
            assert opened.begin_with(above) is expected, (names, above)


async def test_a_refusal_at_an_open_path_is_recorded_by_its_id(tmp_path: Path) -> None:
    (tmp_path / "callers").write_text("caller-secret")
    async with serving(configured(tmp_path, NOWHERE, webhooks=HOOKS)) as site:
        answer = await site.client.ask(get(HOOK, method="POST", body=REVIEW))
        assert answer.status == 401
        assert answer.one("WWW-Authenticate") == b"Bearer"
        assert answer.one("Content-Type") == b"application/json"
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason == "the gateway answered 401 at a path that needs no token"
        (event,) = await site.events()
        assert event["responseStatus"]["code"] == 401
        assert site.count("requests_total", "401") == 1


@pytest.mark.parametrize("code", [399, 400])
async def test_only_an_error_at_an_open_path_is_a_refusal(tmp_path: Path, code: int) -> None:
    def answer(ctx: RequestContext, served: Served) -> None:
        ctx.exchange.respond(code, [(b"Audit-Id", ctx.audit_id.encode())], b"")
        served(code)

    async with serving(configured(tmp_path, NOWHERE)) as site:
        engine = site.worker.app.engine
        paths = {b"/open": UnauthenticatedRoute(answer, repeats=False, records_refusals=False)}
        engine._open_paths = OpenPaths(paths, engine._heads, engine._tasks, engine._records)
        assert (site.ended(await site.client.ask(get("/open"))) is not None) == (code == 400)
        assert len(await site.events()) == (code == 400)
        assert site.count("requests_total", str(code)) == 1


async def test_a_sign_in_records_its_own_refusals(tmp_path: Path) -> None:
    """It knows more about them."""
    async with serving(configured(tmp_path, NOWHERE)) as site:
        answer = await site.client.ask(get("/auth/unknown"))
        assert answer.status == 404
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason == "page not found"


async def test_a_caller_that_asks_again_and_again_is_known_by_its_head_and_still_checked(tmp_path: Path) -> None:
    (tmp_path / "callers").write_text("caller-secret")
    async with serving(configured(tmp_path, NOWHERE, ImmediatePolicy(), webhooks=HOOKS)) as site:
        ask = get(HOOK, "Authorization: Bearer caller-secret", method="POST", body=REVIEW)
        for _ in range(3):
            answer = await site.client.ask(ask)
            assert json.loads(answer.body)["status"]["allowed"] is True
        assert len(site.worker._http.known) == 1
        assert (await site.client.ask(ask.replace(b"caller-secret", b"caller-wrong!"))).status == 401
        assert site.count("requests_total", "200") == 3
        assert site.count("requests_total", "401") == 1


async def test_no_head_is_remembered_for_what_was_refused_nor_for_a_page(tmp_path: Path) -> None:
    (tmp_path / "callers").write_text("caller-secret")
    async with serving(configured(tmp_path, NOWHERE, webhooks=HOOKS)) as site:
        for _ in range(3):
            wrong = get(HOOK, "Authorization: Bearer caller-wrong!", method="POST", body=REVIEW)
            assert (await site.client.ask(wrong)).status == 401
            assert (await site.client.ask(get("/auth/methods"))).status == 200
        assert len(site.worker._http.known) == 0


# --- APIs of our own ---


async def test_a_call_of_our_own_api_is_counted_and_recorded_with_its_user(tmp_path: Path) -> None:
    async with serving(configured(tmp_path, NOWHERE)) as site:
        answer = await site.ask(REVOCATIONS, "Content-Type: application/json", method="POST", body=REVOKE_BOB)
        assert answer.status in (200, 201)
        (event,) = await site.events()
        assert (event["user"]["username"], event["responseStatus"]["code"]) == ("alice", answer.status)
        assert site.count("requests_total", "create", str(answer.status)) == 1
        assert site.seats == 0
        assert site.ended(answer) is None


async def test_a_failure_inside_our_own_api_is_answered_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(configured(tmp_path, NOWHERE), may_fail_inside=True) as site:

        async def fail(*args: Any, **more: Any) -> Any:
            raise RuntimeError("nobody expected this")

        with monkeypatch.context() as patch:
            patch.setattr(site.store, "revoke", fail)
            answer = await site.ask(REVOCATIONS, "Content-Type: application/json", method="POST", body=REVOKE_BOB)
        assert answer.status == 500
        assert site.seats == 0
        codes = [event["responseStatus"]["code"] for event in await site.events()]
        assert set(codes) == {500}
        again = await site.ask(REVOCATIONS, "Content-Type: application/json", method="POST", body=REVOKE_BOB)
        assert again.status == 201, "the answer was whole, so its connection is still good"
    assert "a request failed inside the gateway" in [record.getMessage() for record in caplog.records]


async def test_what_our_own_api_refuses_can_be_explained(tmp_path: Path) -> None:
    async with serving(configured(tmp_path, NOWHERE)) as site:
        answer = await site.ask(REVOCATIONS, "Content-Type: application/json", method="POST", body=b"{}")
        assert 400 <= answer.status < 500
        ended = site.ended(answer)
        assert ended is not None
        assert (ended.reason, ended.username) == ("refused by the gateway's own API", "alice")
        assert site.seats == 0


@pytest.mark.parametrize("code", [399, 400])
async def test_only_an_error_of_our_own_api_is_a_refusal(tmp_path: Path, code: int) -> None:
    async def answer(ctx: RequestContext) -> int:
        ctx.exchange.respond(code, [(b"Audit-Id", ctx.audit_id.encode())], b"")
        return code

    async with serving(configured(tmp_path, NOWHERE)) as site:
        engine = site.worker.app.engine
        own = BuiltinApi("/own", site.worker.app.routes.upstreams[0].mapper, answer)
        engine._questions._own_apis = (own,)
        assert (site.ended(await site.ask("/own")) is not None) == (code == 400)


@pytest.mark.parametrize("revoked", [False, True])
async def test_a_call_that_comes_slowly_is_answered_unless_its_token_is_revoked_meanwhile(
    tmp_path: Path, revoked: bool
) -> None:
    async with serving(configured(tmp_path, NOWHERE)) as site, connected(site.port) as client:
        data = site.request(REVOCATIONS, "Content-Type: application/json", method="POST", body=REVOKE_BOB)
        client.send(data[:-5])
        await until(lambda: site.seats == 1)
        if revoked:
            await site.worker.app.shared.tokens.revoke(RevocationKind.USER, "alice")
            await until(lambda: not site.worker.app.shared.authenticator.size)
        client.send(data[-5:])
        assert (await client.answer()).status == (401 if revoked else 201)
        marks = (await site.store.revocations_after(0)).revocations
        assert ("bob" in [mark.value for mark in marks]) != revoked


async def test_a_call_that_is_not_allowed_does_nothing(tmp_path: Path) -> None:
    async with serving(configured(tmp_path, NOWHERE, ImmediatePolicy(DENY))) as site:
        assert (await site.ask(REVOCATIONS, method="POST", body=REVOKE_BOB)).status == 403
        assert await site.worker.app.shared.tokens.sequence() == 0


async def test_a_body_of_more_than_a_mebibyte_is_too_large(tmp_path: Path) -> None:
    async with serving(configured(tmp_path, NOWHERE)) as site:
        half = b" " * (512 * 1024)
        async with connected(site.port) as client:
            head = site.request(REVOCATIONS, "Content-Type: application/json", method="POST", body=b"x")
            head = head.replace(b"Content-Length: 1\r\n", b"Content-Length: %d\r\n" % (len(half) * 2 + 1))[:-1]
            client.send(head + half)
            client.send(half + b" ")
            answer = await client.answer()
            assert answer.status == 413
            ended = site.ended(answer)
            assert ended is not None
            assert (ended.reason, ended.username) == ("the body is too large", "alice")
        await until(lambda: site.seats == 0)
        (event,) = await site.events()
        assert event["responseStatus"]["code"] == 413


async def test_a_client_that_hangs_up_in_the_middle_of_its_body_is_recorded_and_gives_its_seat_back(
    tmp_path: Path,
) -> None:
    async with serving(configured(tmp_path, NOWHERE)) as site:
        async with connected(site.port) as client:
            data = site.request(REVOCATIONS, "Content-Type: application/json", method="POST", body=b"x" * 100)
            client.send(data[:-50])
            await until(lambda: site.seats == 1)
        await until(lambda: site.seats == 0 and not site.worker.app.engine.busy)
        (event,) = await site.events()
        assert event["responseStatus"]["code"] == 0, "it got no answer"
        assert site.count("requests_total", "create") == 1


# --- a review of one's own token ---

TOKEN_REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"


def review_of(token: str) -> bytes:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    return json.dumps(review).encode()


@pytest.mark.parametrize("allowed", [True, False])
async def test_who_asks_about_their_own_token_is_answered_by_us_whatever_the_policy_says(
    tmp_path: Path, allowed: bool
) -> None:
    policy = ImmediatePolicy()
    if not allowed:
        policy.rule = DENY
    async with upstream() as made:
        config = configured(tmp_path, at(made), policy, upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            for _ in range(3):
                body = review_of(site.token)
                answer = await site.ask(TOKEN_REVIEWS, "Content-Type: application/json", method="POST", body=body)
                assert answer.status == 201
                assert json.loads(answer.body)["status"]["user"]["username"] == "alice"
            assert site.count("requests_total", "create", "201") == 3
            assert [event["responseStatus"]["code"] for event in await site.events()] == [201] * 3
            assert site.seats == 0
        assert made.requests == []


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_review_of_another_token_is_decided_on_and_sent_on_as_it_is(tmp_path: Path, allowed: bool) -> None:
    policy = ImmediatePolicy()
    if not allowed:
        policy.rule = DENY
    async with upstream() as made:
        config = configured(tmp_path, at(made), policy, upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            body = review_of("another")
            answer = await site.ask(TOKEN_REVIEWS, "Content-Type: application/json", method="POST", body=body)
            assert answer.status == (200 if allowed else 403)
            assert [request.body for request in made.requests] == ([body] if allowed else [])
            await until(lambda: site.seats == 0)


async def test_who_hangs_up_in_the_middle_of_a_review_gives_the_seat_back(tmp_path: Path) -> None:
    async with upstream() as made:
        async with serving(configured(tmp_path, at(made), upstreams=kubernetes(at(made)))) as site:
            async with connected(site.port) as client:
                data = site.request(TOKEN_REVIEWS, method="POST", body=review_of(site.token))
                client.send(data[:-5])
                await until(lambda: site.seats == 1)
            await until(lambda: site.seats == 0 and not site.worker.app.engine.busy)
        assert made.requests == []


async def test_a_review_goes_nowhere_after_the_token_of_its_sender_is_revoked(tmp_path: Path) -> None:
    async with upstream() as made:
        async with serving(configured(tmp_path, at(made), upstreams=kubernetes(at(made)))) as site:
            data = site.request(TOKEN_REVIEWS, "Content-Type: application/json", method="POST", body=review_of("x"))
            site.client.send(data[:-5])
            await until(lambda: site.seats == 1)
            await site.worker.app.shared.tokens.revoke(RevocationKind.USER, "alice")
            await until(lambda: not site.worker.app.shared.authenticator.size)
            site.client.send(data[-5:])
            assert (await site.client.answer()).status == 401
            await until(lambda: not site.worker.app.engine.busy)
        assert made.requests == []


def test_a_passage_has_no_place_to_give_back_at_first() -> None:
    ctx = RequestContext(None, 0.0, "id")  # type: ignore[arg-type]
    ctx.release()
    left: list[int] = []
    ctx.leave = lambda: left.append(1)
    ctx.release()
    ctx.release()
    assert left == [1], "a place is given back once"
