"""Which clusters are offered to whom: as JSON, as a kubeconfig, and on the page."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ostiary.core.scopes import narrow, parse_scope
from ostiary.model import UserInfo
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.authorization.cluster_access import ClusterUse
from ostiary_gateway.config.upstream import Offered
from ostiary_gateway.login.clusters import ClusterOffer, Clusters, offers
from ostiary_gateway.providers.kubernetes.attributes import KubernetesAttributes
from ostiary_gateway.proxy.routes import Routes
from tests.unit.ostiary_gateway.authorization.providers import PASS, AtOnce, Slow, raises
from tests.unit.ostiary_gateway.login.pages.safe_page import assert_is_safe_page
from tests.unit.ostiary_gateway.proxy.test_routes import upstream
from tests.unit.ostiary_gateway.signing_in import URL, Browser, Make, Revalidating, body, text_of

EVERY = (
    ClusterOffer("dev", "Development", f"{URL}/dev"),
    ClusterOffer("prod", "Production <Frankfurt>", "https://prod.example.com"),
)


class Members(AtOnce):
    """A policy for alice, and nobody else."""

    def __init__(self) -> None:
        super().__init__(PASS)

    def gives_rights(self, user: UserInfo) -> bool:
        return user.username == "alice"


def policy(*upstreams: str, provider: Any = None) -> Authorizer:
    """Alice may do something at *upstreams*."""
    return Authorizer([Link("members", provider or Members(), upstreams=frozenset(upstreams))])


# --- where they are ---


def cluster(name: str, **options: Any) -> Any:
    return upstream(name, mapper=KubernetesAttributes(), **options)


@pytest.mark.parametrize(
    ("external_url", "servers"),
    [
        (
            "https://gateway.test:8443",
            {
                "dev": "https://gateway.test:8443/dev",
                "prod": "https://prod.test:8443",
                "v6": "https://[2001:db8::1]:8443",
                "both": "https://gateway.test:8443/both",
            },
        ),
        (
            "https://[2001:db8::2]",
            {
                "dev": "https://[2001:db8::2]/dev",
                "prod": "https://prod.test",
                "v6": "https://[2001:db8::1]",
                "both": "https://other.test/both",
            },
        ),
    ],
)
async def test_each_is_found_where_requests_lead_to_it(external_url: str, servers: dict[str, str]) -> None:
    routes = Routes(
        [
            cluster("dev", prefix="/dev"),
            cluster("prod", hosts=("prod.test",)),
            cluster("v6", hosts=("[2001:db8::1]",)),
            cluster("both", hosts=("other.test", "gateway.test"), prefix="/both"),
            upstream("shop", prefix="/shop"),
            cluster("secret", prefix="/secret", offered=Offered.NEVER),
        ]
    )
    assert {offer.name: offer.server for offer in offers(routes, external_url)} == servers


async def test_a_cluster_that_another_upstream_hides_is_not_offered() -> None:
    routes = Routes([cluster("hidden"), cluster("first", hosts=("gateway.test",), display_name="The first")])
    assert [(each.name, each.label) for each in offers(routes, "https://gateway.test")] == [("first", "The first")]
    assert [each.server for each in offers(routes, "https://gateway.test", port=9443)] == ["https://gateway.test:9443"]


# --- whose they are ---


async def test_only_those_are_offered_that_the_user_can_use() -> None:
    clusters = Clusters(EVERY, policy("dev"))
    offered = await clusters.of(UserInfo("alice"))
    assert [(each.name, each.use) for each in offered.clusters] == [("dev", ClusterUse.GRANTED)]
    assert not offered.incomplete
    assert not (await clusters.of(UserInfo("bob"))).clusters


async def test_one_that_is_offered_to_everybody_is_said_to_be_unsure() -> None:
    every = [ClusterOffer("dev", "dev", URL, Offered.EVERYBODY), ClusterOffer("prod", "prod", URL)]
    offered = await Clusters(every, policy("dev", "prod")).of(UserInfo("bob"))
    assert [(each.name, each.use) for each in offered.clusters] == [("dev", ClusterUse.UNKNOWN)]


async def test_about_what_cannot_be_asked_nothing_is_said_but_that() -> None:
    clusters = Clusters(EVERY, policy("prod", provider=Slow(raises(OSError("gone")))))
    offered = await clusters.of(UserInfo("alice"))
    assert (offered.clusters, offered.incomplete) == ((), True)


@pytest.mark.parametrize(
    ("scope", "names"),
    [("get pods -A --upstream dev", ["dev"]), ("get pods -n team", ["dev", "prod"]), ("get pods -A --upstream x", [])],
)
async def test_with_a_narrowed_token_only_where_it_can_be_used(scope: str, names: list[str]) -> None:
    delegation = narrow(None, parse_scope(scope))
    offered = await Clusters(EVERY, policy("dev", "prod")).of(UserInfo("alice"), delegation)
    assert [each.name for each in offered.clusters] == names


# --- who asks ---


async def signed_in(make: Make, *upstreams: str, name: str = "alice") -> Browser:
    browser = Browser(make(Revalidating(UserInfo(name)), clusters=Clusters(EVERY, policy(*upstreams))))
    await browser.sign_in()
    return browser


def bearer(token: str) -> dict[str, Any]:
    return {"headers": (("authorization", f"Bearer {token}"),)}


async def test_a_program_is_told_the_clusters_of_its_token(make: Make) -> None:
    gateway = make(Revalidating(UserInfo("alice")), clusters=Clusters(EVERY, policy("dev", "prod")))
    token = body(await gateway.get("/auth"))["token"]
    assert body(await gateway.get("/auth/upstreams", **bearer(token))) == {
        "gateway": URL,
        "upstreams": [
            {"name": "dev", "label": "Development", "server": f"{URL}/dev", "access": "granted"},
            {
                "name": "prod",
                "label": "Production <Frankfurt>",
                "server": "https://prod.example.com",
                "access": "granted",
            },
        ],
        "incomplete": False,
    }
    kubeconfig = yaml.safe_load((await gateway.get("/auth/kubeconfig/all", **bearer(token))).body)
    assert [each["name"] for each in kubeconfig["contexts"]] == ["gw.example.com/dev", "gw.example.com/prod"]


@pytest.mark.parametrize("path", ["/auth/upstreams", "/auth/kubeconfig/all"])
async def test_who_is_nobody_is_told_nothing(make: Make, path: str) -> None:
    gateway = make(Revalidating(UserInfo("alice")), clusters=Clusters(EVERY, policy("dev", "prod")))
    for parts in ({}, bearer("ost_unknown")):
        answer = await gateway.get(path, **parts)
        assert answer.status == 401
        assert answer.header("WWW-Authenticate")
        assert b"dev" not in answer.body
    assert (await gateway.get(path, method="DELETE")).status == 405


@pytest.mark.parametrize("path", ["/auth/upstreams", "/auth/kubeconfig/all"])
async def test_a_browser_may_load_it_and_a_script_of_an_upstream_may_not(make: Make, path: str) -> None:
    browser = await signed_in(make, "dev")
    loaded = await browser.get(path, headers=(("sec-fetch-mode", "navigate"),))
    assert loaded.status == 200
    assert b"/dev" in loaded.body
    assert b"prod" not in loaded.body
    assert (await browser.get(path, headers=(("sec-fetch-mode", "cors"),))).status == 401


async def test_who_may_use_nothing_gets_an_empty_list_and_no_kubeconfig(make: Make) -> None:
    browser = await signed_in(make, "dev", "prod", name="bob")
    assert body(await browser.get("/auth/upstreams"))["upstreams"] == []
    assert (await browser.get("/auth/kubeconfig/all")).status == 404
    page = text_of(await browser.get("/auth/token"))
    assert "Development" not in page
    assert "prod" not in page


# --- the page ---


async def test_the_page_lists_the_clusters_and_the_command_for_all(make: Make) -> None:
    answer = await (await signed_in(make, "dev", "prod")).get("/auth/token")
    assert_is_safe_page(answer)
    page = text_of(answer)
    assert "Development" in page
    assert "Production &lt;Frankfurt&gt;" in page
    assert "kubectl --context gw.example.com/prod get pods" in page
    assert f"ostiary kubeconfig --server {URL} --all --merge" in page
    assert 'href="/auth/kubeconfig/all"' in page


async def test_one_cluster_at_the_gateways_own_url_needs_no_list(make: Make) -> None:
    clusters = Clusters([ClusterOffer("dev", "Development", URL)], policy("dev"))
    browser = Browser(make(Revalidating(UserInfo("alice")), clusters=clusters))
    await browser.sign_in()
    page = text_of(await browser.get("/auth/token"))
    assert "Development" not in page
    assert 'href="/auth/kubeconfig"' in page
    assert f"ostiary kubeconfig --server {URL} --merge" in page


async def test_the_page_says_that_some_clusters_could_not_be_checked(make: Make) -> None:
    clusters = Clusters(EVERY, policy("dev", provider=Slow(raises(OSError("gone")))))
    browser = Browser(make(Revalidating(UserInfo("alice")), clusters=clusters))
    await browser.sign_in()
    answer = await browser.get("/auth/token")
    assert_is_safe_page(answer)
    assert "Some clusters could not be checked" in text_of(answer)
