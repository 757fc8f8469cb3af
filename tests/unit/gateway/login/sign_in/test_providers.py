"""Asking the providers: what is not exactly one whole answer signs nobody in."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostiary.errors import LoginRefused
from ostiary.gateway.audit.sign_ins import LoginEventKind
from ostiary.interfaces.identity import Challenge, LoginRequest, Redirect
from ostiary.model import UserInfo
from ostiary.testing import FakeClock
from tests.unit.gateway.signing_in import (
    URL,
    Gateway,
    Make,
    Says,
    SaysGroups,
    body,
    cookie_of,
    members,
    nobody_came_in,
)


async def test_the_provider_sees_every_request_and_where_to_return_to(make: Make) -> None:
    """S27, S30."""
    provider = Says(Challenge("Basic"), LoginRefused("no"))
    gateway = make(provider)
    for method in ("GET", "POST", "HEAD", "PUT"):
        await gateway.get("/auth?a=b", method=method, headers=(("x-proof", "1"),))
        await gateway.get("/auth/provider?c=d", method=method)
    assert [(which, request.method) for which, request in provider.asked] == [
        (which, method) for method in ("GET", "POST", "HEAD", "PUT") for which in ("client", "provider")
    ]
    seen = provider.asked[0][1]
    assert (seen.query, seen.headers, seen.remote_address) == ((("a", "b"),), (("x-proof", "1"),), "192.0.2.1")
    assert {request.callback_url for _, request in provider.asked} == {f"{URL}/auth/provider"}


NOTHING: Any = None


NUMBER: Any = 7


BROKEN: list[Any] = [
    None,
    "alice",
    ("alice", "x"),
    (UserInfo("alice"), Redirect("https://idp.test")),
    {},
    True,
    UserInfo(""),
    UserInfo(NUMBER),
    Redirect(""),
    Redirect(NOTHING),
    Redirect("/relative"),
    Redirect("javascript:alert(1)"),
    Redirect("https://idp.test/\r\nX: y"),
    Challenge(""),
    Challenge("Basic\r\nX: y"),
]


@pytest.mark.parametrize("said", BROKEN, ids=range(len(BROKEN)))
async def test_anything_but_exactly_one_answer_is_the_providers_mistake(make: Make, said: Any) -> None:
    """S26."""
    gateway = make(Says(said))
    answer = await gateway.get()
    assert answer.status == 500
    await nobody_came_in(gateway, answer)
    assert [event.kind for event in gateway.events] == [LoginEventKind.CONTRACT_BROKEN]


@pytest.mark.parametrize("said", [None, Redirect("https://idp.test"), Challenge("Basic"), UserInfo("")])
async def test_a_return_must_give_a_user(make: Make, said: Any) -> None:
    """S26, S27."""
    gateway = make(Says(Redirect("https://idp.test/"), said))
    away = await gateway.get()
    answer = await gateway.get("/auth/provider", cookie=cookie_of(away))
    assert answer.status == 500
    await nobody_came_in(gateway, answer)


async def test_a_provider_that_does_not_answer_is_an_outage(make: Make) -> None:
    class Hangs(Says):
        async def handle_client(self, request: LoginRequest) -> Any:
            await asyncio.Event().wait()

    gateway = make(Hangs(), provider_seconds=0.01)
    answer = await gateway.get()
    assert answer.status == 503
    await nobody_came_in(gateway, answer)


@pytest.mark.parametrize(
    "name",
    [*("system:admin", "system:", "system:serviceaccount:a:b"), *("ostiary:", "ostiary:serviceaccount:shop:deployer")],
)
async def test_names_of_the_system_are_refused(make: Make, name: str) -> None:
    gateway = make(Says(UserInfo(name)))
    answer = await gateway.get()
    assert answer.status == 403
    await nobody_came_in(gateway, answer)
    gateway = make(Says(UserInfo(name[1:])), prefix=name[:1])
    await nobody_came_in(gateway, await gateway.get())


@pytest.mark.parametrize("name", ["ann\n", "ann\r\nX-Remote-Group: admins", "a\0b", "\x7f", " ann", "ann ", "a\ud800"])
@pytest.mark.parametrize("where", ["username", "uid", "groups", "extra"])
async def test_a_name_that_no_header_can_carry_is_refused_and_not_found_out_later(
    make: Make, name: str, where: str
) -> None:
    user = UserInfo("ann", extra=(("team", (name,)),)) if where == "extra" else UserInfo("ann")
    if where in ("username", "uid"):
        user = UserInfo(name) if where == "username" else UserInfo("ann", uid=name)
    groups = members(name) if where == "groups" else ()
    gateway = make(Says(user), groups=[SaysGroups(groups)], relevant=frozenset([name]))
    answer = await gateway.get()
    assert (answer.status, "cannot be used here" in body(answer)["message"]) == (403, True)
    reason = gateway.events[-1].reason
    assert reason.isascii()
    assert reason.isprintable()
    assert ascii(name) in reason
    await nobody_came_in(gateway, answer)


async def test_a_group_that_got_such_a_name_ends_the_session_at_renewal(make: Make) -> None:
    groups = SaysGroups(members("dev"))
    gateway = make(Says(UserInfo("ann")), groups=[groups], relevant=frozenset(["dev", "dev "]))
    first = body(await gateway.get())
    groups.of = members("dev ")
    answer = await gateway.post("/auth/renew", renewal_token=first["renewal_token"])
    assert answer.status == 401
    assert "'dev '" in gateway.events[-1].reason


CONTROLS = "".join(map(chr, (*range(0x20), 0x7F)))


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=CONTROLS), min_size=1, max_size=10).filter(
    lambda name: not name.startswith(("system:", "ostiary:")) and name == name.strip(" ")
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(username=NAMES, groups=st.lists(NAMES, unique=True, max_size=4))
async def test_names_come_through_as_they_are(make: Make, username: str, groups: list[str]) -> None:
    """S14."""
    gateway = make(Says(UserInfo(username)), groups=[SaysGroups(members(*groups))], relevant=frozenset(groups))
    told = body(await gateway.get())
    assert (told["user"], told["groups"]) == (username, groups)
    found = await gateway.tokens.find(told["token"])
    assert found is not None
    assert found.session.user == UserInfo(username, groups=tuple(groups))


async def test_groups_that_need_the_person_end_the_session_at_renewal(make: Make) -> None:
    groups = SaysGroups(members("developers"))
    gateway = make(Says(UserInfo("alice")), groups=[groups])
    first = body(await gateway.get())
    groups.of = Redirect("https://groups.test/")
    assert (await gateway.post("/auth/renew", renewal_token=first["renewal_token"])).status == 401


async def test_providers_see_no_renewal_token(make: Make) -> None:
    groups = SaysGroups(members("developers"))
    gateway = make(Says(UserInfo("alice")), groups=[groups])
    first = body(await gateway.get())
    await gateway.get(
        "/auth/renew",
        method="POST",
        form=(("renewal_token", first["renewal_token"]),),
        headers=(("authorization", f"Bearer {first['token']}"),),
    )
    seen = groups.asked[-1][2]
    assert (seen.form, seen.headers) == ((), ())


async def test_a_session_of_a_provider_that_is_gone_is_not_renewed(make: Make, clock: FakeClock) -> None:
    gateway = make(Says(UserInfo("alice")))
    first = body(await gateway.get())
    renamed = Gateway([replace(gateway.identity[0], name="other")], clock, store=gateway.store)
    assert (await renamed.post("/auth/renew", renewal_token=first["renewal_token"])).status == 401
