"""One walk over every page in each language, at a gateway that looks as its operator wants it to."""

from __future__ import annotations

import base64
import hashlib
import socket
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from ostiary.cli.login.browser import Return
from ostiary.cli.login.sessions import SignInGrant
from ostiary.core.languages import LANGUAGES
from ostiary.model import Secret
from ostiary_gateway.login.pages.messages import say, speaking, spoken
from tests.support.chromium import Chromium
from tests.support.gateway import InProcessGateway, Site, password, role
from tests.support.page_checks import check_page
from tests.support.web_application import WebApplication

pytestmark = [pytest.mark.needs("chromium", "node", "npm"), pytest.mark.timeout(300)]

LOCALES = {"en": "en-GB", "de": "de-DE"}
LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 40"><script>document.title = "no"</script>'
    '<circle cx="20" cy="20" r="18" fill="#8a1c4a"/><path d="M12 27 20 12l8 15" fill="none" stroke="#fff"'
    ' stroke-width="3"/></svg>'
)
OWN_TOKENS = {"apiGroups": ["ostiary.dev"], "resources": ["apitokens"], "verbs": ["create", "list", "delete"]}
ADMIN = {"apiGroups": ["ostiary.dev"], "resources": ["*"], "verbs": ["*"]}
# In the tables of the administration area a column may be too narrow for a whole time.
BROKEN_TIMES = """return [...document.querySelectorAll("time span")]
    .filter((part) => part.getClientRects().length > 1).map((part) => part.textContent)"""
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(b"v" * 43).digest()).decode().rstrip("=")


def small_png() -> bytes:
    """A picture of one point."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        whole = kind + content
        return struct.pack(">I", len(content)) + whole + struct.pack(">I", zlib.crc32(whole))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0\x8a\x1c\x4a"))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


@dataclass
class Running:
    gateway: InProcessGateway
    chromium: Chromium
    port: int

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def wiki_url(self) -> str:
        return f"https://wiki.apps.localhost:{self.port}"

    def person(self) -> None:
        self.chromium.person(locale=LOCALES[spoken()])

    def go(self, path: str, name: str) -> None:
        self.chromium.go(path if path.startswith("https:") else f"{self.url}{path}")
        self.look_at(name)

    def look_at(self, name: str) -> None:
        assert self.chromium("run", script="return document.documentElement.lang") == spoken(), name
        assert self.chromium("run", script=BROKEN_TIMES) == [], f"{name}: a day or a time of day stands on two lines"
        check_page(self.chromium, f"{spoken()}-{name}")

    def click(self, message: str, role: str = "button", **values: str) -> None:
        self.chromium.click(role, say(message, **values))

    def fill_in(self, user: str, secret: str = "") -> None:
        self.chromium.fill(say("sign_in.name"), user)
        self.chromium.fill(say("sign_in.password"), secret or password(user))
        self.click("sign_in.submit")


@pytest.fixture(scope="module")
def running(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    site._write_leaf("server", ca.issue_cert("localhost", "127.0.0.1", "wiki.apps.localhost"))
    site.users("alice", "root")
    site.policy(role("", OWN_TOKENS, User="staff:alice"), role("", ADMIN, User="staff:root"))
    (site.folder / "logo.svg").write_text(LOGO)
    (site.folder / "badge.png").write_bytes(small_png())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    wiki: dict[str, Any] = {"hosts": ["wiki.apps.localhost"], "attributes": "http", "auth": "browser"}
    with (
        WebApplication("wiki").running() as server,
        Chromium.running() as chromium,
        site.in_process(
            listen={"address": f"127.0.0.1:{port}"},
            externalURL=f"https://localhost:{port}",
            upstreams=[{"name": "wiki", "server": server.url, **wiki}],
            identity=[
                {
                    "name": "staff",
                    "type": "htpasswd",
                    "path": "users",
                    "displayName": "Acme accounts",
                    "icon": "people",
                    "prefix": "staff:",
                },
                {"name": "guests", "type": "htpasswd", "path": "users", "iconFile": "badge.png", "prefix": "guests:"},
            ],
            apiTokens={"enabled": True},
            pages={
                "name": "Acme platform",
                "logo": "logo.svg",
                "accent": "#8a1c4a",
                "accentDark": "#f2a3c4",
                "help": "https://help.example.com/clusters",
                "support": "Acme platform team, room 4.12",
            },
        ) as gateway,
    ):
        yield Running(gateway, chromium, port)


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_in_each_language(running: Running, language: str) -> None:
    with speaking(language):
        _walk_signing_in(running)
        _walk_signed_in(running)
        _walk_command_line(running)
        _walk_application(running)
        _walk_admin(running)


def _walk_signing_in(running: Running) -> None:
    running.person()
    running.go("/auth", "choose")
    running.go("/auth/nobody", "error")
    running.go("/auth/staff", "password")
    running.fill_in("alice", "wrong")
    running.look_at("password-wrong")
    running.go("/auth/device", "device")
    running.go("/auth/device?code=1", "device-wrong")


def _walk_signed_in(running: Running) -> None:
    chromium = running.chromium
    chromium.go(f"{running.url}/auth/staff")
    running.fill_in("alice")
    running.look_at("home")
    running.click("home.token_show")
    running.look_at("token")
    running.go("/auth/token/narrow", "narrow")
    chromium.fill(say("narrow.may"), "get,list pods")
    running.click("narrow.make")
    running.look_at("narrow-wrong")
    chromium.fill(say("narrow.may"), "get,lst pods -n team")
    running.click("narrow.make")
    running.look_at("narrowed")
    running.go("/auth/tokens", "api-tokens-none")
    chromium.fill(say("api_tokens.name"), "nightly backup")
    running.click("api_tokens.make")
    running.look_at("api-token-made")
    running.go("/auth/tokens", "api-tokens")
    running.click("api_tokens.revoke")
    running.go("/auth/sessions", "sessions")
    with running.gateway.http() as http:
        for answer, name in (("device.approve", "device-approved"), ("device.deny", "device-denied")):
            asked = http.post("/auth/device", data={"client": "ostiary on build-7"}).json()
            running.go(f"/auth/device?code={asked['user_code']}", "device-confirm")
            running.click(answer)
            running.look_at(name)
    running.go("/auth/logout", "sign-out")
    running.click("sign_out.submit")
    running.look_at("signed-out")


def _walk_command_line(running: Running) -> None:
    query = f"challenge={CHALLENGE}&port=8000&state=s&client=ostiary+login"
    running.go(f"/auth/cli?{query}", "command-line-choose")
    running.click("sign_in.with", "link", name="Acme accounts")
    running.look_at("command-line-password")
    running.go("/auth/cli/ended", "command-line-ended")
    running.go("/auth/cli/ended?error=access_denied", "command-line-refused")
    running.go("/auth/cli?port=1", "command-line-error")
    running.chromium.go(f"{running.url}/auth/staff")
    running.fill_in("alice")
    running.go(f"/auth/cli?{query}", "command-line")


def _walk_application(running: Running) -> None:
    running.person()
    running.go(f"{running.wiki_url}/", "application-choose")
    running.click("sign_in.with", "link", name="Acme accounts")
    running.fill_in("alice")
    running.look_at("application-forbidden")
    running.go(f"{running.wiki_url}/auth/logout", "application-sign-out")
    running.click("sign_out.submit")
    running.look_at("application-signed-out")


def _walk_admin(running: Running) -> None:
    running.person()
    running.chromium.go(f"{running.url}/auth/staff")
    running.fill_in("root")
    pages = ("", "/decisions", "/refusals", "/accounts", "/who-can", "/who-can?verb=get&resource=pods", "/replicas")
    for name in pages:
        running.go(f"/auth/admin{name}", f"admin{name.partition('?')[0].replace('/', '-')}")


def test_a_person_chooses_another_language_without_a_script_and_it_stays(running: Running) -> None:
    chromium = running.chromium
    chromium.person(javaScriptEnabled=False)
    query = f"challenge={CHALLENGE}&port=8000&state=s&client=ostiary+login"
    chromium.go(f"{running.url}/auth/cli?{query}")
    chromium.see("Choose how to sign in")
    chromium.click("link", "Deutsch")
    chromium.see("Wie möchten Sie sich")
    assert chromium.url == f"{running.url}/auth/cli?{query}", "the sign-in goes on"
    chromium.go(f"{running.url}/auth/staff")
    with speaking("de"):
        running.fill_in("alice")
        chromium.see(say("home.title"))
    assert "UTC" in chromium("text", of="time >> nth=0"), "without a script times are in UTC"
    chromium.click("link", "English")
    chromium.see("You are signed in")


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_sign_in_of_a_command_line_ends_on_a_page_of_the_gateway(running: Running, language: str) -> None:
    """A form of ours leads to the command line and on to us, and the code is in no address that stays."""
    chromium, end = running.chromium, datetime(2999, 1, 1, tzinfo=UTC)
    codes: list[str] = []

    def redeem(code: str) -> SignInGrant:
        codes.append(code)
        return SignInGrant(Secret("t"), end, Secret("r"), "s1", end, "alice")

    returning = Return(redeem, running.url)
    try:
        with speaking(language):
            running.person()
            query = f"challenge={CHALLENGE}&port={returning.port}&state={returning.state}&provider=staff"
            chromium.go(f"{running.url}/auth/cli?{query}")
            running.fill_in("alice")
            chromium.see(say("command_line.ended_title"))
            assert chromium.url == f"{running.url}/auth/cli/ended"
            assert returning.wait(30).user == "alice"
            assert len(codes) == 1
            assert chromium("problems") == []
            chromium("run", script="history.back()")
            chromium.see(say("command_line.title"))
            assert codes[0] not in chromium.url
    finally:
        returning.close()


def test_times_are_those_of_the_reader(running: Running) -> None:
    chromium = running.chromium
    chromium.person(timezoneId="Asia/Kolkata", locale="de-DE")
    chromium.go(f"{running.url}/auth/staff")
    with speaking("de"):
        running.fill_in("alice")
    shown = chromium("text", of="time >> nth=0")
    assert "MEZ" not in shown
    assert "GMT+5:30" in shown or "IST" in shown


def test_the_keyboard_reaches_everything_in_order_and_shows_where_it_is(running: Running) -> None:
    chromium = running.chromium
    chromium.person()
    chromium.go(f"{running.url}/auth")
    reached = []
    for _ in range(5):
        chromium.press("Tab")
        reached.append(chromium("focused")[1])
        outline = "return getComputedStyle(document.activeElement).outlineStyle"
        assert chromium("run", script=outline) != "none", reached
    assert reached == ["Skip to the content", "Sign in with Acme accounts", "Sign in with guests", "Help", "Deutsch"]
    chromium.go(f"{running.url}/auth")
    chromium.press("Tab", "Enter")
    assert chromium("run", script="return document.activeElement.id") == "main"


def test_the_logo_is_an_image_whose_scripts_do_not_run(running: Running) -> None:
    chromium = running.chromium
    chromium.person()
    chromium.go(f"{running.url}/auth")
    assert chromium("title") == "Sign in · Acme platform"
    assert chromium("run", script="return document.querySelector('img.logo').naturalWidth > 0")
    assert chromium("problems") == []
    assert "Acme platform team, room 4.12" in chromium.text


def test_the_pages_need_nothing_from_elsewhere(running: Running, tmp_path: Path) -> None:
    with running.gateway.http(headers=[("Accept", "text/html"), ("Accept-Language", "de")]) as http:
        answer = http.get("/auth")
    assert answer.headers["Content-Language"] == "de"
    assert "Accept-Language" in answer.headers["Vary"]
    assert 'src="http' not in answer.text
    with running.gateway.http(headers=[("Accept-Language", "de")]) as http:
        assert http.get("/auth/nobody").json()["message"] == "page not found", "programs get English"
