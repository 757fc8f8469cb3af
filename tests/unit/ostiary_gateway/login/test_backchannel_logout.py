"""An identity system ends a sign-in: everything that came from it ends, nothing else does, and nothing is lost."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import Secret, UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.interfaces.identity import Identified, LoginRequest, Logout, PostedForm, Redirect, SignOut
from ostiary_gateway.interfaces.token_store import Found, Revocation, RevocationKind
from ostiary_gateway.login.backchannel_logout import DOUBTFUL_PER_MINUTE
from ostiary_gateway.login.responses import LoginAnswer
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import (
    AWAY,
    URL,
    Browser,
    Gateway,
    Make,
    Says,
    SaysGroups,
    body,
    cookie_of,
    make,
    members,
    text_of,
)

__all__ = ["make"]

HINT = "hint-canary"


class Leaving(Says):
    """An identity provider whose identity system ends sign-ins, as the test says."""

    def __init__(self, *, session_id: str = "sid-1", subject: str = "sub-1", hint: bool = False) -> None:
        super().__init__()
        self.logout: Any = Logout(session_id="sid-1")
        self.page: Any = None
        self.signed_out: list[SignOut] = []
        self.names(session_id, subject, hint=hint)

    def names(self, session_id: str, subject: str = "sub-1", *, user: str = "alice", hint: bool = False) -> None:
        self.client = Identified(
            UserInfo(user),
            session_id=session_id,
            subject=subject,
            sign_out_hint=Secret(HINT) if hint else None,
        )
        self.provider = self.client

    async def handle_logout(self, request: LoginRequest) -> Any:
        self.asked.append(("logout", request))
        if isinstance(self.logout, Exception):
            raise self.logout
        return self.logout

    async def sign_out(self, signed_out: SignOut) -> Any:
        self.signed_out.append(signed_out)
        if isinstance(self.page, Exception):
            raise self.page
        return self.page


async def token(gateway: Gateway, path: str = "/auth") -> str:
    """Sign in as a program does; returns the access token."""
    answer = await gateway.get(path)
    assert answer.status == 200, answer
    return str(body(answer)["token"])


async def is_good(gateway: Gateway, access_token: str) -> bool:
    return await gateway.tokens.find(access_token) is not None


async def end(gateway: Gateway, name: str = "idp1") -> LoginAnswer:
    return await gateway.post(f"/auth/{name}/logout")


# --- what ends ---


async def test_everything_that_came_from_the_sign_in_ends(make: Make) -> None:
    provider = Leaving()
    gateway = make(provider)
    browser = Browser(gateway)
    await browser.sign_in()
    form = {"form_token": await browser.form_token()}
    shown = text_of(await browser.post("/auth/token", form))
    narrower = {**form, "scope": "get,list pods -n shop", "lifetime": "600"}
    narrowed = text_of(await browser.post("/auth/token/narrow", narrower))
    device = body(await gateway.post("/auth/device", client="a box"))
    await browser.post("/auth/device", {**form, "code": device["user_code"], "decision": "approve"})
    approved = body(await gateway.post("/auth/device/token", device_code=device["device_code"]))
    program = await token(gateway)
    tokens = [_token_in(shown), _token_in(narrowed), approved["token"], program]
    assert all([await is_good(gateway, each) for each in tokens])
    provider.names("sid-2")
    another = await token(gateway)

    answer = await end(gateway)

    assert (answer.status, answer.body, answer.header("Cache-Control")) == (200, b"", "no-store")
    assert not any([await is_good(gateway, each) for each in tokens])
    assert await is_good(gateway, another), "another sign-in of the same person"
    assert (await browser.get("/auth/sessions")).header("Location") == "/auth"
    event = gateway.events[-1]
    assert (event.kind, event.provider, event.username) == (LoginEventKind.ENDED, "idp1", "alice")
    assert event.reason == "logout by the identity system: 5 sessions ended"


async def test_a_person_is_signed_out_of_all_their_sign_ins_at_this_provider_alone(make: Make) -> None:
    one, two = Leaving(), Leaving()
    gateway = make(one, two)
    mine = [await token(gateway, "/auth/idp1")]
    one.names("sid-2")
    mine.append(await token(gateway, "/auth/idp1"))
    elsewhere = await token(gateway, "/auth/idp2")
    one.names("sid-3", "sub-2", user="bob")
    other = await token(gateway, "/auth/idp1")
    one.logout = Logout(subject="sub-1")
    assert (await end(gateway)).status == 200
    assert [await is_good(gateway, each) for each in mine] == [False, False]
    assert [await is_good(gateway, each) for each in (other, elsewhere)] == [True, True]


async def test_a_sign_in_without_a_session_id_ends_with_any_of_the_persons(make: Make) -> None:
    """An issuer that forgets to name the session in its ID tokens, and names it when it ends it."""
    provider = Leaving(session_id="")
    gateway = make(provider)
    unnamed = await token(gateway)
    provider.names("sid-2")
    named = await token(gateway)
    provider.logout = Logout(session_id="sid-1", subject="sub-1")
    await end(gateway)
    assert [await is_good(gateway, each) for each in (unnamed, named)] == [False, True]


async def test_a_person_who_was_renamed_is_signed_out_under_both_names(make: Make) -> None:
    """Verifiers of JWTs are told by user name, so each name has its revocation."""
    provider = Leaving()
    gateway = make(provider)
    await token(gateway)
    provider.names("sid-1", user="alice.smith")
    await token(gateway)
    await end(gateway)
    marks = await gateway.store.marks()
    assert {(mark.kind, mark.owner) for mark in marks} == {
        (RevocationKind.ORIGIN, "alice"),
        (RevocationKind.ORIGIN, "alice.smith"),
    }
    assert await gateway.tokens_kept() == 0


async def test_a_logout_that_names_nothing_ends_nothing(make: Make) -> None:
    provider = Leaving()
    gateway = make(provider)
    good = await token(gateway)
    provider.logout = Logout()
    assert (await end(gateway)).status == 200
    assert await is_good(gateway, good)
    assert await gateway.store.marks() == []


# --- a sign-in that is under way ---


async def test_a_logout_that_comes_before_the_browser_does_refuses_the_sign_in(make: Make) -> None:
    provider = Leaving()
    provider.client = AWAY
    gateway = make(provider)
    away = await gateway.get()
    assert (await end(gateway)).status == 200
    answer = await gateway.get("/auth/provider?state=abc&code=x", cookie=cookie_of(away))
    assert answer.status == 403
    assert await gateway.tokens_kept() == 0


async def test_a_logout_while_groups_are_asked_for_elsewhere_refuses_the_sign_in(make: Make) -> None:
    provider = Leaving()
    groups = SaysGroups(Redirect("https://groups.test/?state=g"), members("developers"))
    gateway = make(provider, groups=[groups])
    away = await gateway.get()
    await end(gateway)
    answer = await gateway.get("/auth/groups/provider?state=g", cookie=cookie_of(away))
    assert answer.status == 403
    assert await gateway.tokens_kept() == 0


async def test_a_logout_before_the_command_line_fetches_its_tokens_refuses_them(make: Make) -> None:
    provider = Leaving()
    gateway = make(provider)
    browser = Browser(gateway)
    challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    answer = await browser.get(f"/auth/cli?challenge={challenge}&port=4000&state=s&client=laptop")
    code = parse_qs(urlsplit(answer.header("Location") or "").query)["code"][0]
    await end(gateway)
    assert (await gateway.post("/auth/cli/token", code=code, verifier=verifier)).status == 400
    assert await gateway.tokens_kept() == 0


@pytest.mark.parametrize("looks", [1, 2])
async def test_a_logout_between_the_page_and_the_token_leaves_no_token(
    make: Make, clock: FakeClock, looks: int
) -> None:
    """However often the browser's session was looked up by then."""
    store = EndsMeanwhile(clock)
    gateway = make(Leaving(), store=store)
    browser = Browser(gateway)
    await browser.sign_in()
    form = {"form_token": await browser.form_token()}
    (session,) = await store.sessions()
    store.ends, store.looks = [Revocation(RevocationKind.ORIGIN, session.origins[0])], looks
    answer = await browser.post("/auth/token", form)
    assert store.ends == []
    assert answer.status == 403
    assert await gateway.tokens_kept() == 0


class EndsMeanwhile(MemoryTokenStore):
    """Carries out a revocation right after so many look-ups."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.ends: list[Revocation] = []
        self.looks = 0

    async def find(self, digest: bytes) -> Found | None:
        entry = await super().find(digest)
        self.looks -= 1
        while self.ends and self.looks == 0:
            await self.revoke(self.ends.pop())
        return entry


async def test_who_signs_in_after_a_logout_stays(make: Make) -> None:
    provider = Leaving()
    gateway = make(provider)
    await end(gateway)
    assert await is_good(gateway, await token(gateway)), "the issuer's session goes on, with the same id"


# --- messages that are not believed, or come twice ---


async def test_a_message_is_good_once(make: Make, clock: FakeClock) -> None:
    one, two = Leaving(), Leaving()
    gateway = make(one, two)
    until = clock.now() + timedelta(minutes=5)
    one.logout = two.logout = Logout(subject="sub-1", token_id="jti-1", once_until=until)
    assert (await end(gateway)).status == 200
    good = await token(gateway, "/auth/idp1")
    replayed = await end(gateway)
    assert (replayed.status, replayed.header("Cache-Control")) == (400, "no-store")
    assert gateway.events[-1].reason == "the logout is not accepted: the message was used before"
    assert await is_good(gateway, good)
    assert (await end(gateway, "idp2")).status == 200, "ids of another issuer are other ids"


async def test_a_message_that_could_not_be_carried_out_may_come_again(make: Make, clock: FakeClock) -> None:
    provider = Leaving()
    store = Unwritable(clock=clock)
    gateway = make(provider, store=store)
    good = await token(gateway)
    provider.logout = Logout(session_id="sid-1", token_id="jti-1", once_until=clock.now() + timedelta(minutes=5))
    store.fails = True
    assert (await end(gateway)).status == 503
    assert not await is_good(gateway, good), "in this process it has ended already"
    store.fails = False
    assert (await end(gateway)).status == 200


class Unwritable(MemoryTokenStore):
    fails = False

    async def revoke(self, revocation: Revocation) -> int:
        if self.fails:
            raise ProviderError("the token store cannot be used", code="token-store-unavailable")
        return await super().revoke(revocation)


async def test_what_anybody_could_have_sent_ends_sessions_and_leaves_nothing_behind(make: Make) -> None:
    provider = Leaving()
    gateway = make(provider)
    provider.logout = Logout(session_id="guessed", verified=False)
    assert (await gateway.get("/auth/idp1/logout?iss=x&sid=guessed")).status == 200
    assert await gateway.store.marks() == [], "whoever guesses cannot fill the log"
    good = await token(gateway)
    provider.logout = Logout(session_id="sid-1", verified=False)
    assert (await gateway.get("/auth/idp1/logout?iss=x&sid=sid-1")).status == 200
    assert not await is_good(gateway, good)


async def test_the_answer_tells_nobody_whether_there_was_a_session(make: Make) -> None:
    provider = Leaving()
    gateway = make(provider)
    await token(gateway)
    assert await end(gateway) == await end(gateway)


async def test_a_frame_of_the_identity_system_may_load_it(make: Make) -> None:
    answer = await make(Leaving()).get("/auth/idp1/logout?iss=x&sid=y", headers=(("accept", "text/html"),))
    assert (answer.status, answer.body) == (200, b"")
    assert answer.header("X-Frame-Options") is None
    assert "frame-ancestors" not in (answer.header("Content-Security-Policy") or "")


async def test_messages_that_are_not_believed_are_limited_by_address(make: Make) -> None:
    provider = Leaving()
    gateway = make(provider)
    provider.logout = LoginRefused("forged", cause="the logout token is not valid: no key of the issuer has signed it")
    refused = await end(gateway)
    assert refused.status == 400
    assert b"forged" not in refused.body
    assert gateway.events[-1].kind is LoginEventKind.REFUSED
    assert "no key of the issuer" in gateway.events[-1].reason
    for _ in range(int(DOUBTFUL_PER_MINUTE) - 1):
        await end(gateway)
    asked = len(provider.asked)
    assert (await end(gateway)).status == 429
    assert len(provider.asked) == asked, "the provider is not even asked"
    gateway.address = "192.0.2.2"
    provider.logout = Logout(session_id="sid-1")
    assert (await end(gateway)).status == 200


async def test_believed_messages_are_not_limited(make: Make) -> None:
    gateway = make(Leaving())
    statuses = {(await end(gateway)).status for _ in range(int(DOUBTFUL_PER_MINUTE) + 10)}
    assert statuses == {200}


@pytest.mark.parametrize("answer", [None, UserInfo("alice"), Logout(token_id="x"), "done"])
async def test_an_answer_that_breaks_the_contract_ends_nothing(make: Make, answer: object) -> None:
    provider = Leaving()
    gateway = make(provider)
    good = await token(gateway)
    provider.logout = answer
    assert (await end(gateway)).status == 500
    assert gateway.events[-1].kind is LoginEventKind.CONTRACT_BROKEN
    assert await is_good(gateway, good)


async def test_a_store_that_does_not_know_where_sessions_come_from_says_so(make: Make, clock: FakeClock) -> None:
    class Older(MemoryTokenStore):
        sessions_from = None  # type: ignore[assignment]  # switched off

    gateway = make(Leaving(), store=Older(clock=clock))
    assert (await end(gateway)).status == 503
    assert "does not keep which sign-in" in gateway.events[-1].reason


# --- who may ask ---


async def test_servers_and_pages_of_the_identity_system_may_post_and_no_cookie_is_shown(make: Make) -> None:
    provider = Leaving()
    gateway = make(provider)
    browser = Browser(gateway)
    await browser.sign_in()
    answer = await browser.post("/auth/idp1/logout", {}, headers=(("origin", "https://idp.test"),))
    assert answer.status == 200
    shown = provider.asked[-1][1]
    assert shown.header("cookie") is None
    assert shown.callback_url == f"{URL}/auth/idp1/logout"


async def test_at_a_provider_that_takes_no_logouts_there_is_no_such_page(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    assert (await end(gateway)).status == 404
    foreign = await gateway.get("/auth/idp1/logout", method="POST", headers=(("origin", "https://idp.test"),))
    assert foreign.status == 403
    assert (await make(Leaving()).get("/auth/idp1/logout", method="PUT")).status == 405


async def test_our_own_page_takes_no_form_of_another_site(make: Make) -> None:
    """With one provider its name may be left out, but not here."""
    gateway = make(Leaving())
    for path in ("/auth/logout", "/auth/provider/logout"):
        answer = await gateway.get(path, method="POST", headers=(("origin", "https://idp.test"),))
        assert answer.status == 403


# --- how a browser goes on ---


async def test_a_browser_goes_where_the_provider_says(make: Make) -> None:
    provider = Leaving()
    gateway = make(provider)
    provider.logout = Logout(session_id="sid-1", answer=Redirect("https://idp.test/done?a=b"))
    answer = await end(gateway)
    assert (answer.status, answer.header("Location")) == (303, "https://idp.test/done?a=b")
    provider.logout = Logout(
        session_id="sid-1", answer=PostedForm("https://idp.test/slo", (("SAMLResponse", '"><script>'),))
    )
    page = await end(gateway)
    assert 'action="https://idp.test/slo" data-submit' in text_of(page)
    assert "&quot;&gt;&lt;script&gt;" in text_of(page)
    assert "form-action 'self' https://idp.test;" in (page.header("Content-Security-Policy") or "")
    provider.logout = Logout(session_id="sid-1", answer=Redirect("javascript:alert(1)"))
    assert (await end(gateway)).status == 500


async def test_who_comes_back_reads_that_they_are_signed_out_unless_they_are_not(make: Make) -> None:
    provider = Leaving()
    gateway = make(provider)
    provider.logout = Logout(is_return=True)
    browser = Browser(gateway)
    answer = await browser.get("/auth/idp1/logout?state=x")
    assert "You are signed out" in text_of(answer)
    await browser.sign_in()
    link = await browser.get("/auth/idp1/logout?state=x")
    assert (link.status, link.header("Location")) == (303, "/auth/token"), "a link signs nobody out"


# --- signing out here ---


async def sign_out(browser: Browser) -> LoginAnswer:
    return await browser.post("/auth/logout", {"form_token": await browser.form_token()})


async def test_signing_out_here_leads_to_the_identity_system(make: Make) -> None:
    provider = Leaving(hint=True)
    gateway = make(provider)
    browser = Browser(gateway)
    await browser.sign_in()
    (session,) = await gateway.store.sessions()
    assert HINT not in repr(session) + session.sealed_hint, "sealed with the browser's secret"
    provider.page = Redirect("https://idp.test/end?x=1")
    answer = await sign_out(browser)
    assert "https://idp.test/end?x=1" in text_of(answer)
    (asked,) = provider.signed_out
    assert asked.hint is not None
    assert (asked.hint.reveal(), asked.return_url) == (HINT, f"{URL}/auth/idp1/logout")
    assert await gateway.store.sessions() == []
    assert browser.cookies == {}, "whatever happens there, nobody is signed in here"


async def test_signing_out_with_a_form_for_the_identity_system(make: Make) -> None:
    provider = Leaving()
    gateway = make(provider)
    browser = Browser(gateway)
    await browser.sign_in()
    provider.page = PostedForm("https://idp.test/slo", (("SAMLRequest", "x"),))
    assert 'action="https://idp.test/slo" data-submit' in text_of(await sign_out(browser))
    assert browser.cookies == {}


@pytest.mark.parametrize("page", [None, ProviderError("down"), RuntimeError("oops"), Redirect("ftp://x/")])
async def test_who_signs_out_is_signed_out_whatever_the_identity_system_does(make: Make, page: object) -> None:
    provider = Leaving(hint=True)
    gateway = make(provider)
    browser = Browser(gateway)
    await browser.sign_in()
    provider.page = page
    answer = await sign_out(browser)
    assert (answer.status, "You are signed out" in text_of(answer)) == (200, True)
    assert await gateway.store.sessions() == []
    assert browser.cookies == {}


async def test_a_hint_that_is_too_long_is_left_out(make: Make) -> None:
    provider = Leaving(hint=True)
    gateway = make(provider)
    browser = Browser(gateway)
    provider.client = Identified(UserInfo("alice"), sign_out_hint=Secret("x" * 9000))
    await browser.sign_in()
    await sign_out(browser)
    assert [each.hint for each in provider.signed_out] == [None]


def _token_in(page: str) -> str:
    start = page.index("ost_")
    return page[start : start + 55]
