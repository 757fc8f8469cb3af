"""The administration pages: open to those whom the policy allows, and to nobody else."""

from __future__ import annotations

import re
from typing import Any

from ostiary.errors import ProviderError
from ostiary.model import Attributes, Decision, RequestInfo, UserInfo, Verdict
from ostiary_gateway.authorization.cached_provider import Link
from ostiary_gateway.authorization.chain import Authorizer
from ostiary_gateway.config.provider import OnError
from ostiary_gateway.replicas.registry import Replicas
from ostiary_gateway.replicas.replica import Replica
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.login.pages.safe_page import assert_is_safe_page
from tests.unit.ostiary_gateway.signing_in import (
    Browser,
    Gateway,
    Make,
    Says,
    body,
    hidden,
    text_of,
)


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
    ("root", "list", "replicas"),
    ("root", "watch", "decisions"),
    ("root", "list", "serviceaccounts"),
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
    assert "&lt;bob&gt;" in text_of(listed)
    assert "get secrets &lt;s&gt; in team" in text_of(listed)
    explained = await browser.get(f"/auth/admin/refusals?id={number}")
    assert_is_safe_page(explained)
    assert "cluster" in text_of(explained)
    assert "no rule &lt;b&gt;" in text_of(explained)
    assert (await browser.get("/auth/admin/refusals?id=unknown")).status == 404


class FailsForBob(Policy):
    async def authorize(self, attributes: Attributes) -> Decision:
        if attributes.user.username == "bob":
            raise ProviderError("it cannot be asked", cause="connection <refused>")
        return await super().authorize(attributes)


class DeniesTheRest(Policy):
    async def authorize(self, attributes: Attributes) -> Decision:
        return Decision(Verdict.DENY, "never <b>")


async def test_a_policy_that_could_not_be_asked_is_told_among_the_steps(make: Make, clock: FakeClock) -> None:
    links = [Link("away", FailsForBob(*ALL), OnError.NO_OPINION), Link("rest", DeniesTheRest())]
    gateway = make(Says(UserInfo("root")), authorizer=Authorizer(links, clock=clock))
    assert gateway.authorizer is not None
    refused = Attributes(UserInfo("bob"), RequestInfo("get", "GET", "/x"))
    number = gateway.authorizer.record(refused, await gateway.authorizer.authorize(refused))
    browser = Browser(gateway)
    await browser.sign_in()
    explained = await browser.get(f"/auth/admin/refusals?id={number}")
    assert_is_safe_page(explained)
    (error,) = re.findall(r"<dt>Unavailable</dt><dd>([^<]*)</dd>", text_of(explained))
    assert error.endswith("connection &lt;refused&gt;")
    assert "never &lt;b&gt;" in text_of(explained)


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
    for path in (
        "/auth/admin/refusals",
        "/auth/admin/refusals?id=x",
        "/auth/admin/who-can?verb=get&path=/",
        "/auth/admin/replicas",
        "/auth/admin/decisions",
        "/auth/admin/accounts",
    ):
        assert (await browser.get(path)).status == 403
    form = {"form_token": await browser.form_token(), "session": victim["session"]}
    assert (await browser.post("/auth/admin", form)).status == 403
    assert await gateway.tokens.find(victim["token"]) is not None
    plain = Browser(with_policy(make, Says(UserInfo("mallory")), *ALL, clock=clock))
    assert "/auth/admin" not in text_of(await plain.sign_in())
    assert (await plain.get("/auth/admin")).status == 403


async def test_replicas_are_shown_to_those_who_may_list_them(make: Make, clock: FakeClock) -> None:
    async def own() -> Replica:
        return Replica(id="a", host="<node>", version="1.0", configuration="c0ffee", configuration_key="k")

    authorizer = Authorizer([Link("cluster", Policy(("root", "list", "replicas")))], clock=clock)
    replicas = Replicas(MemoryTokenStore(clock=clock), own)
    browser = Browser(make(Says(UserInfo("root")), authorizer=authorizer, replicas=replicas))
    assert 'href="/auth/admin"' in text_of(await browser.sign_in()), "one of the pages is enough to enter"
    page = await browser.get("/auth/admin/replicas")
    assert_is_safe_page(page)
    assert "&lt;node&gt;" in text_of(page)
    assert "One replica" in text_of(page)
    assert (await browser.get("/auth/admin")).status == 403
