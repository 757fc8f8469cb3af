"""The gateway's own cookies: read by us alone, and only if there is no doubt whose they are."""

from __future__ import annotations

from tests.unit.gateway.signing_in import Make, cookie_of, sends_away


async def test_providers_see_no_cookie_of_ours(make: Make) -> None:
    says = sends_away()
    gateway = make(says)
    cookies = "theirs=1; __Host-ostiary-session=osb_secret; ostiary-login=x; other=2"
    await gateway.get(headers=(("cookie", cookies), ("x-other", "1")))
    assert says.asked[-1][1].headers == (("cookie", "theirs=1; other=2"), ("x-other", "1"))
    await gateway.get(cookie="__Host-ostiary-session=osb_secret")
    assert not says.asked[-1][1].headers


async def test_a_cookie_that_stands_twice_is_none(make: Make) -> None:
    """L4: nobody knows which of them somebody else has set."""
    gateway = make(sends_away())
    cookie = cookie_of(await gateway.get())
    answer = await gateway.get("/auth/provider?state=abc", cookie=f"{cookie}; {cookie}")
    assert answer.status == 403
    assert (await gateway.get("/auth/provider?state=abc", cookie=f'odd="; {cookie}; =; ;')).status == 200
