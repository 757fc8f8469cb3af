"""The providers' paths: who comes back is the one who left, to the same provider, for the same step."""

from __future__ import annotations

import pytest

from ostiary.interfaces.identity import Redirect
from ostiary.model import UserInfo
from ostiary.plugins.single_user.identity import SingleUserIdentity
from ostiary.testing import FakeClock
from tests.unit.gateway.signing_in import (
    URL,
    Make,
    Says,
    SaysGroups,
    body,
    cookie_of,
    members,
    nobody_came_in,
)


async def test_a_one_request_provider_refuses_every_return(make: Make) -> None:
    """S28."""
    gateway = make(SingleUserIdentity(username="alice"))
    answer = await gateway.get("/auth/provider?code=1")
    assert answer.status == 403
    await nobody_came_in(gateway, answer)


async def test_the_two_request_flow(make: Make) -> None:
    """S10, S20, S29."""
    provider = Says(Redirect("https://idp.test/login?state=abc"), UserInfo("alice"))
    gateway = make(provider)
    away = await gateway.get()
    assert (away.status, away.header("Location")) == (302, "https://idp.test/login?state=abc")
    assert await gateway.tokens_kept() == 0
    back = await gateway.get("/auth/provider?state=abc&code=1", cookie=cookie_of(away))
    assert body(back)["user"] == "alice"
    assert "Max-Age=0" in (back.header("Set-Cookie") or "")


async def test_the_cookie_is_for_this_host_and_out_of_reach_of_scripts(make: Make) -> None:
    away = await make(Says(Redirect("https://idp.test/"))).get()
    cookie = away.header("Set-Cookie") or ""
    assert cookie.startswith("__Host-ostiary-login=")
    assert all(part in cookie for part in ("Path=/", "HttpOnly", "Secure", "SameSite=Lax", "Max-Age=600"))
    plain = await make(Says(Redirect("https://idp.test/")), external_url="http://127.0.0.1:8443").get()
    assert "Secure" not in (plain.header("Set-Cookie") or "")


async def test_a_login_is_finished_by_the_browser_that_began_it(make: Make) -> None:
    """S29."""
    gateway = make(Says(Redirect("https://idp.test/?state=abc"), UserInfo("alice")))
    away = await gateway.get()
    for cookie in ("", "__Host-ostiary-login=guessed", "other=1", 'x="'):
        answer = await gateway.get("/auth/provider?state=abc", cookie=cookie)
        assert answer.status == 403
        await nobody_came_in(gateway, answer)
    assert (await gateway.get("/auth/provider?state=abc", cookie=cookie_of(away))).status == 200


@pytest.mark.parametrize("query", ["", "state=other", "state=abc&state=abc", "state=abc&state=other"])
async def test_nobody_can_finish_a_login_of_his_own_in_another_browser(make: Make, query: str) -> None:
    gateway = make(Says(Redirect("https://idp.test/?state=abc"), UserInfo("mallory")))
    away = await gateway.get()
    answer = await gateway.get(f"/auth/provider?{query}", cookie=cookie_of(away))
    assert answer.status == 403
    await nobody_came_in(gateway, answer)


async def test_a_flow_is_good_for_one_return_and_ten_minutes(make: Make, clock: FakeClock) -> None:
    gateway = make(Says(Redirect("https://idp.test/?state=abc"), UserInfo("alice")))
    away = await gateway.get()
    assert (await gateway.get("/auth/provider?state=abc", cookie=cookie_of(away))).status == 200
    assert (await gateway.get("/auth/provider?state=abc", cookie=cookie_of(away))).status == 403
    away = await gateway.get()
    clock.advance(minutes=10)
    assert (await gateway.get("/auth/provider?state=abc", cookie=cookie_of(away))).status == 403


async def test_users_of_different_providers_are_never_the_same(make: Make) -> None:
    """S31."""
    gateway = make(Says(UserInfo("alice")), Says(UserInfo("alice")))
    assert body(await gateway.get("/auth/idp1"))["user"] == "idp1:alice"
    assert body(await gateway.get("/auth/idp2"))["user"] == "idp2:alice"


async def test_each_provider_has_its_own_way_back(make: Make) -> None:
    """S31."""
    one, two = (Says(Redirect(f"https://idp{n}.test/?state=s"), UserInfo("alice")) for n in (1, 2))
    gateway = make(one, two)
    away = await gateway.get("/auth/idp2")
    assert two.asked[0][1].callback_url == f"{URL}/auth/idp2/provider"
    wrong = await gateway.get("/auth/idp1/provider?state=s", cookie=cookie_of(away))
    assert wrong.status == 403
    await nobody_came_in(gateway, wrong)
    away = await gateway.get("/auth/idp2")
    assert body(await gateway.get("/auth/idp2/provider?state=s", cookie=cookie_of(away)))["user"] == "idp2:alice"


async def test_with_one_provider_its_name_may_be_used_or_left_out(make: Make) -> None:
    """S31."""
    gateway = make(Says(UserInfo("alice")))
    assert (await gateway.get("/auth")).status == (await gateway.get("/auth/idp1")).status == 200


async def test_groups_may_need_a_second_request_too(make: Make) -> None:
    """S32, S33."""
    first = SaysGroups(members("operators"))
    second = SaysGroups(Redirect("https://groups.test/?state=g"), members("developers", "choir"))
    gateway = make(Says(Redirect("https://idp.test/?state=i"), UserInfo("alice")), groups=[first, second])
    away = await gateway.get()
    groups_away = await gateway.get("/auth/provider?state=i", cookie=cookie_of(away))
    assert groups_away.header("Location") == "https://groups.test/?state=g"
    await nobody_came_in(gateway, groups_away)
    back = await gateway.get("/auth/groups/provider?state=g", cookie=cookie_of(groups_away))
    assert body(back)["groups"] == ["operators", "developers"]
    assert len(first.asked) == 1
    again = await gateway.get("/auth/groups/provider?state=g", cookie=cookie_of(groups_away))
    assert again.status == 403


async def test_each_provider_has_its_own_way_back_for_groups(make: Make) -> None:
    """S33."""
    groups = SaysGroups(Redirect("https://groups.test/"), members("developers"))
    gateway = make(Says(UserInfo("alice")), Says(UserInfo("bob")), groups=[groups])
    away = await gateway.get("/auth/idp2")
    assert groups.asked[0][2].callback_url == f"{URL}/auth/idp2/groups/provider"
    assert (await gateway.get("/auth/idp1/groups/provider", cookie=cookie_of(away))).status == 403
    away = await gateway.get("/auth/idp2")
    assert body(await gateway.get("/auth/idp2/groups/provider", cookie=cookie_of(away)))["user"] == "idp2:bob"


async def test_a_way_back_cannot_be_taken_for_the_other(make: Make) -> None:
    """S33."""
    gateway = make(
        Says(Redirect("https://idp.test/"), UserInfo("mallory")), groups=[SaysGroups(Redirect("https://g.test"))]
    )
    away = await gateway.get()
    answer = await gateway.get("/auth/groups/provider", cookie=cookie_of(away))
    assert answer.status == 403
    away = await gateway.get("/auth/provider", cookie=cookie_of(await gateway.get()))
    answer = await gateway.get("/auth/provider", cookie=cookie_of(away))
    assert answer.status == 403
    await nobody_came_in(gateway, answer)
