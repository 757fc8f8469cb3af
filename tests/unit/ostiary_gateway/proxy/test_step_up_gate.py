"""A request that falls under a step-up rule: it waits, goes on, or is refused; and it takes no more than its place."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path

import pytest

from ostiary.core.scopes import narrow, parse_scope
from ostiary.model import UserInfo
from ostiary_gateway.interfaces.token_store import RevocationKind
from ostiary_gateway.login import step_up as calls
from ostiary_gateway.proxy import step_up_gate as gate
from ostiary_gateway.proxy.step_up_gate import Demand, DemandState
from tests.support.http1 import Message, Upstreamed, connected, get, turn, until, upstream
from tests.unit.ostiary_gateway.proxy.gateways import ALICE, DENY, Gateway, ImmediatePolicy, at, serving
from tests.unit.ostiary_gateway.proxy.people import (
    PODS,
    RULE,
    Asks,
    CannotAsk,
    beside,
    cookie_of,
    demanded,
    held,
    link_of,
    location_of,
    message_of,
    post_form,
    prove,
    session_of,
    set_state,
    visit,
    with_rules,
)

WEB = f"{PODS}/web"


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "INTERVAL", 0.001)
    monkeypatch.setattr(calls, "INTERVAL", 0.001)


async def delete(site: Gateway, token: str = "", *lines: str) -> Message:
    """A DELETE on a connection of its own."""
    async with connected(site.port) as client:
        return await client.ask(get(WEB, f"Authorization: Bearer {token or site.token}", *lines, method="DELETE"))


def deleting(site: Gateway) -> asyncio.Task[Message]:
    return asyncio.create_task(delete(site))


# --- held ---


async def test_a_request_waits_until_the_person_has_proved_it_and_goes_on_with_its_token(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made))) as site:
        assert (await site.ask(PODS)).status == 200, "what falls under no rule is not touched"
        waiting = deleting(site)
        demand = await demanded(site)
        assert (demand.rule, demand.request) == ("delete-in-prod", "delete pods web in the namespace prod")
        assert (len(made.requests), site.seats) == (1, 0), "it was not sent on, and takes nobody's seat"
        await prove(site, "pwd", "mfa")
        assert (await waiting).status == 200
        assert (len(made.requests), held(site)) == (2, 0)
        (event,) = [event for event in await site.events() if event["verb"] == "delete"]
        assert event["annotations"]["audit.ostiary.dev/step-up"] == "delete-in-prod"
        assert site.count("step_ups_total", "delete-in-prod", "met") == 1
        # And so does the next one, without waiting.
        assert (await delete(site)).status == 200
        assert site.count("step_ups_total", "delete-in-prod", "held") == 1


async def test_it_is_proved_again_when_the_time_is_over(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made), hold=timedelta(0))) as site:
        await prove(site, "mfa", ago=timedelta(minutes=14, seconds=50))
        assert (await delete(site)).status == 200
        assert (await delete(site)).status == 200, "by the plan of the first one"
        site.clock.advance(11)
        assert (await delete(site)).status == 401
        assert len(made.requests) == 2


async def test_without_a_program_that_asks_it_is_refused_after_seconds(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made))) as site:
        waiting = deleting(site)
        await demanded(site)
        site.clock.advance(gate.SEEN_WITHIN)
        answer = await waiting
    assert answer.status == 401
    challenge = (answer.one("WWW-Authenticate") or b"").decode()
    assert 'error="insufficient_user_authentication"' in challenge
    assert challenge.endswith('max_age="900"')
    assert message_of(answer).startswith(
        "step-up required by the rule delete-in-prod: a sign-in by mfa, in the last 15 minutes"
    )
    assert made.requests == []


async def test_while_the_person_is_asked_it_waits_for_as_long_as_configured(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made), hold=timedelta(minutes=2))) as site:
        waiting = deleting(site)
        await set_state(site, DemandState.SEEN)
        site.clock.advance(119)
        await turn(200)
        assert not waiting.done()
        site.clock.advance(1)
        assert (await waiting).status == 401


async def test_a_flood_of_requests_does_not_become_one_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked at before any limit of their user's, and each would be read and written there."""
    async with upstream() as made, serving(with_rules(tmp_path, at(made), hold=timedelta(0))) as site:
        demands = site.worker.app.programs.login.step_up_demands
        put, written = demands.put, []

        async def noting(demand: Demand) -> None:
            written.append(demand)
            await put(demand)

        monkeypatch.setattr(demands, "put", noting)
        most = int(gate.LOOKS_AT_ONCE)
        statuses = [(await delete(site)).status for _ in range(most + 20)]
        assert set(statuses) == {401}
        assert len(written) == most
        # Whoever has proved it goes on as soon as there may be another look.
        await prove(site, "mfa")
        site.clock.advance(1)
        assert (await delete(site)).status == 200
    assert len(made.requests) == 1


async def test_what_the_person_refuses_does_not_wait_any_longer(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made))) as site:
        waiting = deleting(site)
        await set_state(site, DemandState.REFUSED)
        answer = await waiting
        assert answer.status == 401
        ended = site.ended(answer)
        assert ended is not None
        assert ended.reason.startswith("step-up required by the rule delete-in-prod")
    assert made.requests == []


async def test_proving_something_else_is_not_enough(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made))) as site:
        waiting = deleting(site)
        first = await demanded(site)
        await prove(site, "pwd")
        while (await demanded(site)).id == first.id:
            await turn()
        assert (waiting.done(), made.requests) == (False, [])
        await prove(site, "mfa")
        assert (await waiting).status == 200


# --- bounds ---


async def test_a_user_has_only_so_many_places_and_others_have_theirs(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made), held_per_user=1)) as site:
        waiting = deleting(site)
        await demanded(site)
        assert (await delete(site)).status == 401, "at once"
        bob = await site.worker.app.shared.tokens.issue(UserInfo("bob"), provider="me")
        others = asyncio.create_task(delete(site, bob.token.reveal()))
        await until(lambda: held(site) == 2)
        await prove(site, "mfa")
        assert (await waiting).status == 200
        await until(lambda: held(site) == 1)
        site.clock.advance(gate.SEEN_WITHIN)
        assert (await others).status == 401


async def test_there_are_only_so_many_places_in_all(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made), held_in_all=1)) as site:
        waiting = deleting(site)
        await demanded(site)
        bob = await site.worker.app.shared.tokens.issue(UserInfo("bob"), provider="me")
        assert (await delete(site, bob.token.reveal())).status == 401
        await set_state(site, DemandState.REFUSED)
        assert (await waiting).status == 401


async def test_a_client_that_leaves_frees_its_place_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "INTERVAL", 3600.0)
    async with upstream() as made, serving(with_rules(tmp_path, at(made))) as site:
        async with connected(site.port) as client:
            client.send(get(WEB, f"Authorization: Bearer {site.token}", method="DELETE"))
            await until(lambda: held(site) == 1)
        await until(lambda: held(site) == 0)
        assert made.requests == []


async def test_a_session_that_is_revoked_meanwhile_proves_nothing_any_more(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made))) as site:
        waiting = deleting(site)
        await demanded(site)
        await site.worker.app.shared.tokens.revoke(RevocationKind.USER, "alice")
        answer = await waiting
        assert (answer.status, message_of(answer)) == (401, "Unauthorized")
        assert (made.requests, held(site)) == ([], 0)


async def test_what_the_policy_takes_away_meanwhile_is_refused(tmp_path: Path) -> None:
    policy = ImmediatePolicy()
    async with upstream() as made, serving(with_rules(tmp_path, at(made), policy)) as site:
        waiting = deleting(site)
        await demanded(site)
        policy.rule, policy.revision = DENY, 2
        await prove(site, "mfa")
        assert (await waiting).status == 403
        assert made.requests == []


async def test_a_store_that_is_away_is_no_refusal(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made))) as site:
        waiting = deleting(site)
        await demanded(site)
        site.store.down = True
        assert (await waiting).status == 503
        assert held(site) == 0


async def test_the_body_of_a_held_request_arrives_whole(tmp_path: Path) -> None:
    """S1: kubectl sends the options of a deletion in its body."""
    async with upstream() as made, serving(with_rules(tmp_path, at(made))) as site:
        async with connected(site.port) as client:
            body = b'{"propagationPolicy":"Background"}'
            lines = (f"Authorization: Bearer {site.token}", f"Content-Length: {len(body)}")
            client.send(get(WEB, *lines, method="DELETE") + body)
            await demanded(site)
            await prove(site, "mfa")
            assert (await client.head()).status == 200
        (request,) = made.requests
        assert request.body == body


async def test_a_terminal_waits_as_well(tmp_path: Path) -> None:
    """client-go repeats no request that switches protocols: it must be held, or ``kubectl exec`` fails."""

    async def terminal(connection: Upstreamed) -> None:
        connection.upstream.requests.append(await connection.head())
        connection.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n$ ")
        await connection.rest()

    shells = replace(RULE, verbs=("create",), resources=("pods/exec",))
    async with (
        upstream(terminal) as made,
        serving(with_rules(tmp_path, at(made), rules=(shells,))) as site,
        connected(site.port) as client,
    ):
        lines = ("Connection: Upgrade", "Upgrade: websocket", f"Authorization: Bearer {site.token}")
        client.send(get(f"{WEB}/exec?command=sh", *lines))
        assert (await demanded(site)).request == "get pods/exec web in the namespace prod"
        assert made.requests == []
        await prove(site, "mfa")
        assert (await client.head()).status == 101
        await until(lambda: site.streams == 1)


# --- nobody is there, or nobody can ask ---


async def test_programs_are_told_that_they_cannot(tmp_path: Path) -> None:
    """Also if the session of their owner has just proved it: a program is no person."""
    async with upstream() as made, serving(with_rules(tmp_path, at(made))) as site:
        await prove(site, "mfa")
        tokens, session = site.worker.app.shared.tokens, await session_of(site)
        delegation = narrow(None, parse_scope("delete pods -n prod"), "agent").encode()
        narrowed = await tokens.mint(session, lifetime=timedelta(minutes=10), delegation=delegation)
        api = await tokens.issue_token(session.user, provider="me", name="ci", lifetime=timedelta(hours=1))
        assert api.session.user == ALICE, "of how its owner signed in, an API token says nothing"
        for token in (narrowed.token.reveal(), api.token.reveal()):
            answer = await delete(site, token)
            assert answer.status == 403
            assert message_of(answer) == (
                'pods "web" is forbidden: the rule delete-in-prod requires a sign-in by mfa, in the last 15 minutes,'
                " and programs cannot prove that a person is there"
            )
        assert made.requests == []


async def test_a_provider_that_cannot_ask_for_more_is_told(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made), provider=CannotAsk())) as site:
        answer = await delete(site)
        assert answer.status == 403
        assert message_of(answer).endswith("your identity provider cannot ask you for it")


async def test_nobody_learns_of_a_rule_for_what_they_may_not_do(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made), ImmediatePolicy(DENY))) as site:
        answer = await delete(site)
        assert answer.status == 403
        assert "delete-in-prod" not in str(answer.headers) + answer.body.decode()


async def test_who_acts_for_another_must_have_proved_it_themselves(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made), hold=timedelta(0))) as site:
        strong = "Impersonate-Extra-Ostiary.dev%2Famr: mfa"
        now = site.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ")
        claims = ("Impersonate-User: bob", strong, f"Impersonate-Extra-Ostiary.dev%2Fauth-Time: {now}")
        assert (await delete(site, "", *claims)).status == 401
        await prove(site, "mfa")
        assert (await delete(site, "", "Impersonate-User: bob")).status == 200


# --- several workers and replicas ---


async def test_what_was_proved_elsewhere_counts_here_at_once(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made), hold=timedelta(0))) as site:
        assert (await delete(site)).status == 401, "the token and its plan are in memory now"
        await prove(site, "mfa")
        assert (await delete(site)).status == 200


async def test_a_request_is_held_at_one_replica_and_the_person_comes_to_another(tmp_path: Path) -> None:
    provider = Asks()
    async with upstream() as made:
        config = with_rules(tmp_path, at(made), provider=provider)
        async with serving(config) as site, beside(site, config) as other:
            provider.clock = site.clock
            waiting = deleting(site)
            await demanded(site)
            answer = await post_form(other, "/auth/step-up", {"wait": "5"}, site.token)
            asked = json.loads(answer.body)
            assert (asked["needed"], asked["rule"]) == (True, "delete-in-prod")

            verifier = "v" * 43
            challenge = urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
            query = f"challenge={challenge}&port=5000&state=s&client=kubectl&step_up={asked['ticket']}"
            page = await visit(other, f"/auth/cli?{query}")
            assert b"delete pods web in the namespace prod" in page.body
            assert provider.required == [], "nothing happens before the person agrees"
            back = location_of(await visit(other, link_of(page), cookie_of(page)))
            assert provider.required == [RULE.required]
            done = await post_form(other, "/auth/cli/token", {"code": back["code"], "verifier": verifier})
            session = await session_of(site)
            assert json.loads(done.body) == {"stepped_up": True, "session": session.id, "user": "alice"}
            assert (await waiting).status == 200
            assert (len(made.requests), held(site)) == (1, 0)
            nothing = await post_form(other, "/auth/step-up", {}, site.token)
            assert json.loads(nothing.body) == {"needed": False}


async def test_a_worker_that_ends_sends_what_waits_to_another(tmp_path: Path) -> None:
    async with upstream() as made, serving(with_rules(tmp_path, at(made))) as site, connected(site.port) as client:
        client.send(get(WEB, f"Authorization: Bearer {site.token}", method="DELETE"))
        await demanded(site)
        site.worker._announce_end()
        answer = await client.head()
        assert (answer.status, answer.one("Retry-After")) == (429, b"1")
