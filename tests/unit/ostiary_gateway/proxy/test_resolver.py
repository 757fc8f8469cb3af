"""What a request asks for, where it goes, and that everything it requires must be allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary.model import Attributes, Decision, Verdict
from tests.support.http1 import get, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    ALLOW,
    DENY,
    ImmediatePolicy,
    Policy,
    at,
    configured,
    kubernetes,
    serving,
)

NOWHERE = "http://127.0.0.1:1"
EXEC = "/api/v1/namespaces/x/pods/p/exec?command=sh"
WEBSOCKET = ("Connection: Upgrade", "Upgrade: websocket")


# --- a request that requires two things ---


@pytest.mark.parametrize("kind", [ImmediatePolicy, Policy])
@pytest.mark.parametrize("missing", ["get", "create"])
async def test_a_terminal_opened_with_get_needs_what_opening_it_with_post_does(
    tmp_path: Path, kind: type[Policy], missing: str
) -> None:
    """Otherwise somebody who may only read could run commands."""

    def rule(attributes: Attributes) -> Decision:
        return Decision(Verdict.DENY, f"no {missing}") if attributes.request.verb == missing else ALLOW

    policy = kind(rule)
    config = configured(tmp_path, NOWHERE, policy, upstreams=kubernetes(NOWHERE))
    async with serving(config) as site:
        for _ in range(2):
            answer = await site.ask_once(EXEC, *WEBSOCKET)
            assert answer.status == 403
            assert b"cannot get resource" in answer.body, "the client is told about what it asked for"
            audit_id = (answer.one("Audit-Id") or b"").decode()
            refusal = site.worker.app.authorizer.recall(audit_id)
            assert refusal is not None
            assert refusal.decision.reason == f"no {missing}"
        assert [asked.request.verb for asked in policy.asked] == (["get"] if missing == "get" else ["get", "create"])
        assert site.streams == 0


@pytest.mark.parametrize("kind", [ImmediatePolicy, Policy])
async def test_with_both_rights_the_terminal_opens_as_a_stream(tmp_path: Path, kind: type[Policy]) -> None:
    policy = kind()
    async with upstream() as made:
        config = configured(tmp_path, at(made), policy, upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            site.client.send(site.request(EXEC, *WEBSOCKET))
            await until(lambda: bool(made.requests))
            assert [asked.request.verb for asked in policy.asked] == ["get", "create"]
            assert made.requests[0].target == EXEC.encode()


@pytest.mark.parametrize("kind", [ImmediatePolicy, Policy])
async def test_of_two_rulings_the_shorter_life_bounds_how_long_both_are_used(
    tmp_path: Path, kind: type[Policy]
) -> None:
    """The right to create was asked about six seconds earlier: after four more both are asked about again."""
    policy = kind(lambda attributes: DENY if attributes.request.path.endswith("/never") else ALLOW)
    config = configured(tmp_path, NOWHERE, policy, upstreams=kubernetes(NOWHERE))
    async with serving(config) as site:
        authorizer = site.worker.app.authorizer
        await site.ask_once(EXEC, *WEBSOCKET)
        create = policy.asked[-1]
        assert create.request.verb == "create"
        policy.asked.clear()
        site.clock.advance(10)
        await authorizer.authorize(create)
        site.clock.advance(6)
        await site.ask_once(EXEC, *WEBSOCKET)
        assert [asked.request.verb for asked in policy.asked] == ["create", "get"]
        policy.asked.clear()
        site.clock.advance(3.9)
        await site.ask_once(EXEC, *WEBSOCKET)
        assert policy.asked == []
        policy.rule = DENY
        site.clock.advance(0.1)
        assert (await site.ask_once(EXEC, *WEBSOCKET)).status == 403
        assert [asked.request.verb for asked in policy.asked] == ["create"]


# --- where it goes ---


async def test_the_upstream_is_chosen_by_path_and_told_to_the_policy(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream() as first, upstream() as second:
        upstreams: list[dict[str, object]] = [
            {"name": "a", "server": at(first), "prefix": "/a", "identity": "none", "attributes": "http"},
            {"name": "b", "server": at(second), "prefix": "/b", "identity": "none", "attributes": "http"},
        ]
        upstreams[1]["stripPrefix"] = True
        async with serving(configured(tmp_path, at(first), policy, upstreams=upstreams)) as site:
            assert (await site.ask("/a/x?q=1")).status == 200
            assert (await site.ask("/b/x?q=1")).status == 200
            assert (await site.ask("/c")).status == 404
        assert [request.target for request in first.requests] == [b"/a/x?q=1"]
        assert [request.target for request in second.requests] == [b"/x?q=1"]
        assert [asked.upstream for asked in policy.asked] == ["a", "b"]


async def test_a_whole_url_that_names_us_is_decided_on_and_sent_on_as_its_path(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        assert (await site.ask("http://gateway.test/x?q=1")).status == 200
        assert (await site.ask("http://gateway.test/y")).status == 200
        assert [request.target for request in made.requests] == [b"/x?q=1", b"/y"]
        assert [asked.request.path for asked in policy.asked] == ["/x", "/y"]
        assert (await site.ask("http://other.test/x")).status == 400


async def test_an_asterisk_is_a_target_of_options_alone(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        assert (await site.client.ask(site.request("*"))).status == 400
        assert (await site.client.ask(site.request("*", method="OPTIONS"), "OPTIONS")).status in (200, 404)


# --- odd names ---


async def test_a_name_with_a_semicolon_is_for_a_kubernetes_api_alone(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases = [
        ("/api/v1/namespaces/x/configmaps/a;b", 200),
        ("/api/v1/namespaces/x/configmaps/a%5Cb", 200),
        ("/api/v1/namespaces/x/services/s;x/proxy/y", 400),
        ("/api/v1/namespaces/x/services/s/proxy/y;z", 400),
        ("/version;x", 400),
        ("/apis/ostiary.dev/v1/revocations;x", 400),
    ]
    for target, status in cases:
        with subtests.test(target=target, status=status):
            tmp_path = tmp_path_factory.mktemp("case")
            async with upstream() as made:
                async with serving(configured(tmp_path, at(made), upstreams=kubernetes(at(made)))) as site:
                    assert (await site.ask(target)).status == status
                assert len(made.requests) == (1 if status == 200 else 0)


async def test_and_for_no_other_upstream(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made))) as site:
        assert (await site.ask("/a;b")).status == 400
        assert made.requests == []


# --- our own ---


async def test_our_own_api_is_decided_on_like_any_other_and_reaches_no_upstream(tmp_path: Path) -> None:
    policy = ImmediatePolicy(DENY)
    async with upstream() as made, serving(configured(tmp_path, at(made), policy)) as site:
        assert (await site.ask("/apis/ostiary.dev/v1/sessions")).status == 403
        (asked,) = policy.asked
        assert (asked.request.api_group, asked.request.resource) == ("ostiary.dev", "sessions")
        assert asked.upstream == ""
        assert (await site.client.ask(get("/apis/ostiary.dev/v1/sessions"))).status == 401
        policy.rule = ALLOW
        assert (await site.ask("/apis/ostiary.devx/v1/sessions")).status == 200
        assert [request.target for request in made.requests] == [b"/apis/ostiary.devx/v1/sessions"]


@pytest.mark.parametrize(
    ("upstreams", "forwarded"),
    [("kubernetes", 0), ("other", 1)],
)
async def test_a_review_about_oneself_is_ours_where_the_upstream_is_a_kubernetes_api(
    tmp_path: Path, upstreams: str, forwarded: int
) -> None:
    body = b'{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'
    async with upstream() as made:
        sections = {"upstreams": kubernetes(at(made))} if upstreams == "kubernetes" else {}
        policy = ImmediatePolicy(DENY if upstreams == "kubernetes" else ALLOW)
        async with serving(configured(tmp_path, at(made), policy, **sections)) as site:
            path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
            answer = await site.ask(path, "Content-Type: application/json", method="POST", body=body)
            assert answer.status == (201 if upstreams == "kubernetes" else 200), "nothing has to be allowed for it"
            if upstreams == "kubernetes":
                assert b'"alice"' in answer.body
        assert len(made.requests) == forwarded
