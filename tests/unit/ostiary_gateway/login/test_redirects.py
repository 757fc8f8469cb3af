"""Nobody can make /auth send a browser where they like: every value of a corpus, at every place that could steer it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from itertools import product
from urllib.parse import quote, urlsplit

import pytest

from ostiary.model import UserInfo
from ostiary_gateway.interfaces.identity import Challenge, LoginRequest, Redirect
from ostiary_gateway.login.responses import LoginAnswer
from tests.unit.ostiary_gateway.signing_in import URL, Browser, Make, Says

# How an address can begin that a browser, a proxy or a careless check reads as one of another host.
BEGINNINGS = (
    *("", "/", "//", "///", "////", "\\", "\\\\", "/\\", "\\/", "/\\/", "//\\", "\\\\/"),
    *("http:", "http:/", "http://", "https:", "https:/", "https://", "HTTPS://", "https:\\\\", "https:/\\", "hTTp:///"),
    *("/\t/", "/\n/", "/\r/", "\t//", " //", "\u00a0//", "//\u200b", "/\u2028/", "\x00//", "/\x0b/", "/%09/", "/%0a/"),
    *("/%2f", "/%2F/", "%2f%2f", "/%5c", "%5c%5c", "/%252f", "/.//", "/..//", "/./\\", "/auth//", "/auth/..//"),
    *("//auth@", "/auth\\@", "@", "#@", "?@", ";//", "..//", ".", "%E3%80%82", "/;@", "//;@", "/?//", "/#//"),
    *("javascript://", "javascript:alert(1)//", "data:text/html,", "vbscript:", "file://", "blob:", "view-source:"),
)
HOSTS = (
    "evil.test",
    "evil.test/auth/token",
    "evil.test%2fauth",
    "evil.test\r\nLocation: https://evil.test",
    "evil\u3002test",
    f"{urlsplit(URL).hostname}.evil.test",
    f"{urlsplit(URL).hostname}@evil.test",
    f"evil.test#{URL}",
    "127.0.0.1:8000@evil.test",
    "[::ffff:203.0.113.1]",
)
CORPUS = [beginning + host for beginning, host in product(BEGINNINGS, HOSTS)]
NAMES = ("rd", "next", "url", "redirect", "redirect_uri", "return_to", "continue", "goto", "callback", "state", "code")
CHALLENGE = "a" * 43
IDP = "https://idp.test/?state=s"


def allowed(location: str) -> bool:
    """Our own pages, the identity system, or the command line that asked, on its own machine."""
    if re.search(r"[\x00-\x20\x7f-\U0010ffff\\]", location):
        return False
    if location == IDP:
        return True
    if re.fullmatch(r"/auth(/(token|sessions|admin|device\?code=[B-Z]{8}))?", location):
        return True
    parts = urlsplit(location)
    return location.startswith("http://127.0.0.1:8000/callback?") and parts.netloc == "127.0.0.1:8000"


def check(answer: LoginAnswer, value: str) -> None:
    for name, header in answer.headers:
        assert "\r" not in header, value
        assert "\n" not in header, value
        if name.lower() in ("location", "refresh", "content-location", "link"):
            assert allowed(header), (value, header)
    for url in re.findall(r'http-equiv="refresh" content="0; url=([^"]*)"', answer.body.decode()):
        assert allowed(html.unescape(url)), (value, url)


Visit = tuple[str, str, dict[str, str], tuple[tuple[str, str], ...]]


def cli(**parts: str) -> str:
    asked = {"challenge": CHALLENGE, "port": "8000", "state": "s", "client": "c", **parts}
    return "/auth/cli?" + "&".join(f"{key}={quote(value, safe='')}" for key, value in asked.items())


# Each place gives (method, target, form, headers) for a value.
PLACES: dict[str, Callable[[str], list[Visit]]] = {
    "query of /auth": lambda value: [
        ("GET", "/auth?" + "&".join(f"{name}={quote(value, safe='')}" for name in NAMES), {}, ())
    ],
    "query of a provider": lambda value: [("GET", f"/auth/idp1?rd={quote(value, safe='')}", {}, ())],
    "query of a return": lambda value: [("GET", f"/auth/idp1/provider?rd={quote(value, safe='')}", {}, ())],
    "state of a return": lambda value: [("GET", f"/auth/idp1/provider?state={quote(value, safe='')}", {}, ())],
    "cli state": lambda value: [("GET", cli(state=value), {}, ())],
    "cli port": lambda value: [("GET", cli(port=value), {}, ()), ("GET", cli(port="8000" + value), {}, ())],
    "cli client": lambda value: [("GET", cli(client=value), {}, ())],
    "cli challenge": lambda value: [("GET", cli(challenge=value), {}, ())],
    "cli provider": lambda value: [("GET", cli(provider=value), {}, ())],
    "cli something else": lambda value: [("GET", cli(redirect_uri=value), {}, ()), ("GET", cli(host=value), {}, ())],
    "device code": lambda value: [("GET", f"/auth/device?code={quote(value, safe='')}", {}, ())],
    "path": lambda value: [("GET", f"/auth/{value}", {}, ()), ("GET", f"/auth/idp1/{value}", {}, ())],
    "form": lambda value: [("POST", "/auth/idp1", {"username": "a", "password": "b", "rd": value, "next": value}, ())],
    "host": lambda value: [
        ("GET", "/auth/idp1", {}, (("host", value), ("x-forwarded-host", value), ("forwarded", f"host={value}")))
    ],
    "referer": lambda value: [("GET", "/auth/token", {}, (("referer", value), ("x-original-url", value)))],
}


def test_the_corpus_is_large_and_holds_nothing_twice() -> None:
    assert len(CORPUS) == len(set(CORPUS)) >= 600


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("part", [pytest.param(5, id="a fifth"), pytest.param(1, id="all", marks=pytest.mark.slow)])
async def test_no_value_at_this_place_sends_a_browser_elsewhere(make: Make, place: str, part: int) -> None:
    """L3. In a fifth of the corpus, each value has its turn at three of the places."""
    signed_in = make(Says(UserInfo("alice"), UserInfo("alice")), starts_per_minute=1e9)
    signed_out = make(Says(Redirect(IDP), UserInfo("alice")), starts_per_minute=1e9)
    asked = make(Says(Challenge("Basic x"), UserInfo("alice")), starts_per_minute=1e9)
    person = Browser(signed_in)
    await person.sign_in()
    for value in CORPUS[list(PLACES).index(place) % part :: part]:
        for method, target, form, headers in PLACES[place](value):
            for browser in (person, Browser(signed_out), Browser(asked)):
                if method == "POST":
                    check(await browser.post(target, form), value)
                else:
                    check(await browser.get(target, headers=headers), value)


async def test_a_provider_is_told_where_to_return_to_by_the_configuration_alone(make: Make) -> None:
    """L3, L6."""
    provider = Says(Redirect(IDP))
    gateway = make(provider)
    for value in CORPUS[::7]:
        headers = (("host", value), ("x-forwarded-host", value), ("x-forwarded-proto", value))
        await gateway.login.handle(LoginRequest("GET", "/auth", headers=headers, remote_address=value))
    assert {request.callback_url for _, request in provider.asked} == {f"{URL}/auth/idp1/provider"}
