"""Signing in at a certified OpenID Connect issuer, through a gateway and without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import trustme

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Groups, Identity
from ostiary_gateway.interfaces.identity import Identified, LoginRequest, Redirect
from ostiary_gateway.providers.client_certificate import ClientCertificateIdentity
from ostiary_gateway.providers.oidc.claims import ClaimNames
from ostiary_gateway.providers.oidc.identity import OidcIdentity
from ostiary_gateway.sessions.authentication_context import AUTH_TIME, context_of
from tests.support.gateway import InProcessGateway, Site, role
from tests.support.oidc_provider import OidcProvider, installed

CALLBACK = "https://gateway.example.com/auth/acme/provider"
SECRET = "s3cret:with+signs%"
CLIENTS: list[dict[str, Any]] = [
    {"client_id": "gate:way", "client_secret": SECRET, "redirect_uris": [CALLBACK]},
    {
        "client_id": "post",
        "client_secret": SECRET,
        "redirect_uris": [CALLBACK],
        "token_endpoint_auth_method": "client_secret_post",
    },
    {
        "client_id": "offline",
        "client_secret": SECRET,
        "redirect_uris": [CALLBACK],
        "grant_types": ["authorization_code", "refresh_token"],
    },
    {
        "client_id": "pushed",
        "client_secret": SECRET,
        "redirect_uris": [CALLBACK],
        "grant_types": ["authorization_code", "refresh_token"],
        "require_pushed_authorization_requests": True,
        "require_auth_time": True,
    },
    {"client_id": "public", "redirect_uris": [CALLBACK], "token_endpoint_auth_method": "none"},
]
ACCOUNTS = {
    "alice": {"email": "alice@example.com", "email_verified": True, "groups": ["developers", "drinkers"]},
    "mallory": {"email": "alice@example.com", "email_verified": False},
}
PEOPLE = ClaimNames(username="email", uid="sub", groups="groups")
VISIT = LoginRequest("GET", "/auth", callback_url=CALLBACK)

pytestmark = pytest.mark.needs("node", "npm")


@pytest.fixture(scope="module")
def folder() -> Path:
    return installed()


@pytest.fixture(scope="module")
def issuer(folder: Path) -> Iterator[OidcProvider]:
    with OidcProvider.running(folder, clients=CLIENTS, accounts=ACCOUNTS) as running:
        yield running


@pytest.fixture
def make(issuer: OidcProvider, tmp_path: Path) -> Callable[..., OidcIdentity]:
    (tmp_path / "secret").write_text(SECRET)

    def make(**settings: Any) -> OidcIdentity:
        given: dict[str, Any] = {
            "issuer": issuer.url,
            "client_id": "gate:way",
            "client_secret_file": tmp_path / "secret",
            "scopes": ("email", "groups"),
            "claims": PEOPLE,
        }
        return OidcIdentity(**{**given, **settings})

    return make


def returning(back: str, redirect: Redirect) -> LoginRequest:
    query = tuple(parse_qsl(urlsplit(back).query, keep_blank_values=True))
    return replace(VISIT, path="/auth/acme/provider", query=query, remembered=redirect.remember)


async def come_back(provider: OidcIdentity, issuer: OidcProvider, login: str) -> LoginRequest:
    redirect = await provider.handle_client(VISIT)
    return returning(await issuer.sign_in(redirect.url, login), redirect)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"client_id": "public", "client_secret_file": None},
        {"client_id": "post", "client_authentication": "client_secret_post"},
        {"user_info": True},
    ],
    ids=str,
)
async def test_a_person_signs_in(make: Callable[..., OidcIdentity], issuer: OidcProvider, settings: Any) -> None:
    """S1, S29, L2."""
    provider = make(**settings)
    identified = await provider.handle_provider(await come_back(provider, issuer, "alice"))
    assert replace(identified.user, extra=()) == UserInfo("alice@example.com", "alice", ("developers", "drinkers"))
    assert [key for key, _ in identified.user.extra] == [AUTH_TIME], "this issuer says when, and not how"
    await provider.close()


async def test_a_code_is_good_once_and_for_its_own_login(
    make: Callable[..., OidcIdentity], issuer: OidcProvider
) -> None:
    """L1, L2."""
    provider = make()
    first, second = [await come_back(provider, issuer, "alice") for _ in range(2)]
    with pytest.raises(LoginRefused):
        await provider.handle_provider(replace(first, remembered=second.remembered))
    smuggled = (("code", dict(first.query)["code"]), *(pair for pair in second.query if pair[0] != "code"))
    with pytest.raises(LoginRefused, match="start again"):
        await provider.handle_provider(replace(second, query=smuggled))
    third = await come_back(provider, issuer, "alice")
    await provider.handle_provider(third)
    with pytest.raises(LoginRefused, match="start again"):
        await provider.handle_provider(third)
    await provider.close()


async def test_who_says_no_or_has_an_unverified_address_is_refused(
    make: Callable[..., OidcIdentity], issuer: OidcProvider
) -> None:
    """L7."""
    provider = make()
    redirect = await provider.handle_client(VISIT)
    with pytest.raises(LoginRefused, match=r"access_denied .*aborted"):
        await provider.handle_provider(returning(await issuer.decline(redirect.url), redirect))
    with pytest.raises(LoginRefused, match="not verified"):
        await provider.handle_provider(await come_back(provider, issuer, "mallory"))
    await provider.close()


async def test_when_the_person_signed_in_is_known_and_stays_so_through_a_renewal(
    make: Callable[..., OidcIdentity], issuer: OidcProvider
) -> None:
    """The client takes pushed requests only, so this is what is sent."""
    scopes = ("email", "groups", "offline_access")
    provider = make(client_id="pushed", scopes=scopes, prompt="consent", response_mode="query")
    before = datetime.now(UTC).replace(microsecond=0)
    identified = await provider.handle_provider(await come_back(provider, issuer, "alice"))
    assert isinstance(identified, Identified)
    assert identified.kept is not None
    signed_in = context_of(identified.user).auth_time
    assert signed_in is not None
    assert before <= signed_in <= datetime.now(UTC)
    again = await provider.ask_again(identified.user, identified.kept)
    assert context_of(again.user).auth_time == signed_in
    await provider.close()


@pytest.mark.parametrize("pushed", ["auto", "never"])
async def test_the_redirect_uri_is_tried_without_a_person(make: Callable[..., OidcIdentity], pushed: str) -> None:
    provider = make(pushed_authorization=pushed)
    assert await provider.probe_redirect_uri(CALLBACK)
    other = CALLBACK.replace("acme", "other")
    with pytest.raises(ProviderError) as rejected:
        await provider.probe_redirect_uri(other)
    assert "status 400" in str(rejected.value.cause)
    assert rejected.value.hint == f"register the redirect URI {other} for this client at the issuer"
    await provider.close()


# --- through a gateway ---


def served(site: Site, provider: Any, name: str = "acme", **sections: Any) -> AbstractContextManager[InProcessGateway]:
    """A gateway with *provider* for identity and for groups, and a policy that mentions some of them."""
    site.policy(role("team", "pods", Group="developers"), role("", "nodes", Group="operators"))

    def change(config: GatewayConfig) -> GatewayConfig:
        identity = Identity(name, "oidc", provider)
        return replace(
            config, identity=(identity,), groups=(Groups("teams", "oidc", provider, identities=(name,), own=True),)
        )

    return site.in_process(change, **sections)


async def test_the_gateway_attests_the_groups_that_matter(
    make: Callable[..., OidcIdentity], issuer: OidcProvider, ca: trustme.CA, tmp_path: Path
) -> None:
    """S29, S36, L1, L6."""
    site = Site(tmp_path / "site", ca)
    with (
        served(site, make(), externalURL="https://gateway.example.com") as gateway,
        gateway.http(headers=[("Accept", "application/json")]) as browser,
    ):
        away = browser.get("/auth")
        back = urlsplit(await issuer.sign_in(away.headers["Location"], "alice"))
        answer = browser.get(f"{back.path}?{back.query}")
        assert answer.status_code == 200, answer.text
        assert answer.json()["user"] == "alice@example.com"
        assert answer.json()["groups"] == ["developers"]
        assert dict(parse_qsl(back.query))["code"] not in answer.text
        again = browser.get(f"{back.path}?{back.query}")
        assert again.status_code == 403
        assert SECRET not in site.audit_log.read_text()


async def test_the_issuer_is_asked_at_each_renewal_with_its_refresh_token(
    make: Callable[..., OidcIdentity], folder: Path, ca: trustme.CA, tmp_path: Path
) -> None:
    """A group that was taken away is gone with the next token, and a disabled account is out."""
    site = Site(tmp_path / "site", ca)
    with OidcProvider.running(folder, clients=CLIENTS, accounts=ACCOUNTS) as issuer:
        scopes = ("email", "groups", "offline_access")
        provider = make(issuer=issuer.url, client_id="offline", scopes=scopes, prompt="consent")
        with (
            served(site, provider, externalURL="https://gateway.example.com") as gateway,
            gateway.http(headers=[("Accept", "application/json")]) as browser,
        ):
            away = browser.get("/auth")
            back = urlsplit(await issuer.sign_in(away.headers["Location"], "alice"))
            told = browser.get(f"{back.path}?{back.query}").json()
            assert told["groups"] == ["developers"]
            alice = {"email": "alice@example.com", "email_verified": True}
            for groups, expected in ((["operators", "developers"], {"operators", "developers"}), ([], set())):
                issuer.change_accounts({"alice": {**alice, "groups": groups}})
                told = browser.post("/auth/renew", data={"renewal_token": told["renewal_token"]}).json()
                assert set(told["groups"]) == expected
            issuer.change_accounts({"alice": {**alice, "disabled": True}})
            refused = browser.post("/auth/renew", data={"renewal_token": told["renewal_token"]})
            assert refused.status_code == 401
            assert gateway.get("/auth/whoami", told["token"]).status_code == 401


def test_a_client_certificate_signs_in_at_the_listener(ca: trustme.CA, tmp_path: Path) -> None:
    """S28, S41."""
    site = Site(tmp_path / "site", ca)
    leaf = ca.issue_cert("alice@example.test", common_name="alice", organization_name="developers")
    tls = {"certificate": "server.pem", "key": "server.key", "clientCA": "ca.pem"}
    with served(site, ClientCertificateIdentity(), "machines", listen={"tls": tls}) as gateway:
        assert gateway.get("/auth").status_code == 403
        leaf.configure_cert(gateway.trust)
        said = gateway.get("/auth", headers={"Accept": "application/json"}).json()
        assert (said["user"], said["groups"]) == ("alice", ["developers"])
