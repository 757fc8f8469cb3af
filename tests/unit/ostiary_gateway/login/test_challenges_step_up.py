"""/auth/step-up: what a session must prove, who may prove it, and what becomes of the session."""

from __future__ import annotations

import asyncio
import hashlib
import html
import re
from base64 import urlsafe_b64encode
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ostiary.core.scopes import narrow, parse_scope
from ostiary.model import Secret, UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.authorization.step_up import StepUpRules
from ostiary_gateway.config.step_up import StepUpRuleSettings
from ostiary_gateway.interfaces.identity import Identified, LoginRequest
from ostiary_gateway.interfaces.token_store import RevocationKind, Session
from ostiary_gateway.login import step_up as calls
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.proxy.step_up_gate import Demand, DemandState
from ostiary_gateway.sessions.authentication_context import AuthenticationContext, context_of, with_context
from ostiary_gateway.testing import FakeClock
from tests.support.http1 import turn
from tests.unit.ostiary_gateway.signing_in import (
    Browser,
    Gateway,
    Make,
    Refreshing,
    Says,
    body,
    events,
    hidden,
    text_of,
)

MFA = StepUpRuleSettings(name="mfa", resources=("*",), amr=("mfa",), max_age=timedelta(minutes=15))
GOLD = StepUpRuleSettings(name="gold", resources=("*",), acr=("gold",))
VERIFIER = "v" * 43
CHALLENGE = urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")


class Asks(Says):
    """Whoever visits is `user`, and has just signed in by `amr`."""

    steps_up = True

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock, self.user, self.acr = clock, UserInfo("alice"), ""
        self.amr: tuple[str, ...] = ("pwd",)

    async def handle_client(self, request: LoginRequest) -> Any:
        self.asked.append(("client", request))
        now = self.clock.now().replace(microsecond=0)
        return with_context(self.user, AuthenticationContext(self.acr, self.amr, now))


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "INTERVAL", 0.001)


@pytest.fixture
def provider(clock: FakeClock) -> Asks:
    return Asks(clock)


@pytest.fixture
def gateway(make: Make, provider: Asks) -> Gateway:
    return make(provider, step_up=StepUpRules([MFA, GOLD]))


async def signed_in(gateway: Gateway) -> dict[str, Any]:
    pair = body(await gateway.get("/auth"))
    assert pair["step_up"] is True, "programs are told that there are rules"
    return pair


async def ask(gateway: Gateway, pair: dict[str, Any], **fields: str) -> LoginAnswer:
    headers = (("authorization", f"Bearer {pair['token']}"),)
    return await gateway.get("/auth/step-up", method="POST", headers=headers, form=tuple(fields.items()))


async def session_of(gateway: Gateway, pair: dict[str, Any]) -> Session:
    session = await gateway.store.session(pair["session"])
    assert session is not None
    return session


def confirm_address(ticket: str) -> str:
    return f"/auth/cli?challenge={CHALLENGE}&port=5000&state=s&client=kubectl&step_up={ticket}"


async def confirm(browser: Browser, ticket: str) -> dict[str, str]:
    """Open the page, go on, and give what the browser brings back to the command line."""
    page = await browser.get(confirm_address(ticket))
    link = re.search(r'<a class="button" href="([^"]+)"', text_of(page))
    assert link is not None, text_of(page)
    back = await browser.get(html.unescape(link[1]))
    assert back.status == 303
    query = parse_qs(urlsplit(back.header("Location") or "").query)
    return {name: values[0] for name, values in query.items()}


async def redeem(gateway: Gateway, back: dict[str, str]) -> LoginAnswer:
    return await gateway.post("/auth/cli/token", code=back["code"], verifier=VERIFIER)


# --- the whole way ---


async def test_a_session_is_stepped_up_and_keeps_everything_else(gateway: Gateway, provider: Asks) -> None:
    pair = await signed_in(gateway)
    before = await session_of(gateway, pair)
    asked = body(await ask(gateway, pair, rule="mfa"))
    assert asked["requires"] == "a sign-in by mfa, in the last 15 minutes"
    provider.amr, provider.user = ("pwd", "mfa"), UserInfo("alice", groups=("developers",))
    done = await redeem(gateway, await confirm(Browser(gateway), asked["ticket"]))
    assert body(done) == {"stepped_up": True, "session": pair["session"], "user": "alice"}
    assert provider.asked[-1][1].required == MFA.required

    after = await session_of(gateway, pair)
    assert context_of(after.user).amr == ("pwd", "mfa")
    assert after.user.groups == before.user.groups, "a step-up brings no groups"
    assert (after.id, after.expires_at, after.sealed) == (before.id, before.expires_at, before.sealed)
    assert await gateway.tokens.find(pair["token"]) is not None, "the tokens stay"
    assert events(gateway)[-1] is LoginEventKind.STEPPED_UP
    assert body(await ask(gateway, pair, rule="mfa")) == {"needed": False}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_nobody_gets_past_the_page_without_reading_it(gateway: Gateway, provider: Asks, site: str) -> None:
    """Another site could lead the browser to the page, and then on from it, and an identity system may ask nothing."""
    pair = await signed_in(gateway)
    asked = body(await ask(gateway, pair, rule="mfa"))
    provider.amr, visits = ("pwd", "mfa"), len(provider.asked)
    browser = Browser(gateway)
    elsewhere = (("sec-fetch-site", site), ("sec-fetch-mode", "navigate"))
    page = await browser.get(confirm_address(asked["ticket"]), headers=elsewhere)
    assert page.status == 200, "a link in a chat may lead there"
    passed = await browser.get("/auth/idp1/start", headers=elsewhere)
    assert passed.status == 403
    assert len(provider.asked) == visits
    clicked = await browser.get("/auth/idp1/start", headers=(("sec-fetch-site", "same-origin"),))
    assert clicked.status == 303, "what was begun is not lost"


async def test_a_refresh_keeps_what_was_proved_last(make: Make, clock: FakeClock) -> None:
    """The identity system goes on telling of the sign-in that its refresh token came from."""

    class Remembers(Refreshing):
        steps_up = True
        stronger: UserInfo

        async def handle_client(self, request: LoginRequest) -> Any:
            return Identified(self.user, Secret("refresh")) if request.required is None else self.stronger

    provider = Remembers()
    first = AuthenticationContext(amr=("pwd",), auth_time=clock.now().replace(microsecond=0))
    provider.user = with_context(UserInfo("alice"), first)
    gateway = make(provider, step_up=StepUpRules([MFA]))
    pair = body(await gateway.get("/auth"))
    clock.advance(60)
    second = AuthenticationContext(amr=("mfa",), auth_time=clock.now().replace(microsecond=0))
    provider.stronger = with_context(UserInfo("alice"), second)
    ticket = body(await ask(gateway, pair, rule="*"))["ticket"]
    assert body(await redeem(gateway, await confirm(Browser(gateway), ticket)))["stepped_up"]

    renewed = body(await gateway.post("/auth/renew", renewal_token=pair["renewal_token"]))
    assert context_of((await session_of(gateway, renewed)).user) == second
    assert provider.used == ["refresh"], "it was asked"


async def test_a_request_that_waits_is_told_to_whoever_asks_with_its_session(gateway: Gateway) -> None:
    pair = await signed_in(gateway)
    waiting = asyncio.create_task(ask(gateway, pair, wait="20"))
    await turn(50)
    assert not waiting.done()
    demand = Demand("d1", pair["session"], "mfa", "delete pods web", "198.51.100.7")
    demands = gateway.login.step_up_demands
    await demands.put(demand)
    asked = body(await waiting)
    assert (asked["needed"], asked["rule"], asked["request"]) == (True, "mfa", "delete pods web")
    assert await demands.state(demand) is DemandState.SEEN
    page = text_of(await Browser(gateway).get(confirm_address(asked["ticket"])))
    assert "delete pods web" in page
    assert "198.51.100.7" in page


async def test_waiting_ends_without_a_demand(gateway: Gateway, clock: FakeClock) -> None:
    pair = await signed_in(gateway)
    waiting = asyncio.create_task(ask(gateway, pair, wait="9999"))
    await turn(50)
    clock.advance(calls.LONGEST_WAIT)
    assert body(await waiting) == {"needed": False}


async def test_who_refuses_ends_the_waiting(gateway: Gateway) -> None:
    pair = await signed_in(gateway)
    demand, demands = Demand("d1", pair["session"], "mfa", "delete", "::1"), gateway.login.step_up_demands
    await demands.put(demand)
    ticket = body(await ask(gateway, pair))["ticket"]
    assert (await ask(gateway, pair, ticket=ticket, refused="true")).status == 204
    assert await demands.state(demand) is DemandState.REFUSED
    assert body(await ask(gateway, pair)) == {"needed": False}
    spent = (await Browser(gateway).get(confirm_address(ticket))).header("Location") or ""
    assert "error_description=this+step-up+has+expired" in spent


async def test_nobody_refuses_for_another(gateway: Gateway, provider: Asks) -> None:
    pair = await signed_in(gateway)
    demand, demands = Demand("d1", pair["session"], "mfa", "delete", "::1"), gateway.login.step_up_demands
    await demands.put(demand)
    ticket = body(await ask(gateway, pair))["ticket"]
    provider.user = UserInfo("mallory")
    await ask(gateway, await signed_in(gateway), ticket=ticket, refused="true")
    assert await demands.state(demand) is DemandState.SEEN


# --- who may not ---


async def test_programs_that_wait_are_bounded(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.login._step_up_calls._places, "_per_user", 1)
    pair = await signed_in(gateway)
    waiting = asyncio.create_task(ask(gateway, pair, wait="20"))
    await turn(50)
    assert (await ask(gateway, pair, wait="20")).status == 429
    waiting.cancel()
    await turn(5)
    assert (await ask(gateway, pair)).status == 200


async def test_nobody_fills_the_store_with_tickets(gateway: Gateway, clock: FakeClock) -> None:
    """Of records the store keeps the latest so many: everybody's sign-ins that are under way are among them."""
    pair = await signed_in(gateway)
    statuses = [(await ask(gateway, pair, rule="mfa")).status for _ in range(int(calls.TICKETS_PER_MINUTE) + 5)]
    assert statuses.count(200) == calls.TICKETS_PER_MINUTE
    assert statuses[-5:] == [429] * 5
    clock.advance(seconds=60 / calls.TICKETS_PER_MINUTE)
    assert (await ask(gateway, pair, rule="mfa")).status == 200


async def test_tokens_of_programs_are_told_nothing(gateway: Gateway) -> None:
    pair = await signed_in(gateway)
    session = await session_of(gateway, pair)
    delegation = narrow(None, parse_scope("get pods -A"), "agent").encode()
    narrowed = await gateway.tokens.mint(session, lifetime=timedelta(minutes=5), delegation=delegation)
    api = await gateway.tokens.issue_token(session.user, provider="idp1", name="ci", lifetime=timedelta(hours=1))
    for token in (narrowed.token, api.token):
        assert (await ask(gateway, {"token": token.reveal()}, rule="mfa")).status == 403
    assert (await ask(gateway, {"token": pair["renewal_token"]}, rule="mfa")).status == 401
    assert (await gateway.post("/auth/step-up", rule="mfa")).status == 401
    assert (await gateway.get("/auth/step-up")).status == 405


async def test_another_user_cannot_prove_it(gateway: Gateway, provider: Asks) -> None:
    """Somebody with a stolen token sends its owner's colleague a link, or signs in as themselves."""
    pair = await signed_in(gateway)
    ticket = body(await ask(gateway, pair, rule="mfa"))["ticket"]
    provider.user, provider.amr = UserInfo("mallory"), ("mfa",)
    back = await confirm(Browser(gateway), ticket)
    assert (back["error"], back["request_id"]) == ("login-refused", "request-1")
    assert back["error_description"] == "you signed in as mallory, and the command is run by alice"
    assert context_of((await session_of(gateway, pair)).user).amr == ("pwd",)


async def test_what_is_not_enough_is_refused_once_with_a_plain_sentence(gateway: Gateway, provider: Asks) -> None:
    pair = await signed_in(gateway)
    ticket = body(await ask(gateway, pair, rule="mfa"))["ticket"]
    back = await confirm(Browser(gateway), ticket)
    assert back["error"] == "login-refused"
    assert len([each for each, _ in provider.asked if each == "client"]) == 2, "the sign-in, and the step-up"
    refused = [event for event in gateway.events if event.kind is LoginEventKind.REFUSED]
    assert "did not confirm the sign-in that this needs" in refused[-1].reason
    assert "amr pwd" in refused[-1].reason


async def test_a_failed_step_up_says_why_on_its_last_page_and_to_the_command_line(gateway: Gateway) -> None:
    """The person is signed in, and stays so."""
    pair = await signed_in(gateway)
    browser = Browser(gateway)
    back = await confirm(browser, body(await ask(gateway, pair, rule="mfa"))["ticket"])
    assert back["error_description"] == "your identity provider did not confirm the sign-in that this needs"
    page = text_of(await browser.get(f"/auth/cli/ended?error=login-refused&failure={back['failure']}"))
    assert "The sign-in was not confirmed" in page
    assert "Your identity provider did not confirm the sign-in that this needs." in page
    assert "You are still signed in." in page
    assert "request-1" in page
    assert "You are not signed in" not in page
    assert await gateway.tokens.find(pair["token"]) is not None


async def test_a_step_up_that_has_expired_is_told_to_the_command_line_too(gateway: Gateway) -> None:
    """It would wait for minutes."""
    answer = await Browser(gateway).get(confirm_address("x" * 43))
    query = parse_qs(urlsplit(answer.header("Location") or "").query)
    assert query["error_description"] == ["this step-up has expired: start again"]


async def test_a_session_that_ended_meanwhile_stays_so(gateway: Gateway, provider: Asks) -> None:
    pair = await signed_in(gateway)
    ticket = body(await ask(gateway, pair, rule="mfa"))["ticket"]
    provider.amr = ("mfa",)
    back = await confirm(Browser(gateway), ticket)
    await gateway.tokens.revoke(RevocationKind.SESSION, pair["session"])
    assert (await redeem(gateway, back)).status == 400
    assert await gateway.store.session(pair["session"]) is None


async def test_a_code_of_a_step_up_gives_no_tokens_and_is_good_once(gateway: Gateway, provider: Asks) -> None:
    pair = await signed_in(gateway)
    ticket = body(await ask(gateway, pair, rule="mfa"))["ticket"]
    provider.amr = ("mfa",)
    back = await confirm(Browser(gateway), ticket)
    assert b"ost_" not in (await redeem(gateway, back)).body
    assert (await redeem(gateway, back)).status == 400


async def test_an_unknown_rule_and_an_unknown_ticket_lead_nowhere(gateway: Gateway) -> None:
    pair = await signed_in(gateway)
    unknown = await ask(gateway, pair, rule="gone")
    assert (unknown.status, body(unknown)["message"]) == (400, "there is no step-up rule of this name")


async def test_the_first_rule_that_is_not_met_is_asked_for(gateway: Gateway, provider: Asks) -> None:
    provider.amr = ("mfa",)
    pair = await signed_in(gateway)
    assert body(await ask(gateway, pair, rule="*"))["rule"] == "gold"
    provider.acr = "gold"
    assert body(await ask(gateway, await signed_in(gateway), rule="*")) == {"needed": False}


# --- without a browser on the machine ---


async def test_a_device_code_steps_up_the_session(gateway: Gateway, provider: Asks, clock: FakeClock) -> None:
    pair = await signed_in(gateway)
    ticket = body(await ask(gateway, pair, rule="mfa"))["ticket"]
    device = body(await gateway.post("/auth/device", client="ostiary", step_up=ticket))
    browser = Browser(gateway)
    await browser.sign_in()
    provider.amr = ("mfa",)
    # The person is signed in, and not strongly enough: they sign in anew first.
    page = await browser.follow(await browser.get(f"/auth/device?code={device['user_code']}"))
    assert provider.asked[-1][1].required == MFA.required
    form = {"form_token": hidden(page, "form_token"), "code": hidden(page, "code"), "decision": "approve"}
    assert "the command continues" in text_of(await browser.post("/auth/device", form))
    clock.advance(2)
    done = await gateway.post("/auth/device/token", device_code=device["device_code"])
    assert body(done) == {"stepped_up": True, "session": pair["session"], "user": "alice"}
    assert context_of((await session_of(gateway, pair)).user).amr == ("mfa",)


async def test_whoever_confirms_a_device_reads_what_waits(gateway: Gateway, provider: Asks) -> None:
    """A thief of a token could ask its owner for a code as well; and nothing is signed in by it."""
    provider.amr = ("pwd",)
    pair = await signed_in(gateway)
    waiting = Demand("d1", pair["session"], "mfa", "delete pods web in the namespace prod", "192.0.2.7")
    await gateway.login.step_up_demands.put(waiting)
    ticket = body(await ask(gateway, pair))["ticket"]
    device = body(await gateway.post("/auth/device", client="ostiary", step_up=ticket))
    provider.amr = ("mfa",)
    browser = Browser(gateway)
    await browser.sign_in()
    page = text_of(await browser.get(f"/auth/device?code={device['user_code']}"))
    assert "delete pods web in the namespace prod" in page
    assert "192.0.2.7" in page
    assert "Confirm that it is you" in page
    assert "with all your permissions" not in page
    # Of one that has expired nothing can be read any more.
    assert await gateway.login._step_ups.tickets.take(ticket) is not None
    assert (await browser.get(f"/auth/device?code={device['user_code']}")).status == 404


async def test_another_person_cannot_confirm_a_device(gateway: Gateway, provider: Asks, clock: FakeClock) -> None:
    pair = await signed_in(gateway)
    ticket = body(await ask(gateway, pair, rule="mfa"))["ticket"]
    device = body(await gateway.post("/auth/device", client="ostiary", step_up=ticket))
    provider.user, provider.amr = UserInfo("mallory"), ("mfa",)
    browser = Browser(gateway)
    await browser.sign_in()
    page = await browser.get(f"/auth/device?code={device['user_code']}")
    form = {"form_token": hidden(page, "form_token"), "code": hidden(page, "code"), "decision": "approve"}
    assert (await browser.post("/auth/device", form)).status == 403
    clock.advance(2)
    denied = await gateway.post("/auth/device/token", device_code=device["device_code"])
    assert body(denied)["error"] == "access_denied"
    assert context_of((await session_of(gateway, pair)).user).amr == ("pwd",)
