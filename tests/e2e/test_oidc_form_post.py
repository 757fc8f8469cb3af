"""In a real browser, with a certified issuer: the request is pushed, and a form brings the code back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import trustme

from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.providers.oidc.identity import OidcIdentity
from tests.support.chromium import Chromium
from tests.support.gateway import Site
from tests.support.oidc_provider import OidcProvider, installed
from tests.support.ports import free_port

pytestmark = [pytest.mark.needs("chromium", "node", "npm"), pytest.mark.timeout(300)]
SECRET = "the-secret-of-the-gateway"


@dataclass
class Running:
    chromium: Chromium
    url: str
    site: Site
    issuer: OidcProvider


@pytest.fixture(scope="module")
def running(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("gateway")
    site, port = Site(folder / "site", ca), free_port()
    url = f"https://localhost:{port}"
    (folder / "secret").write_text(SECRET)
    clients = [
        {
            "client_id": "gateway",
            "client_secret": SECRET,
            "redirect_uris": [f"{url}/auth/acme/provider"],
            # The issuer itself refuses a request that the browser carries, and says when the person signed in.
            "require_pushed_authorization_requests": True,
            "require_auth_time": True,
        }
    ]
    with (
        OidcProvider.running(installed(), clients=clients, accounts={"alice": {}}) as issuer,
        Chromium.running() as chromium,
    ):
        provider = OidcIdentity(
            issuer=issuer.url,
            client_id="gateway",
            client_secret_file=folder / "secret",
            response_mode="form_post",
        )

        def change(config: GatewayConfig) -> GatewayConfig:
            return replace(config, identity=(Identity("acme", "oidc", provider),))

        with site.in_process(change, listen={"address": f"127.0.0.1:{port}"}, externalURL=url):
            yield Running(chromium, url, site, issuer)


def test_a_person_signs_in_with_a_pushed_request_and_comes_back_with_a_form(running: Running) -> None:
    chromium = running.chromium
    chromium.person()
    chromium.go(f"{running.url}/auth")
    chromium("fill_in", placeholder="Enter any login", text="alice")
    chromium("fill_in", placeholder="and password", text="any")
    chromium.click("button", "Sign-in")
    chromium.see("Authorize")
    chromium.click("button", "Continue")
    chromium.see("You are signed in")
    assert "alice" in chromium.text
    # The page is reached without the code in its address: nothing of it is in the browser's history.
    assert "code=" not in chromium.url
    assert "code=" not in running.site.audit_log.read_text()


def test_the_address_that_the_browser_is_sent_to_tells_nothing_of_the_request(running: Running, ca: trustme.CA) -> None:
    with httpx2.Client(verify=False, trust_env=False) as browser:  # only the address is looked at
        away = browser.get(f"{running.url}/auth", headers={"Accept": "text/html"})
    there = away.headers["Location"]
    assert there.startswith(f"{running.issuer.url}/auth?")
    assert set(parse_qs(urlsplit(there).query)) == {"client_id", "request_uri"}


def test_a_code_in_an_address_is_not_taken(running: Running) -> None:
    """Somebody else's link: the gateway asked for a form, so nothing in an address is an answer."""
    chromium = running.chromium
    chromium.person()
    chromium.go(f"{running.url}/auth")
    chromium.go(f"{running.url}/auth/acme/provider?code=guessed&state=guessed")
    chromium.see("start again")
