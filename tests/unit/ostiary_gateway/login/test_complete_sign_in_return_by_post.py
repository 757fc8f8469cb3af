"""Browsers that come back with a form of the identity system's page, and forms that nobody should take."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.interfaces.identity import Identified, LoginRequest, PostedForm, PublishedDocument, Redirect
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import URL, Browser, Gateway, Make, Says, events, hidden, make

__all__ = ["make"]

# What a browser says of a form that another site's page has sent.
FOREIGN = (("origin", "https://idp.example"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"))


class FormPost(Says):
    """Sends people to a page that answers with a form; what the form asserts is who it is."""

    returns_by_post = True
    name = "RelayState"

    def __init__(self) -> None:
        super().__init__()
        self.begun = 0

    async def handle_client(self, request: LoginRequest) -> Any:
        self.begun += 1
        state = f"state-{self.begun}"
        url = f"https://idp.example/sso?SAMLRequest=x&{self.name}={state}"
        return Redirect(url, remember=(("id", f"request-{self.begun}"),), state_name=self.name)

    async def handle_provider(self, request: LoginRequest) -> Any:
        self.asked.append(("provider", request))
        remembered = dict(request.remembered)
        if request.method != "POST" or "id" not in remembered:
            raise LoginRefused("start again", cause="nothing is remembered of this login")
        return UserInfo(dict(request.form)["SAMLResponse"])


async def begin(browser: Browser) -> str:
    """The state with which the browser is sent away."""
    away = await browser.get("/auth/idp1")
    return dict(parse_qsl(urlsplit(away.header("Location") or "").query))["RelayState"]


async def post_from_elsewhere(gateway: Gateway, path: str = "/auth/provider", **form: str) -> LoginAnswer:
    """A form of another site's page: the browser leaves out every cookie that is SameSite=Lax."""
    stranger = Browser(gateway)
    return await stranger.post(path, form, headers=FOREIGN)


async def test_a_person_comes_back_with_a_form_and_is_signed_in(make: Make) -> None:
    provider = FormPost()
    gateway = make(provider)
    browser = Browser(gateway)
    state = await begin(browser)
    parked = await post_from_elsewhere(gateway, SAMLResponse="alice", RelayState=state)
    assert parked.status == 303
    assert provider.asked == [], "nobody has been asked yet"
    signed = await browser.get(parked.header("Location") or "")
    assert signed.status == 303
    assert signed.header("Location") == "/auth/token"
    ((_, request),) = provider.asked
    assert (request.method, dict(request.form)) == ("POST", {"SAMLResponse": "alice", "RelayState": state})
    assert request.query == ()


@pytest.mark.parametrize("several", [False, True])
async def test_a_ticket_is_good_once_and_at_its_own_provider(make: Make, several: bool) -> None:
    gateway = make(FormPost(), *([FormPost()] if several else []))
    browser = Browser(gateway)
    path = "/auth/idp1/provider" if several else "/auth/provider"
    parked = await post_from_elsewhere(gateway, path, SAMLResponse="alice", RelayState=await begin(browser))
    ticket = parked.header("Location") or ""
    if several:
        assert (await browser.get(ticket.replace("idp1", "idp2"))).status == 403
        parked = await post_from_elsewhere(gateway, path, SAMLResponse="alice", RelayState=await begin(browser))
        ticket = parked.header("Location") or ""
    assert (await browser.get(ticket)).status == 303
    await begin(browser)
    assert (await browser.get(ticket)).status == 403


async def test_an_attackers_form_signs_nobody_in(make: Make) -> None:
    """Neither in a browser that began nothing, nor in one whose own login is under way."""
    gateway = make(FormPost())
    attacker = Browser(gateway)
    state = await begin(attacker)
    for victim in (Browser(gateway), Browser(gateway)):
        parked = await post_from_elsewhere(gateway, SAMLResponse="mallory", RelayState=state)
        refused = await victim.get(parked.header("Location") or "")
        assert refused.status == 403
        assert LoginEventKind.ISSUED not in events(gateway)
        await begin(victim)
    assert await gateway.tokens_kept() == 0


@pytest.mark.parametrize("form", [{}, {"RelayState": "state-2"}, {"RelayState": ""}, {"state": "state-1"}], ids=str)
async def test_a_form_without_the_state_of_this_login_is_refused(make: Make, form: dict[str, str]) -> None:
    gateway = make(FormPost())
    browser = Browser(gateway)
    await begin(browser)
    parked = await post_from_elsewhere(gateway, SAMLResponse="alice", **form)
    assert (await browser.get(parked.header("Location") or "")).status == 403
    assert await gateway.tokens_kept() == 0


async def test_a_form_is_kept_for_a_moment_only(make: Make, clock: FakeClock) -> None:
    gateway = make(FormPost())
    browser = Browser(gateway)
    parked = await post_from_elsewhere(gateway, SAMLResponse="alice", RelayState=await begin(browser))
    clock.advance(minutes=1)
    assert (await browser.get(parked.header("Location") or "")).status == 403


async def test_forms_of_other_sites_are_taken_nowhere_else(make: Make) -> None:
    class Plain(FormPost):
        returns_by_post = False

    declared, plain = make(FormPost()), make(Plain())
    for path in ("/auth", "/auth/token", "/auth/groups/provider", "/auth/renew", "/auth/logout", "/auth/cli/token"):
        assert (await post_from_elsewhere(declared, path, x="1")).status == 403
    assert (await post_from_elsewhere(plain, "/auth/provider", x="1")).status == 403


async def test_who_posts_without_end_is_told_to_wait(make: Make) -> None:
    gateway = make(FormPost(), starts_per_minute=3)
    answers = [(await post_from_elsewhere(gateway, SAMLResponse="x")).status for _ in range(5)]
    assert answers == [303, 303, 303, 429, 429]


class Pushed(FormPost):
    """Its state went to the identity system beforehand, and is not in the address."""

    state: Any = "state-1"

    async def handle_client(self, request: LoginRequest) -> Any:
        url = "https://idp.example/sso?request_uri=urn:x"
        return Redirect(url, remember=(("id", "request-1"),), state_name="RelayState", state=self.state)


@pytest.mark.parametrize(("state", "status"), [("state-1", 303), ("another", 403), ("", 403)])
async def test_a_state_that_is_not_in_the_address_is_compared_all_the_same(make: Make, state: str, status: int) -> None:
    gateway = make(Pushed())
    browser = Browser(gateway)
    away = await browser.get("/auth")
    assert "state-1" not in (away.header("Location") or "")
    parked = await post_from_elsewhere(gateway, SAMLResponse="alice", RelayState=state)
    assert (await browser.get(parked.header("Location") or "")).status == status


async def test_a_state_that_is_no_text_breaks_the_contract(make: Make) -> None:
    class Odd(Pushed):
        state = 7

    gateway = make(Odd())
    assert (await Browser(gateway).get("/auth")).status == 500
    assert events(gateway) == [LoginEventKind.CONTRACT_BROKEN]


async def test_a_provider_whose_redirect_has_no_state_breaks_its_contract(make: Make) -> None:
    class Stateless(FormPost):
        async def handle_client(self, request: LoginRequest) -> Any:
            return Redirect("https://idp.example/sso?SAMLRequest=x", state_name="RelayState")

    gateway = make(Stateless())
    assert (await Browser(gateway).get("/auth")).status == 500
    assert events(gateway) == [LoginEventKind.CONTRACT_BROKEN]


class ByForm(FormPost):
    """The way there is a form, too; what proves the identity is good once, and there is a document about it."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.token_id = "assertion-1"

    async def handle_client(self, request: LoginRequest) -> Any:
        self.begun += 1
        fields = (("SAMLRequest", "x"), (self.name, f"state-{self.begun}"))
        return PostedForm("https://idp.example/sso", fields, (("id", "request"),), self.name)

    async def handle_provider(self, request: LoginRequest) -> Any:
        user = await super().handle_provider(request)
        return Identified(user, token_id=self.token_id, once_until=self.clock.now() + timedelta(minutes=5))

    async def publish_metadata(self, request: LoginRequest) -> Any:
        return PublishedDocument(f"<x>{request.callback_url}</x>".encode(), "application/samlmetadata+xml")


async def sign_in_by_form(gateway: Gateway) -> LoginAnswer:
    browser = Browser(gateway)
    page = await browser.get("/auth/idp1")
    parked = await post_from_elsewhere(gateway, SAMLResponse="alice", RelayState=hidden(page, "RelayState"))
    return await browser.get(parked.header("Location") or "")


async def test_the_way_there_may_be_a_form(make: Make, clock: FakeClock) -> None:
    gateway = make(ByForm(clock))
    page = await Browser(gateway).get("/auth/idp1")
    assert page.status == 200
    assert "form-action 'self' https://idp.example" in (page.header("Content-Security-Policy") or "")
    assert hidden(page, "SAMLRequest") == "x"
    assert (await sign_in_by_form(gateway)).header("Location") == "/auth/token"


async def test_what_proves_an_identity_may_be_good_once(make: Make, clock: FakeClock) -> None:
    """In another login that is under way, with whatever browser: for as long as the provider itself would accept it."""
    provider = ByForm(clock)
    gateway = make(provider)
    assert (await sign_in_by_form(gateway)).status == 303
    again = await sign_in_by_form(gateway)
    assert again.status == 403
    assert LoginEventKind.REFUSED in events(gateway)
    provider.token_id = "assertion-2"
    assert (await sign_in_by_form(gateway)).status == 303
    provider.token_id = "assertion-1"
    clock.advance(minutes=5)
    assert (await sign_in_by_form(gateway)).status == 303


async def test_a_proof_that_is_good_once_has_a_name(make: Make, clock: FakeClock) -> None:
    provider = ByForm(clock)
    provider.token_id = ""
    gateway = make(provider)
    assert (await sign_in_by_form(gateway)).status == 500
    assert await gateway.tokens_kept() == 0


async def test_a_provider_may_publish_a_document(make: Make, clock: FakeClock) -> None:
    gateway = make(ByForm(clock))
    answer = await gateway.get("/auth/idp1/metadata")
    assert (answer.status, answer.header("Content-Type")) == (200, "application/samlmetadata+xml")
    assert answer.body == f"<x>{URL}/auth/idp1/provider</x>".encode()
    assert (await gateway.get("/auth/metadata")).body == answer.body
    assert (await gateway.get("/auth/idp1/metadata", method="PUT")).status == 405
    assert (await make(FormPost()).get("/auth/idp1/metadata")).status == 404
