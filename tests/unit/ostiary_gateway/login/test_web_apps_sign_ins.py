"""Sign-ins for web applications under way: what is kept, for how long, and for which browser."""

from __future__ import annotations

import pytest

from ostiary.errors import LoginRefused
from ostiary.model import Secret, UserInfo
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.login.browser_session import Visitor
from ostiary_gateway.login.records import record_store
from ostiary_gateway.login.web_apps import ApplicationSignIns, SignInRequest
from ostiary_gateway.sessions import Tokens
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock

WIKI = "https://wiki.test"


@pytest.fixture
def tokens(clock: FakeClock) -> Tokens:
    return Tokens(MemoryTokenStore(clock=clock), clock=clock)


@pytest.fixture
def sign_ins(tokens: Tokens, clock: FakeClock) -> ApplicationSignIns:
    return ApplicationSignIns(record_store(tokens.store, clock), secure=True, clock=clock)


def request(cookie: tuple[str, str] | None = None) -> LoginRequest:
    headers = () if cookie is None else (("cookie", cookie[1].partition(";")[0]),)
    return LoginRequest("GET", "/auth/application", headers=headers)


async def begin(sign_ins: ApplicationSignIns, sent: LoginRequest) -> tuple[SignInRequest, tuple[str, str]]:
    request_id, cookie = await sign_ins.begin(sent, application="wiki", origin=WIKI, target="/a?b=c")
    sign_in_request = await sign_ins.find(request_id)
    assert sign_in_request is not None
    return sign_in_request, cookie


async def visitor(tokens: Tokens, kept: Secret | None = None) -> Visitor:
    browser = await tokens.issue_browser(UserInfo("alice"), provider="staff", kept=kept)
    return Visitor(browser.session, browser.secret)


async def test_the_target_is_kept_and_the_secret_is_not(sign_ins: ApplicationSignIns, clock: FakeClock) -> None:
    sign_in_request, cookie = await begin(sign_ins, request())
    assert (sign_in_request.application, sign_in_request.origin, sign_in_request.target) == ("wiki", WIKI, "/a?b=c")
    assert cookie[1].partition("=")[2].partition(";")[0] not in repr(sign_in_request)


async def test_a_browser_has_one_secret_for_all_its_tabs(sign_ins: ApplicationSignIns) -> None:
    first, cookie = await begin(sign_ins, request())
    second, again = await begin(sign_ins, request(cookie))
    assert (first.browser, cookie) == (second.browser, again)
    other, _ = await begin(sign_ins, request(("Set-Cookie", "__Host-ostiary-visit=short")))
    assert other.browser != first.browser


async def test_a_code_brings_the_session_once(sign_ins: ApplicationSignIns, tokens: Tokens) -> None:
    sign_in_request, cookie = await begin(sign_ins, request())
    who = await visitor(tokens)
    code = await sign_ins.issue_code(sign_in_request, who)
    redeemed = await sign_ins.redeem(request(cookie), code, WIKI)
    assert (redeemed.sign_in_request, redeemed.session_id, redeemed.keeping) == (sign_in_request, who.session.id, None)
    with pytest.raises(LoginRefused):
        await sign_ins.redeem(request(cookie), code, WIKI)


async def test_what_opens_the_things_that_are_kept_comes_along(sign_ins: ApplicationSignIns, tokens: Tokens) -> None:
    sign_in_request, cookie = await begin(sign_ins, request())
    who = await visitor(tokens, Secret("refresh"))
    redeemed = await sign_ins.redeem(request(cookie), await sign_ins.issue_code(sign_in_request, who), WIKI)
    assert redeemed.keeping is not None
    assert redeemed.keeping.reveal() == who.keeping.reveal() != who.secret.reveal()


async def test_without_a_secret_of_the_beginning_there_is_no_session(
    sign_ins: ApplicationSignIns, tokens: Tokens
) -> None:
    """Also for a browser without any cookie: the digest of nothing is nobody's."""
    sign_in_request, cookie = await begin(sign_ins, request())
    _, other = await begin(sign_ins, request())
    for sent, origin in ((request(), WIKI), (request(other), WIKI), (request(cookie), "https://board.test")):
        code = await sign_ins.issue_code(sign_in_request, await visitor(tokens))
        with pytest.raises(LoginRefused):
            await sign_ins.redeem(sent, code, origin)
        with pytest.raises(LoginRefused):
            await sign_ins.redeem(request(cookie), code, WIKI)
