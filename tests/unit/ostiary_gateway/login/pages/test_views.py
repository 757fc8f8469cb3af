"""What the pages say: whatever somebody else has chosen is only text, and errors are plain sentences."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import quote

import pytest
import yaml

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from tests.unit.ostiary_gateway.login.pages.safe_page import assert_is_safe_page
from tests.unit.ostiary_gateway.signing_in import (
    URL,
    Browser,
    Gateway,
    Make,
    Says,
    SaysGroups,
    body,
    members,
    text_of,
)

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'-alert(1)-'",
    "</title><svg/onload=alert(1)>",
    "{{form_token}}",
    "&lt;b&gt;",
    "a\u202eb",
    "javascript:alert(1)",
)


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_whatever_somebody_calls_themselves_is_only_text(make: Make, hostile: str) -> None:
    gateway = make(Says(UserInfo(hostile)), groups=[SaysGroups(members(hostile))], relevant=frozenset({hostile}))
    browser = Browser(gateway)
    await gateway.get(headers=(("user-agent", hostile),))
    asked = body(await gateway.post("/auth/device", client=hostile))
    await browser.sign_in()
    pages = [await browser.get(path) for path in ("/auth/token", "/auth/sessions")]
    pages.append(await browser.get(f"/auth/device?code={asked['user_code']}"))
    pages.append(
        await browser.get(f"/auth/cli?challenge={'a' * 43}&port=8000&state=s&client={quote(hostile, safe='')}")
    )
    for page in pages:
        assert page.status == 200
        assert_is_safe_page(page)
        assert hostile not in text_of(page) or hostile in ("{{form_token}}", "javascript:alert(1)")
    form = await Browser(make(Says(LoginRefused("no", www_authenticate="Basic x")))).post(
        "/auth/idp1", {"username": hostile, "password": "x"}
    )
    assert_is_safe_page(form)


@pytest.mark.parametrize(
    ("answer", "status", "sentence"),
    [
        (LoginRefused("no such user", cause="marked"), 403, "No such user."),
        (LoginRefused("come later", retry_after=3), 429, "Come later."),
        (ProviderError("marked"), 503, "The identity provider is unavailable."),
        (RuntimeError("marked"), 500, "The identity provider is unavailable."),
    ],
)
async def test_an_error_is_a_plain_sentence_and_a_number_to_tell(
    make: Make, answer: Exception, status: int, sentence: str
) -> None:
    """S20."""
    page = await Browser(make(Says(answer))).get("/auth")
    assert page.status == status
    assert_is_safe_page(page)
    assert sentence in text_of(page)
    assert "request-1" in text_of(page)
    assert "marked" not in text_of(page)
    assert (page.header("Retry-After") == "3") is (status == 429)


async def test_where_there_is_nothing_a_page_says_so(alice: Browser) -> None:
    for path in ("/auth/nothing/here", "/auth/admin", "/auth/token/x", "/auth/sessions/x"):
        page = await alice.get(path)
        assert page.status == 404
        assert_is_safe_page(page)
    assert (await alice._send("/auth/token", "PUT")).status == 405


async def test_the_kubeconfig_to_download_is_whole_and_has_no_secret(alice: Browser) -> None:
    answer = await alice.get("/auth/kubeconfig")
    read = yaml.safe_load(answer.body)
    assert read["clusters"][0]["cluster"]["server"] == URL
    assert read["users"][0]["user"]["exec"]["args"] == ["get-token", "--server", URL]
    assert (answer.header("Content-Disposition") or "").startswith("attachment")
    assert "os" + "t_" not in text_of(answer)


async def test_times_are_ones_that_a_browser_can_turn_into_its_own(alice: Browser) -> None:
    text = text_of(await alice.get("/auth/token"))
    assert re.search(r'<time datetime="20[0-9-]+T[0-9:]+Z">[^<]+ UTC</time>', text)


async def test_people_read_the_name_that_the_operator_gave_and_not_the_one_of_the_address(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")), Says(UserInfo("bob")))
    named = replace(gateway.identity[0], display_name="Acme <sign-in>")
    gateway = Gateway([named, gateway.identity[1]], gateway.clock)
    browser = Browser(gateway)
    page = text_of(await browser.get("/auth"))
    assert "Sign in with Acme &lt;sign-in&gt;" in page
    assert "Sign in with idp2" in page
    assert 'href="/auth/idp1"' in page
    assert "Acme &lt;sign-in&gt;" in text_of(await browser.sign_in("/auth/idp1"))
