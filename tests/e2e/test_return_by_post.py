"""In a real browser: an identity system on another site sends people back with a form, and so does an attacker."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from html import escape
from urllib.parse import urlencode

import pytest
import trustme

from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import LoginRequest, Redirect
from tests.support.chromium import Chromium
from tests.support.gateway import Site
from tests.support.http_server import HttpServer, Request, Response
from tests.support.ports import free_port

pytestmark = [pytest.mark.needs("chromium", "node", "npm"), pytest.mark.timeout(300)]


class FormPost:
    """A provider whose identity system answers with a form, as SAML's POST binding and form_post do."""

    returns_by_post = True

    def __init__(self, page: str) -> None:
        self.page = page

    async def handle_client(self, request: LoginRequest) -> Redirect:
        state = secrets.token_urlsafe(16)
        query = urlencode({"back": request.callback_url, "state": state})
        return Redirect(f"{self.page}/sso?{query}", remember=(("begun", "yes"),))

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        if request.method != "POST" or dict(request.remembered) != {"begun": "yes"}:
            raise LoginRefused("this login did not begin here: begin again")
        return UserInfo(dict(request.form)["assertion"])


@contextmanager
def identity_system() -> Iterator[tuple[str, dict[str, str]]]:
    """A page at another site; what it posts back by itself can be changed."""
    posts = {"assertion": "alice"}

    def page(request: Request) -> Response:
        fields = {"state": request.query.get("state", ""), **posts}
        inputs = "".join(f'<input name="{name}" value="{escape(value)}">' for name, value in fields.items())
        form = f'<form method="post" action="{escape(request.query["back"])}">{inputs}</form>'
        body = f"<!doctype html><title>idp</title>{form}<script>document.forms[0].submit()</script>"
        return Response(200, body.encode(), {"Content-Type": "text/html"})

    with HttpServer(page).running() as server:
        yield server.url, posts


@dataclass
class Running:
    chromium: Chromium
    url: str
    page: str
    posts: dict[str, str]


@pytest.fixture(scope="module")
def running(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    site = Site(tmp_path_factory.mktemp("gateway"), ca)
    port = free_port()
    url = f"https://localhost:{port}"
    with identity_system() as (page, posts), Chromium.running() as chromium:

        def change(config: GatewayConfig) -> GatewayConfig:
            return replace(config, identity=(Identity("saml", "sample", FormPost(page)),))

        with site.in_process(change, listen={"address": f"127.0.0.1:{port}"}, externalURL=url):
            yield Running(chromium, url, page, posts)


def test_a_person_is_signed_in_by_a_form_of_another_site(running: Running) -> None:
    chromium = running.chromium
    chromium.person()
    chromium.go(f"{running.url}/auth")
    chromium.see("You are signed in")
    assert "alice" in chromium.text
    assert chromium.url == f"{running.url}/auth/token"


@pytest.mark.parametrize("under_way", [False, True], ids=["began nothing", "has a login under way"])
def test_an_attackers_page_signs_nobody_in(running: Running, under_way: bool) -> None:
    """Its form is posted by the victim's own browser, with an assertion and a state of the attacker's own login."""
    chromium = running.chromium
    chromium.person()
    attack = urlencode({"back": f"{running.url}/auth/saml/provider", "state": "of-the-attackers-own-login"})
    if under_way:
        # The victim is sent to the identity system and has not come back yet.
        running.posts["state"] = "the victim has not answered"
        chromium.go(f"{running.url}/auth")
        chromium.see("start again")
        running.posts.pop("state")
    running.posts["assertion"] = "mallory"
    try:
        chromium.go(f"{running.page}/sso?{attack}")
        chromium.see("start again")
    finally:
        running.posts["assertion"] = "alice"
    assert not [cookie for cookie in chromium("cookies") if cookie["name"].endswith("-session")]
