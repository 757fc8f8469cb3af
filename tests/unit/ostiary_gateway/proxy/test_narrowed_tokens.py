"""A token that is less than its owner at a real worker: what its scope lets pass, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.core.scopes import narrow, parse_scope, scope_of_rules
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.sessions import digest
from tests.support.http1 import Message, connected, get, turn, upstream
from tests.unit.ostiary_gateway.proxy.gateways import (
    DENY,
    Gateway,
    ImmediatePolicy,
    Policy,
    at,
    configured,
    cut,
    endless,
    is_cut,
    kubernetes,
    opened,
    serving,
)

PODS = "/api/v1/namespaces/shop/pods"
READ = "get,list,watch pods -n shop"
SELF_ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
SELF_RULES = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
TOKEN_REVIEW = "/apis/authentication.k8s.io/v1/tokenreviews"


async def narrowed(site: Gateway, scope: str, actor: str = "", delegation: str | None = None) -> str:
    """A token of alice's session, for *scope* only."""
    tokens = site.worker.app.shared.tokens
    record = await tokens.find(site.token)
    assert record is not None
    text = narrow(None, parse_scope(scope), actor).encode() if delegation is None else delegation
    minted = await tokens.mint(record.session, lifetime=timedelta(minutes=10), delegation=text)
    return minted.token.reveal()


async def ask(site: Gateway, token: str, target: str, *lines: str, **more: Any) -> Message:
    async with connected(site.port) as client:
        data = get(target, f"Authorization: Bearer {token}", *lines, **more)
        return await client.ask(data, more.get("method", "GET"))


async def post(site: Gateway, token: str, target: str, content: dict[str, object], *lines: str) -> Message:
    body = json.dumps(content)
    head = (f"Content-Length: {len(body)}", "Content-Type: application/json", *lines)
    async with connected(site.port) as client:
        return await client.ask(get(target, f"Authorization: Bearer {token}", *head, method="POST") + body.encode())


def refusal_of(answer: Message) -> str:
    assert answer.status == 403
    return str(json.loads(answer.body)["message"])


async def test_what_is_in_the_scope_passes_and_all_else_is_refused_and_says_so(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream() as made:
        config = configured(tmp_path, at(made), policy, upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, READ)
            for allowed in (PODS, f"{PODS}/web-1", f"{PODS}?watch=1"):
                assert (await ask(site, token, allowed)).status == 200
            asked = len(policy.asked)
            for refused in ("/api/v1/namespaces/web/pods", "/api/v1/pods", f"{PODS}/web-1/log", "/api"):
                assert f"beyond this token's scope: {READ}" in refusal_of(await ask(site, token, refused))
            assert "scope" in refusal_of(await ask(site, token, f"{PODS}/web-1", method="DELETE"))
            assert len(policy.asked) == asked, "the policy is not asked about what the token is not for"
            assert len(made.requests) == 3


async def test_a_token_for_exactly_one_action(tmp_path: Path) -> None:
    """S69: the token that a redirect would carry, as proof that one action was authorized, and of no other."""
    async with upstream() as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, "delete pods --name web-1 -n shop --upstream k")
            assert (await ask(site, token, f"{PODS}/web-1", method="DELETE")).status == 200
            for method, target in (
                ("DELETE", f"{PODS}/web-2"),
                ("DELETE", PODS),
                ("DELETE", "/api/v1/namespaces/web/pods/web-1"),
                ("GET", f"{PODS}/web-1"),
                ("GET", "/version"),
            ):
                assert "scope" in refusal_of(await ask(site, token, target, method=method))
            assert len(made.requests) == 1


@pytest.mark.parametrize(("attributes", "status"), [("kubernetes", 200), ("http", 403)])
async def test_discovery_reads_nothing_of_an_upstream_that_is_no_kubernetes(
    tmp_path: Path, attributes: str, status: int
) -> None:
    """``--can`` adds it: a token to read some pods would read whatever another API serves under these paths."""
    async with upstream() as made:
        settings = {"name": "api", "server": at(made), "attributes": attributes, "identity": "none"}
        async with serving(configured(tmp_path, at(made), ImmediatePolicy(), upstreams=[settings])) as site:
            token = await narrowed(site, str(scope_of_rules([READ])))
            for path in ("/api", "/apis/apps/v1", "/openapi/v3", "/version"):
                assert (await ask(site, token, path)).status == status


async def test_the_scope_gives_nothing_that_the_policy_does_not(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(DENY), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            assert "scope" not in refusal_of(await ask(site, await narrowed(site, READ), PODS))


@pytest.mark.parametrize("policy", [Policy, ImmediatePolicy])
async def test_what_is_remembered_for_the_owner_is_not_used_for_the_narrowed_token_nor_the_other_way(
    tmp_path: Path, policy: type[Policy]
) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), policy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            reader, other = await narrowed(site, READ), await narrowed(site, "get,list secrets -n shop")
            # Often enough that the head and the plan of each are remembered.
            for _ in range(3):
                assert (await site.ask(PODS)).status == 200
                assert (await ask(site, reader, PODS)).status == 200
                assert (await ask(site, other, PODS)).status == 403
                assert (await site.ask("/api/v1/nodes")).status == 200
                assert (await ask(site, reader, "/api/v1/nodes")).status == 403


async def test_two_tokens_with_the_same_scope_share_what_is_remembered(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            for token in [await narrowed(site, READ) for _ in range(2)]:
                assert (await ask(site, token, PODS)).status == 200
            users = {each.known_user for each in site.worker.app.shared.authenticator.in_use.every()}
            assert len(users) == 1


async def test_a_delegation_that_cannot_be_read_allows_nothing(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, READ, delegation='{"v":2}')
            assert "beyond this token's scope: nothing" in refusal_of(await ask(site, token, PODS))
            assert made.requests == []


# --- in another's name ---


def impersonating(scope: str) -> str:
    return f"{READ}; impersonate {scope}"


@pytest.mark.parametrize(
    ("scope", "target", "status"),
    [
        (READ, PODS, 403),
        (impersonating("users --name bob -A"), PODS, 200),
        (impersonating("users --name ann -A"), PODS, 403),
        (impersonating("users --name bob -A"), "/api/v1/nodes", 403),
    ],
)
async def test_a_request_in_anothers_name_needs_both_in_the_scope(
    tmp_path: Path, scope: str, target: str, status: int
) -> None:
    """To be the other, and to do what the other does."""
    async with upstream() as made:
        config = configured(tmp_path, at(made), Policy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, scope)
            answer = await ask(site, token, target, "Impersonate-User: bob")
            assert answer.status == status
            assert status == 200 or "beyond this token's scope" in refusal_of(answer)


# --- what is open ---


async def test_a_stream_goes_on_by_the_scope_and_is_cut_when_the_policy_changes(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), policy, upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, READ)
            async with opened(site, f"{PODS}?watch=1", token=token) as client:
                await site.tick(11)
                assert not is_cut(client)
                policy.rule, policy.revision = DENY, 2
                await site.tick(2)
                await cut(client)


async def test_a_stream_ends_with_the_token_and_not_with_the_owners_session(tmp_path: Path) -> None:
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, READ)
            async with opened(site, f"{PODS}?watch=1", token=token) as client:
                site.clock.advance(595)
                site.worker.app.shared.authenticator.tick()
                assert not is_cut(client)
                site.clock.advance(5)
                site.worker.app.shared.authenticator.tick()
                await cut(client)


async def test_a_stream_that_another_configuration_reads_otherwise_must_fit_the_scope_anew(tmp_path: Path) -> None:
    """The upstream has another name now, and the token is not for that one."""
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, f"{READ} --upstream k")
            async with opened(site, f"{PODS}?watch=1", token=token) as client:
                renamed = [{**kubernetes(at(made))[0], "name": "other"}]
                later = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=renamed)
                await site.worker.reload(replace(later, store=site.worker.app.config.store))
                await turn(200)
                assert is_cut(client)


async def test_a_narrowed_token_can_be_revoked_by_itself(tmp_path: Path) -> None:
    async with upstream(endless) as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, READ)
            async with opened(site, f"{PODS}?watch=1", token=token) as client:
                tokens = site.worker.app.shared.tokens
                await tokens.revoke(RevocationKind.TOKEN, digest(token).hex())
                await cut(client)
            assert (await ask(site, token, PODS)).status == 401
            assert await tokens.find(site.token) is not None


# --- what is said about it ---


async def test_events_say_for_what_the_token_is_who_uses_it_and_on_whose_behalf(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, READ, "release-agent")
            await ask(site, token, PODS)
            await ask(site, token, "/api/v1/nodes")
            await site.ask(PODS)
            allowed, refused, owner = [event for event in await site.events() if event["stage"] == "ResponseComplete"]
            for event in (allowed, refused):
                assert event["user"]["username"] == "alice"
                assert event["annotations"]["ostiary.dev/actor"] == "release-agent"
                assert event["annotations"]["ostiary.dev/scope"] == READ
            assert refused["annotations"]["authorization.k8s.io/decision"] == "forbid"
            assert refused["annotations"]["authorization.k8s.io/reason"] == f"beyond this token's scope: {READ}"
            assert not {"ostiary.dev/actor", "ostiary.dev/scope"} & set(owner["annotations"])


async def test_an_event_about_what_nobody_could_decide_names_the_scope_too(tmp_path: Path) -> None:
    policy = Policy()
    policy.fails = True
    async with upstream() as made:
        config = configured(tmp_path, at(made), policy, upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            assert (await ask(site, await narrowed(site, READ), PODS)).status == 500
            (event,) = await site.events()
            assert event["annotations"] == {"ostiary.dev/scope": READ}


async def test_a_refusal_is_explained_with_the_closest_rule_and_what_the_policy_would_say(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            answer = await ask(site, await narrowed(site, READ), "/api/v1/namespaces/web/pods")
            decision_id = (answer.one("Audit-Id") or b"").decode()
            explained = json.loads((await site.ask(f"/apis/ostiary.dev/v1/decisions/{decision_id}")).body)
            assert explained["scope"] == READ
            assert explained["then"]["reason"] == explained["now"]["decision"]["reason"]
            scope, policy = explained["now"]["steps"]
            assert (scope["provider"], scope["closest"], scope["failed"]) == ("token scope", READ, "namespace")
            assert scope["remedy"] == 'a token with: --can "list pods -n web --upstream k"'
            assert (policy["provider"], policy["verdict"]) == ("policy", "allow")


# --- reviews ---


@pytest.mark.parametrize(
    ("verb", "namespace", "allowed"), [("list", "shop", True), ("list", "web", False), ("delete", "shop", False)]
)
async def test_can_i_answers_for_the_token_and_not_for_its_owner(
    tmp_path: Path, verb: str, namespace: str, allowed: bool
) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            spec = {"resourceAttributes": {"verb": verb, "resource": "pods", "namespace": namespace}}
            answer = await post(site, await narrowed(site, READ), SELF_ACCESS, {"spec": spec})
            status = json.loads(answer.body)["status"]
            assert (answer.status, status["allowed"]) == (201, allowed)
            assert allowed or status["reason"] == f"beyond this token's scope: {READ}"


async def test_the_list_of_rules_is_what_policy_and_scope_both_allow(tmp_path: Path) -> None:
    """allow_all lists everything."""
    async with upstream() as made, serving(configured(tmp_path, at(made), upstreams=kubernetes(at(made)))) as site:
        token = await narrowed(site, f"{READ}; get /healthz")
        for namespace, verbs in (("shop", [["get", "list", "watch"]]), ("web", [])):
            answer = await post(site, token, SELF_RULES, {"spec": {"namespace": namespace}})
            status = json.loads(answer.body)["status"]
            assert [rule["verbs"] for rule in status["resourceRules"]] == verbs
            assert [rule["nonResourceURLs"] for rule in status["nonResourceRules"]] == [["/healthz"]]


async def test_whoami_shows_scope_and_actor(tmp_path: Path) -> None:
    async with upstream() as made, serving(configured(tmp_path, at(made), upstreams=kubernetes(at(made)))) as site:
        answer = await post(site, await narrowed(site, READ, "agent"), WHOAMI, {})
        user = json.loads(answer.body)["status"]["userInfo"]
        assert user["username"] == "alice"
        assert user["extra"] == {"ostiary.dev/actor": ["agent"], "ostiary.dev/scope": [READ]}
        answer = await ask(site, await narrowed(site, READ, "agent"), "/auth/whoami")
        said = json.loads(answer.body)
        assert (said["user"], said["scope"], said["actor"]) == ("alice", READ, "agent")
        assert said["expires_at"] < said["session_expires_at"]


async def test_a_review_of_the_token_does_not_pass_it_off_as_its_owners(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, READ)
            answer = await post(site, token, TOKEN_REVIEW, {"spec": {"token": token}})
            status = json.loads(answer.body)["status"]
            assert not status["authenticated"]
            assert "user" not in status
            assert "scope" in status["error"]
            # Of another token: that is a request like any other, and not in the scope.
            assert "scope" in refusal_of(await post(site, token, TOKEN_REVIEW, {"spec": {"token": site.token}}))


# --- our own API and /auth ---


async def test_the_gateways_own_api_is_beyond_the_scope_unless_it_is_named(tmp_path: Path) -> None:
    sessions = "/apis/ostiary.dev/v1/sessions"
    async with upstream() as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            reader = await narrowed(site, READ)
            assert "scope" in refusal_of(await ask(site, reader, sessions))
            assert "scope" in refusal_of(await post(site, reader, "/apis/ostiary.dev/v1/revocations", {}))
            auditor = await narrowed(site, "list sessions.ostiary.dev -A")
            assert (await ask(site, auditor, sessions)).status == 200
            bound = await narrowed(site, "list sessions.ostiary.dev -A --upstream k")
            assert "scope" in refusal_of(await ask(site, bound, sessions))


async def test_signing_out_with_it_ends_it_alone_and_never_the_owners_sessions(tmp_path: Path) -> None:
    async with upstream() as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, READ)
            everywhere = "everywhere=true"
            head = (f"Content-Length: {len(everywhere)}", "Content-Type: application/x-www-form-urlencoded")
            async with connected(site.port) as client:
                data = get("/auth/logout", f"Authorization: Bearer {token}", *head, method="POST")
                assert (await client.ask(data + everywhere.encode())).status == 403
            assert (await ask(site, token, PODS)).status == 200
            assert (await ask(site, token, "/auth/logout", "Content-Length: 0", method="POST")).status == 204
            assert (await ask(site, token, PODS)).status == 401
            assert (await site.ask(PODS)).status == 200


async def test_a_rule_of_the_policy_that_needs_more_is_checked_whole(tmp_path: Path) -> None:
    """An exec by GET needs ``create`` as well: a scope with ``get`` alone does not open a shell."""
    async with upstream() as made:
        config = configured(tmp_path, at(made), ImmediatePolicy(), upstreams=kubernetes(at(made)))
        async with serving(config) as site:
            token = await narrowed(site, "get pods/exec -n shop")
            upgrade = ("Connection: Upgrade", "Upgrade: websocket")
            answer = await ask(site, token, f"{PODS}/web-1/exec?command=sh", *upgrade)
            assert "needs this as well: create pods/exec" in refusal_of(answer)
