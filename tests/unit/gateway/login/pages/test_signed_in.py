"""What browsers get of /auth: pages, a session of their own, and forms that nobody else can send."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import bcrypt
import pytest
import yaml

from ostiary.errors import LoginRefused, ProviderError
from ostiary.gateway.audit.sign_ins import LoginEventKind
from ostiary.gateway.authorize.cached_provider import Link
from ostiary.gateway.authorize.chain import Authorizer
from ostiary.gateway.login.answers import LoginAnswer
from ostiary.gateway.login.visit import wants_html
from ostiary.interfaces.identity import Challenge, LoginRequest, Redirect, SignIn
from ostiary.interfaces.token_store import RevocationKind, TokenKind
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary.plugins.htpasswd.identity import HtpasswdIdentity
from ostiary.testing import FakeClock
from tests.unit.gateway.signing_in import (
    URL,
    Browser,
    Gateway,
    Make,
    Revalidating,
    Says,
    SaysGroups,
    body,
    events,
    hidden,
    members,
    text_of,
)

SESSION = "__Host-ostiary-session"
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


KNOWN_TAGS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "link",
        "style",
        "body",
        "header",
        "nav",
        "main",
        "script",
        "details",
        "summary",
    ),
    *("h1", "h2", "h3", "p", "b", "a", "div", "span", "ul", "li", "dl", "dt", "dd", "pre", "code", "time"),
    *("form", "label", "input", "button", "summary"),
}


class Tags(HTMLParser):
    """What a browser makes of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


@pytest.fixture
def users(tmp_path: Path) -> Path:
    path = tmp_path / "users"
    path.write_text("alice:" + bcrypt.hashpw(b"pw", bcrypt.gensalt(4)).decode())
    return path


@pytest.fixture
async def alice(make: Make) -> Browser:
    browser = Browser(make(Revalidating(UserInfo("alice")), groups=[SaysGroups(members("developers"))]))
    await browser.sign_in()
    return browser


def assert_is_safe_page(answer: LoginAnswer) -> None:
    """Nothing is kept, framed, loaded from elsewhere or run but what we wrote."""
    policy = answer.header("Content-Security-Policy") or ""
    (nonce,) = set(re.findall(r"nonce-([\w-]{20,})'", policy))
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert "base-uri 'none'" in policy
    assert "unsafe" not in policy
    assert answer.header("X-Frame-Options") == "DENY"
    assert answer.header("Cache-Control") == "no-store"
    assert answer.header("Referrer-Policy") in ("no-referrer", "same-origin")
    assert answer.header("X-Content-Type-Options") == "nosniff"
    assert answer.header("Content-Type") == "text/html; charset=utf-8"
    page = text_of(answer)
    assert page.startswith('<!doctype html>\n<html lang="en">')
    assert re.findall(r"<(?:script|style)[^>]*>", page) == [f'<style nonce="{nonce}">', f'<script nonce="{nonce}">']
    tags = Tags()
    tags.feed(page)
    assert {tag for tag, _ in tags.seen} <= KNOWN_TAGS
    for tag, attributes in tags.seen:
        if tag == "link":
            assert attributes["rel"] == "icon"
            assert (attributes["href"] or "").startswith("data:image/svg+xml,")
            continue
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "src")]
        for name in ("href", "action"):
            assert (attributes.get(name) or "/auth").startswith(("/auth", "#main", "https://g.test/"))
    assert "{{" not in page.replace("{{form_token}}", "")


# --- pages or JSON ---


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", True),
        ("text/html", True),
        ("TEXT/HTML; charset=x", True),
        ("application/json, text/html", True),
        ("application/json, text/html;q=0.9", False),
        ("text/html;q=0", False),
        ("text/html;q=0.000, */*", False),
        ("application/json", False),
        ("*/*", False),
        ("text/*", False),
        ("", False),
        ("text/htmlx", False),
        ("text/html;q=nonsense", True),
        (";;;,,,q=", False),
    ],
)
def test_only_browsers_get_pages(accept: str, html: bool) -> None:
    assert wants_html(LoginRequest("GET", "/auth", headers=(("accept", accept),))) is html


async def test_programs_get_what_they_always_got(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    answer = await gateway.get(headers=(("accept", "*/*"),))
    assert (answer.status, body(answer)["user"]) == (200, "alice")
    for path in ("/auth/token", "/auth/sessions", "/auth/device", "/auth/admin"):
        assert (await gateway.get(path)).status == 406


async def test_methods_tell_a_program_what_to_offer(make: Make) -> None:
    password, ambient = Says(), Says()
    password.sign_in, ambient.sign_in = SignIn.PASSWORD, SignIn.AMBIENT  # type: ignore[attr-defined]
    told = body(await make(Says(), password, ambient).get("/auth/methods"))
    kinds = [("idp1", "redirect"), ("idp2", "password"), ("idp3", "ambient")]
    assert told == {"providers": [{"name": name, "kind": kind} for name, kind in kinds], "gateway": URL}


async def test_whoami_tells_a_token_whose_it_is(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")), groups=[SaysGroups(members("developers"))])
    said = body(await gateway.get())
    told = await gateway.get("/auth/whoami", headers=(("authorization", f"Bearer {said['token']}"),))
    assert body(told) == {
        "user": "alice",
        "groups": [{"name": "developers", "source": "g1"}, {"name": "system:authenticated", "source": "gateway"}],
        "session": said["session"],
        "provider": "idp1",
        "since": "2026-01-01T00:00:00Z",
        "expires_at": said["expires_at"],
        "session_expires_at": said["session_expires_at"],
    }
    for given in ("", f"Bearer {said['renewal_token']}", "Bearer x"):
        answer = await gateway.get("/auth/whoami", headers=(("authorization", given),))
        assert (answer.status, (answer.header("WWW-Authenticate") or "")[:6]) == (401, "Bearer")


# --- signing in ---


async def test_a_person_signs_in_with_a_form_and_ends_on_the_page_with_the_token(make: Make, users: Path) -> None:
    """S16, S18, S21, S25."""
    gateway = make(HtpasswdIdentity(path=users, clock=FakeClock()))
    browser = Browser(gateway)
    form = await browser.get("/auth")
    assert_is_safe_page(form)
    assert form.status == 200
    assert form.header("WWW-Authenticate") is None, "the browser would ask with a window of its own"
    signed = await browser.post("/auth/idp1", {"username": "alice", "password": "pw"})
    assert (signed.status, signed.header("Location")) == (303, "/auth/token")
    home = await browser.follow(signed)
    assert_is_safe_page(home)
    assert "alice" in text_of(home)
    assert "ost_" not in text_of(home)
    shown = await browser.post("/auth/token", {"form_token": hidden(home, "form_token")})
    assert_is_safe_page(shown)
    assert shown.header("Referrer-Policy") == "no-referrer"
    (token,) = re.findall(r"ost_\w{51}", text_of(shown))
    found = await gateway.tokens.find(token)
    assert found is not None
    assert (found.session.user.username, found.session.client) == ("alice", "token page from 192.0.2.1")
    assert events(gateway) == [LoginEventKind.ISSUED, LoginEventKind.ISSUED]


async def test_a_wrong_password_is_told_in_a_plain_sentence(make: Make, users: Path) -> None:
    """S20, L9."""
    gateway = make(HtpasswdIdentity(path=users, clock=FakeClock()))
    browser = Browser(gateway)
    for form in (
        {"username": "alice", "password": "wrong"},
        {"username": "nobody", "password": "pw"},
        {"username": "alice:pw", "password": "pw"},
    ):
        answer = await browser.post("/auth/idp1", form)
        assert_is_safe_page(answer)
        assert (answer.status, (answer.header("WWW-Authenticate") or "")[:6]) in ((401, "Bearer"), (200, ""))
        assert "password" in text_of(answer)
        assert 'role="alert"' in text_of(answer)
        await nobody_came_in_by_cookie(gateway, browser)
    answer = await browser.post("/auth/idp1", {"username": "alice", "password": "wrong"})
    assert "Wrong user name or password." in text_of(answer)
    assert 'value="alice"' in text_of(answer), "nobody has to type it again"
    assert 'wrong"' not in text_of(answer), "the password is not shown again"


async def nobody_came_in_by_cookie(gateway: Gateway, browser: Browser) -> None:
    assert SESSION not in browser.cookies
    assert await gateway.tokens_kept() == 0


async def test_too_many_wrong_passwords_lock_the_form_too(make: Make, users: Path) -> None:
    """L9: whatever case the name is written in."""
    browser = Browser(make(HtpasswdIdentity(path=users, clock=FakeClock())))
    for name in ("alice", "ALICE", "Alice ", "alice", "alicE"):
        await browser.post("/auth/idp1", {"username": name, "password": "wrong"})
    answer = await browser.post("/auth/idp1", {"username": "alice", "password": "pw"})
    assert answer.status == 429
    assert answer.header("Retry-After") is not None
    assert "Too many failed attempts: try again later." in text_of(answer)


async def test_the_form_is_put_to_the_provider_as_basic(make: Make) -> None:
    provider = Says(UserInfo("alice"))
    browser = Browser(make(provider))
    await browser.post("/auth/idp1", {"username": "al", "password": "p:w\u00e9"})
    request = provider.asked[-1][1]
    expected = base64.b64encode("al:p:w\u00e9".encode()).decode()
    assert (request.method, request.form, request.header("authorization")) == ("GET", (), f"Basic {expected}")


async def test_with_several_providers_the_person_chooses_by_link(make: Make) -> None:
    """S31."""
    browser = Browser(make(Says(UserInfo("alice")), Says(Redirect("https://idp.test/"))))
    page = await browser.get("/auth")
    assert_is_safe_page(page)
    assert re.findall(r'href="(/auth/idp\d)"', text_of(page)) == ["/auth/idp1", "/auth/idp2"]
    assert "idp1:alice" in text_of(await browser.sign_in("/auth/idp1"))


async def test_a_form_that_must_go_elsewhere_goes_by_a_page(make: Make) -> None:
    """S33: browsers do not let a form end on another site."""
    gateway = make(Says(UserInfo("alice")), groups=[SaysGroups(Redirect("https://g.test/?a=1&state=x"))])
    answer = await Browser(gateway).post("/auth/idp1", {"username": "alice", "password": "x"})
    assert answer.status == 200
    assert 'content="0; url=https://g.test/?a=1&amp;state=x"' in text_of(answer)


async def test_other_challenges_go_to_the_browser_itself(make: Make) -> None:
    """S41."""
    answer = await Browser(make(Says(Challenge("Negotiate")))).get("/auth")
    assert (answer.status, answer.header("WWW-Authenticate")) == (401, "Negotiate")
    assert_is_safe_page(answer)


# --- the session ---


async def test_the_session_cookie_is_for_this_host_and_out_of_reach_of_scripts(make: Make) -> None:
    """L4."""
    for url, start, secure in ((URL, f"{SESSION}=osb_", True), ("http://127.0.0.1:1", "ostiary-session=osb_", False)):
        answer = await Browser(make(Revalidating(UserInfo("alice")), external_url=url)).get("/auth")
        (cookie,) = [value for name, value in answer.headers if name == "Set-Cookie" and "-session=" in value]
        assert cookie.startswith(start)
        assert all(part in cookie for part in ("Path=/", "HttpOnly", "SameSite=Lax", "Max-Age=86400"))
        assert ("Secure" in cookie) is secure


async def test_each_login_begins_a_new_session_and_ends_the_one_before(make: Make) -> None:
    """L4: whoever planted a cookie, or kept one, has nothing."""
    gateway = make(Says(UserInfo("mallory")), Says(UserInfo("alice")))
    browser = Browser(gateway)
    await browser.sign_in("/auth/idp1")
    planted = browser.cookies[SESSION]
    await browser.sign_in("/auth/idp2")
    assert browser.cookies[SESSION] != planted
    assert await gateway.tokens.find_browser(planted) is None
    (session,) = await gateway.store.sessions()
    assert session.user.username == "idp2:alice"
    assert session.client == "Chrome on Linux from 192.0.2.1"


async def test_a_made_up_cookie_is_never_taken_over(make: Make) -> None:
    """L4."""
    browser = Browser(make(Says(UserInfo("alice"))))
    browser.cookies[SESSION] = made_up = "osb_" + "a" * 51
    await browser.sign_in()
    assert browser.cookies[SESSION] != made_up


async def test_a_browsers_secret_is_no_bearer_token(alice: Browser) -> None:
    """L4: and a token is no browser's secret."""
    gateway = alice.gateway
    secret = alice.cookies[SESSION]
    bearer = (("authorization", f"Bearer {secret}"),)
    assert await gateway.tokens.find(secret) is None
    assert (await gateway.get("/auth/whoami", headers=bearer)).status == 401
    assert (await gateway.post("/auth/renew", renewal_token=secret)).status == 401
    await gateway.get("/auth/logout", method="POST", headers=bearer)
    assert (await alice.get("/auth/token")).status == 200, "and signs nobody out without a form"
    found = [token.kind for token in gateway.store._tokens.values()]  # type: ignore[attr-defined]
    assert found == [TokenKind.BROWSER]
    stranger = Browser(gateway)
    stranger.cookies[SESSION] = body(await gateway.get())["token"]
    assert (await stranger.get("/auth/token")).header("Location") == "/auth"


async def test_who_is_signed_in_is_not_asked_again(alice: Browser) -> None:
    assert (await alice.get("/auth")).header("Location") == "/auth/token"
    alice.gateway.identity[0].instance.asked.clear()  # type: ignore[attr-defined]
    await alice.get("/auth/idp1")
    assert len(alice.gateway.identity[0].instance.asked) == 1, "S30: but by name they are"  # type: ignore[attr-defined]


async def test_pages_send_those_who_are_not_signed_in_to_the_start(make: Make) -> None:
    browser = Browser(make(Says(Challenge("Basic x"))))
    for path in ("/auth/token", "/auth/sessions", "/auth/admin"):
        assert (await browser.get(path)).header("Location") == "/auth"


async def test_a_token_is_not_made_of_what_was_true_yesterday(make: Make, clock: FakeClock) -> None:
    """S36, S64: older than a token lives, and the providers are asked again."""
    provider, groups = Revalidating(UserInfo("alice")), SaysGroups(members("developers"))
    gateway = make(provider, groups=[groups])
    browser = Browser(gateway)
    await browser.sign_in()
    token = await browser.form_token()
    groups.of = members("operators")
    clock.advance(minutes=16)
    shown = await browser.post("/auth/token", {"form_token": token})
    (found,) = [await gateway.tokens.find(text) for text in re.findall(r"ost_\w{51}", text_of(shown))]
    assert found is not None
    assert found.session.user.groups == ("operators",)
    provider.said = ProviderError("down")
    assert (await browser.post("/auth/token", {"form_token": token})).status == 503
    provider.said = LoginRefused("the user is no longer known")
    refused = await browser.post("/auth/token", {"form_token": token})
    assert refused.status == 403
    assert "The user is no longer known." in text_of(refused)
    assert SESSION not in browser.cookies
    assert all(session.client.startswith("token page") for session in await gateway.store.sessions())


@pytest.mark.parametrize("path", ["/auth/token", "/auth/sessions", "/auth/logout", "/auth/admin"])
async def test_forms_of_others_change_nothing(alice: Browser, path: str) -> None:
    """L5."""
    kept = await alice.gateway.tokens_kept()
    token, session = await alice.form_token(), (await alice.gateway.store.sessions())[0].id
    ours = (("origin", URL),)
    for form_token, headers in (
        ("", ours),
        ("x", ours),
        ("\u00e9", ours),
        (token, ()),
        (token, (("origin", "https://evil.test"),)),
        (token, (("origin", "null"),)),
        (token, (*ours, *ours)),
        (token, (*ours, ("sec-fetch-site", "same-site"))),
        (token, (*ours, ("sec-fetch-mode", "cors"))),
        (token, (*ours, ("sec-fetch-mode", "no-cors"))),
    ):
        answer = await alice.post(path, {"form_token": form_token, "session": session}, headers=headers)
        assert answer.status == 403
        assert b"ost_" not in answer.body
    assert await alice.gateway.tokens_kept() == kept
    assert (await alice.get("/auth/token")).status == 200, "still signed in"


async def test_scripts_cannot_read_the_pages(alice: Browser) -> None:
    """An upstream on the same host has the same origin."""
    for mode in ("cors", "same-origin", "no-cors", "websocket"):
        assert (await alice.get("/auth/sessions", headers=(("sec-fetch-mode", mode),))).status == 403
    assert (await alice.get("/auth/sessions", headers=(("sec-fetch-mode", "navigate"),))).status == 200


# --- sessions ---


async def test_a_person_sees_their_sessions_and_ends_one(alice: Browser) -> None:
    gateway = alice.gateway
    laptop = body(await gateway.get(headers=(("user-agent", "kubectl/1.38"),)))
    page = await alice.get("/auth/sessions")
    assert_is_safe_page(page)
    for text in ("kubectl/1.38 from 192.0.2.1", "this browser", "developers", "g1", "idp1"):
        assert text in text_of(page)
    form = {"form_token": hidden(page, "form_token"), "session": laptop["session"]}
    assert (await alice.post("/auth/sessions", form)).header("Location") == "/auth/sessions"
    assert await gateway.tokens.find(laptop["token"]) is None
    assert "kubectl" not in text_of(await alice.get("/auth/sessions"))
    assert events(gateway)[-1] is LoginEventKind.ENDED


async def test_nobody_ends_the_session_of_somebody_else(make: Make) -> None:
    provider = Says(UserInfo("bob"))
    gateway = make(provider)
    bob = body(await gateway.get())
    provider.client = UserInfo("alice")
    browser = Browser(gateway)
    await browser.sign_in()
    assert bob["session"] not in text_of(await browser.get("/auth/sessions"))
    form = {"form_token": await browser.form_token(), "session": bob["session"]}
    assert (await browser.post("/auth/sessions", form)).status == 303
    assert await gateway.tokens.find(bob["token"]) is not None


async def test_signing_out_here_and_everywhere(alice: Browser) -> None:
    gateway = alice.gateway
    other = Browser(gateway)
    await other.sign_in()
    laptop = body(await gateway.get())
    answer = await alice.post("/auth/logout", {"form_token": await alice.form_token()})
    assert_is_safe_page(answer)
    assert SESSION not in alice.cookies
    assert await gateway.tokens.find(laptop["token"]) is not None
    await other.post("/auth/logout", {"form_token": await other.form_token(), "everywhere": "true"})
    assert await gateway.store.sessions() == []


async def test_a_program_signs_its_user_out_everywhere(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    first, second = body(await gateway.get()), body(await gateway.get())
    answer = await gateway.post("/auth/logout", renewal_token=first["renewal_token"], everywhere="true")
    assert answer.status == 204
    assert await gateway.tokens.find(second["token"]) is None


async def test_ending_the_own_session_signs_out(alice: Browser) -> None:
    (session,) = await alice.gateway.store.sessions()
    answer = await alice.post("/auth/sessions", {"form_token": await alice.form_token(), "session": session.id})
    assert "signed out" in text_of(answer)
    assert SESSION not in alice.cookies


async def test_a_revoked_session_is_over_on_the_pages_too(alice: Browser, clock: FakeClock) -> None:
    """S64."""
    token = await alice.form_token()
    await alice.gateway.tokens.revoke(RevocationKind.USER, "alice")
    assert (await alice.get("/auth/sessions")).header("Location") == "/auth"
    assert (await alice.post("/auth/token", {"form_token": token})).status == 401


# --- what is shown ---


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


# --- administration ---


class Policy:
    """Allows what is listed: (user, verb, resource)."""

    def __init__(self, *allowed: tuple[str, str, str]) -> None:
        self.allowed = set(allowed)
        self.asked: list[Attributes] = []

    async def authorize(self, attributes: Attributes) -> Decision:
        self.asked.append(attributes)
        asked = (attributes.user.username, attributes.request.verb, attributes.request.resource)
        known = asked in self.allowed and attributes.request.api_group == "ostiary.dev"
        return Decision(Verdict.ALLOW if known else Verdict.NO_OPINION, "" if known else "no rule <b>")

    async def relevant_groups(self) -> frozenset[str]:
        return frozenset()


ALL = (
    *(("root", verb, "sessions") for verb in ("list", "delete")),
    *(("root", verb, "decisions") for verb in ("list", "get")),
    ("root", "create", "subjectsearches"),
)


def with_policy(make: Make, provider: Any, *allowed: tuple[str, str, str], clock: FakeClock) -> Gateway:
    authorizer = Authorizer([Link("cluster", Policy(*allowed))], clock=clock)
    return make(provider, authorizer=authorizer)


async def test_who_looks_after_the_gateway_sees_and_ends_sessions_of_all(make: Make, clock: FakeClock) -> None:
    provider = Says(UserInfo("<bob>"))
    gateway = with_policy(make, provider, *ALL, clock=clock)
    bob = body(await gateway.get())
    provider.client = UserInfo("root")
    browser = Browser(gateway)
    assert 'href="/auth/admin"' in text_of(await browser.sign_in())
    page = await browser.get("/auth/admin")
    assert_is_safe_page(page)
    assert "&lt;bob&gt;" in text_of(page)
    assert "One session" in text_of(await browser.get("/auth/admin?user=%3Cbob%3E"))
    assert "No sessions" in text_of(await browser.get("/auth/admin?group=nobody"))
    form = {"form_token": hidden(page, "form_token"), "session": bob["session"]}
    assert (await browser.post("/auth/admin", form)).status == 303
    assert await gateway.tokens.find(bob["token"]) is None
    assert (await browser.post("/auth/admin", {"form_token": form["form_token"]})).status == 400


async def test_refusals_are_listed_and_explained(make: Make, clock: FakeClock) -> None:
    gateway = with_policy(make, Says(UserInfo("root")), *ALL, clock=clock)
    assert gateway.authorizer is not None
    info = RequestInfo(
        "get", "GET", "/x", is_resource=True, api_group="", resource="secrets", namespace="team", name="<s>"
    )
    refused = Attributes(UserInfo("<bob>"), info)
    decision = await gateway.authorizer.authorize(refused)
    number = gateway.authorizer.record(refused, decision)
    browser = Browser(gateway)
    await browser.sign_in()
    listed = await browser.get("/auth/admin/refusals")
    assert_is_safe_page(listed)
    assert "&lt;bob&gt;: get secrets &lt;s&gt; in team" in text_of(listed)
    explained = await browser.get(f"/auth/admin/refusals?id={number}")
    assert_is_safe_page(explained)
    assert "cluster" in text_of(explained)
    assert "no rule &lt;b&gt;" in text_of(explained)
    assert (await browser.get("/auth/admin/refusals?id=unknown")).status == 404


async def test_who_can_is_asked_by_a_form(make: Make, clock: FakeClock) -> None:
    browser = Browser(with_policy(make, Says(UserInfo("root")), *ALL, clock=clock))
    await browser.sign_in()
    for query, expected in (
        ("", "Who can?"),
        ("?verb=get&resource=pods", "cannot list whom they allow: cluster"),
        ("?verb=get", "either a resource or a path"),
        ("?verb=get&path=%3Cb%3E", 'value="&lt;b&gt;"'),
    ):
        page = await browser.get(f"/auth/admin/who-can{query}")
        assert_is_safe_page(page)
        assert expected in text_of(page)


async def test_the_policy_alone_makes_an_administrator(make: Make, clock: FakeClock) -> None:
    """S42: each page is asked about as the API is."""
    gateway = with_policy(make, Says(UserInfo("eve")), ("eve", "list", "sessions"), *ALL, clock=clock)
    victim = body(await gateway.get())
    browser = Browser(gateway)
    await browser.sign_in()
    assert (await browser.get("/auth/admin")).status == 200
    for path in ("/auth/admin/refusals", "/auth/admin/refusals?id=x", "/auth/admin/who-can?verb=get&path=/"):
        assert (await browser.get(path)).status == 403
    form = {"form_token": await browser.form_token(), "session": victim["session"]}
    assert (await browser.post("/auth/admin", form)).status == 403
    assert await gateway.tokens.find(victim["token"]) is not None
    plain = Browser(with_policy(make, Says(UserInfo("mallory")), *ALL, clock=clock))
    assert "/auth/admin" not in text_of(await plain.sign_in())
    assert (await plain.get("/auth/admin")).status == 403


# --- what people look for ---


async def test_signing_out_is_one_click_on_every_page_of_a_person(alice: Browser) -> None:
    for path in ("/auth/token", "/auth/sessions"):
        page = await alice.get(path)
        navigation = text_of(page).partition("<nav")[2].partition("</nav>")[0]
        assert "Sign out" in navigation
        assert 'action="/auth/logout"' in navigation
    token = hidden(await alice.get("/auth/token"), "form_token")
    assert (await alice.post("/auth/logout", {"form_token": token})).status == 200
    assert (await alice.get("/auth/token")).status == 303


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
