"""The gateway's own cookies: read by us alone, and only if there is no doubt whose they are."""

from __future__ import annotations

import pytest

from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.login.cookies import Cookie, without_ours
from tests.unit.ostiary_gateway.signing_in import Make, cookie_of, sends_away


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


def request(*cookies: str) -> LoginRequest:
    return LoginRequest("GET", "/auth", headers=tuple(("cookie", value) for value in cookies))


@pytest.mark.parametrize(
    ("secure", "expected"),
    [
        (True, "__Host-ostiary-login=value; Max-Age=60; Path=/; HttpOnly; SameSite=Lax; Secure"),
        (False, "ostiary-login=value; Max-Age=60; Path=/; HttpOnly; SameSite=Lax"),
    ],
)
def test_a_cookie_is_bound_to_the_host_where_there_is_tls(secure: bool, expected: str) -> None:
    assert Cookie("login", secure=secure).set("value", seconds=60) == ("Set-Cookie", expected)


def test_forgetting_a_cookie_empties_it_with_the_same_attributes() -> None:
    cookie = Cookie("login", secure=True)
    assert cookie.forget() == cookie.set("", seconds=0)


def test_a_cookie_is_read_if_there_is_exactly_one(subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[str, ...], str]] = [
        (("__Host-ostiary-login=a",), "a"),
        (("other=1; __Host-ostiary-login=a=b; x",), "a=b"),
        (("other=1", "__Host-ostiary-login=a"), "a"),
        (("__Host-ostiary-login=a", "__Host-ostiary-login=a"), ""),
        (("ostiary-login=a",), ""),
        (("__Host-ostiary-login",), ""),
        ((), ""),
    ]
    for cookies, value in cases:
        with subtests.test(cookies=cookies, value=value):
            assert Cookie("login", secure=True).of(request(*cookies)) == value


def test_without_our_cookies_an_empty_header_is_dropped() -> None:
    assert without_ours(request("__Host-ostiary-login=a", "theirs=1")).headers == (("cookie", "theirs=1"),)
