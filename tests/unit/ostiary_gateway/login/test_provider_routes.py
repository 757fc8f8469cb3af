"""The providers' paths: who comes back is the one who left, to the same provider, for the same step."""

from __future__ import annotations

from contextlib import suppress
from itertools import permutations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import Redirect
from ostiary_gateway.login.provider_contract import provider_user_of
from ostiary_gateway.providers.single_user import SingleUserIdentity
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import (
    URL,
    Make,
    Revalidating,
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


PREFIXES = ("", "corp:", "gh/", "g")


@given(data=st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_providers_say_no_two_of_their_users_have_one_name(data: st.DataObject) -> None:
    """S31. Prefixes as the configuration accepts them: none begins with another one, except that one may be empty."""
    prefixes = data.draw(st.lists(st.sampled_from(PREFIXES), min_size=2, unique=True).filter(are_accepted))
    names = st.text(st.sampled_from("corp:gh/x"), min_size=1, max_size=8)
    owners: dict[str, str] = {}
    for prefix in prefixes:
        provider = Identity(prefix or "none", "test", Says(), prefix=prefix)
        for name in data.draw(st.lists(names, max_size=8)) + [f"{other}x" for other in prefixes]:
            with suppress(LoginRefused):
                username = provider_user_of(provider, UserInfo(name), prefixes).user.username
                assert owners.setdefault(username, provider.name) == provider.name


def are_accepted(prefixes: list[str]) -> bool:
    return not any(first and second.startswith(first) for first, second in permutations(prefixes, 2))


async def test_a_name_that_begins_with_the_prefix_of_another_provider_is_refused(make: Make) -> None:
    """Wherever a provider names a user: at a sign-in of either kind, at a renewal, when a token is exchanged."""
    plain = Says(UserInfo("corp:eve"), UserInfo("corp:eve"))
    gateway = make(plain, Says(UserInfo("eve")), prefixes=("", "corp:"))
    refused = await gateway.get("/auth/idp1")
    assert refused.status == 403
    await nobody_came_in(gateway, refused)
    assert "begins with the prefix of another identity provider" in gateway.events[-1].reason
    plain.client = Redirect("https://idp.test/?state=s")
    away = await gateway.get("/auth/idp1")
    back = await gateway.get("/auth/idp1/provider?state=s", cookie=cookie_of(away))
    assert back.status == 403
    await nobody_came_in(gateway, back)
    assert body(await gateway.get("/auth/idp2"))["user"] == "corp:eve"
    plain.client = UserInfo("alice")
    assert body(await gateway.get("/auth/idp1"))["user"] == "alice", "usernames stay as they were"


async def test_a_session_with_the_name_of_another_providers_user_ends_at_its_renewal(make: Make) -> None:
    """The other provider was added after this user had signed in."""
    plain = Revalidating(UserInfo("corp:eve"))
    before = make(plain)
    tokens = body(await before.get())
    after = make(plain, Says(UserInfo("eve")), prefixes=("", "corp:"), store=before.store)
    answer = await after.post("/auth/renew", renewal_token=tokens["renewal_token"])
    assert answer.status == 401
    assert "begins with the prefix of another identity provider" in after.events[-1].reason


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


async def test_adding_a_provider_changes_no_redirect_uri(make: Make) -> None:
    """Issuers know it by heart: what is registered there for the only provider is good for the first of several."""
    sent: list[list[str]] = []
    for others in ([], [Says(UserInfo("bob"))]):
        provider = Says(Redirect("https://idp.test/?state=i"), UserInfo("alice"))
        groups = SaysGroups(Redirect("https://groups.test/?state=g"))
        gateway = make(provider, *others, groups=[groups])
        away = await gateway.get("/auth/idp1")
        await gateway.get("/auth/idp1/provider?state=i", cookie=cookie_of(away))
        urls = [request.callback_url for _, request in provider.asked]
        sent.append([*urls, *(request.callback_url for _, _, request in groups.asked)])
    named = f"{URL}/auth/idp1/provider"
    assert sent == [[named, named, f"{URL}/auth/idp1/groups/provider"]] * 2


async def test_the_only_provider_takes_returns_to_the_path_without_its_name(make: Make) -> None:
    """An issuer that was given this one, by an older gateway or for good, wants it again with the code."""
    provider = Says(Redirect("https://idp.test/?state=i"), UserInfo("alice"))
    groups = SaysGroups(Redirect("https://groups.test/?state=g"), members("developers"))
    gateway = make(provider, groups=[groups])
    away = await gateway.get()
    groups_away = await gateway.get("/auth/provider?state=i", cookie=cookie_of(away))
    assert provider.asked[1][1].callback_url == f"{URL}/auth/provider"
    back = await gateway.get("/auth/groups/provider?state=g", cookie=cookie_of(groups_away))
    assert groups.asked[1][2].callback_url == f"{URL}/auth/groups/provider"
    assert body(back)["user"] == "alice"


async def test_several_providers_take_no_return_to_the_path_without_a_name(make: Make) -> None:
    """One redirect URI for two issuers lets one of them have the other's codes (RFC 9700, 4.4)."""
    one, two = (Says(Redirect(f"https://idp{n}.test/?state=s"), UserInfo("alice")) for n in (1, 2))
    gateway = make(one, two)
    away = await gateway.get("/auth/idp1")
    answer = await gateway.get("/auth/provider?state=s", cookie=cookie_of(away))
    assert answer.status == 404
    assert [which for which, _ in one.asked] == ["client"]
    await nobody_came_in(gateway, answer)


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
