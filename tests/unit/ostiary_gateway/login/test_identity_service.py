"""Asking the providers: what is not exactly one whole answer signs nobody in."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ostiary.errors import LoginRefused
from ostiary.model import UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.interfaces.identity import Challenge, Identified, LoginRequest, Redirect, SignIn
from ostiary_gateway.login import replay_cache as used_tokens
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import (
    SESSION,
    URL,
    Browser,
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
        await gateway.get("/auth/idp1/provider?c=d", method=method)
    assert [(which, request.method) for which, request in provider.asked] == [
        (which, method) for method in ("GET", "POST", "HEAD", "PUT") for which in ("client", "provider")
    ]
    seen = provider.asked[0][1]
    assert (seen.query, seen.headers, seen.remote_address) == ((("a", "b"),), (("x-proof", "1"),), "192.0.2.1")
    assert {request.callback_url for _, request in provider.asked} == {f"{URL}/auth/idp1/provider"}


NOTHING: Any = None


NUMBER: Any = 7


LATER = datetime(2999, 1, 1, tzinfo=UTC)
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
    Identified(UserInfo("alice"), www_authenticate="Negotiate x\r\nX: y"),
    Identified(UserInfo("alice"), token_id="", once_until=LATER),
    Identified(UserInfo("alice"), token_id="x", once_until=LATER.replace(tzinfo=None)),
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


async def test_a_proof_that_is_good_once_signs_in_once(make: Make, clock: FakeClock) -> None:
    """S30."""
    until = clock.now() + timedelta(minutes=10)
    gateway = make(Says(Identified(UserInfo("alice"), token_id="digest-of-the-proof", once_until=until)))
    answers = await asyncio.gather(*(gateway.get() for _ in range(5)))
    assert sorted(answer.status for answer in answers) == [200, 403, 403, 403, 403]
    assert "used before" in next(answer.message for answer in answers if answer.status == 403)
    clock.advance(minutes=10)
    assert (await gateway.get()).status == 200, "from then on the provider itself refuses it"


async def test_one_user_has_only_so_many_proofs_that_are_good_once(
    make: Make, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S30."""
    monkeypatch.setattr(used_tokens, "USED_PER_USER", 3)
    until = clock.now() + timedelta(minutes=10)
    answers: list[int] = []
    store = None
    for number, username in enumerate(["alice"] * 4 + ["bob"]):
        identified = Identified(UserInfo(username), token_id=f"proof {number}", once_until=until)
        gateway = make(Says(identified)) if store is None else make(Says(identified), store=store)
        store = gateway.store
        answers.append((await gateway.get()).status)
    assert answers == [200, 200, 200, 429, 200]


async def test_the_gateway_proves_itself_with_the_answer_to_a_sign_in(make: Make) -> None:
    gateway = make(Says(Identified(UserInfo("alice"), www_authenticate="Negotiate cHJvb2Y=")))
    for headers in ((), (("accept", "text/html"),)):
        assert (await gateway.get(headers=headers)).header("WWW-Authenticate") == "Negotiate cHJvb2Y="


async def test_a_person_who_cannot_answer_a_challenge_is_advised(make: Make) -> None:
    gateway = make(Says(Challenge("Negotiate", "get a ticket")))
    assert "get a ticket" in body(await gateway.get())["message"]
    page = await gateway.get(headers=(("accept", "text/html"),))
    assert (page.status, page.header("WWW-Authenticate")) == (401, "Negotiate")
    assert b"Get a ticket." in page.body


async def test_whoever_signs_in_unseen_is_asked_before_a_command_line_gets_a_session(make: Make) -> None:
    """A page of another site can lead a browser to any address: the ticket comes along by itself."""

    class Ticket(Says):
        sign_in = SignIn.NEGOTIATE

    gateway = make(Ticket(UserInfo("alice")))
    target = f"/auth/cli?challenge={'A' * 43}&port=40000&state=abc&client=kubectl"
    html = (("accept", "text/html"),)
    answer = await gateway.get(target, headers=html)
    assert (answer.status, answer.header("Location")) == (303, target)
    cookie = next(value.partition(";")[0] for name, value in answer.headers if value.startswith(SESSION))
    page = await gateway.get(target, headers=html, cookie=cookie)
    assert page.status == 200
    assert b"Sign in on the command line?" in page.body


async def test_whoever_signs_in_unseen_has_chosen_to_among_several(make: Make) -> None:
    """The address behind the choice is a link of ours: another site cannot lead a browser to it."""

    class Ticket(Says):
        sign_in = SignIn.NEGOTIATE

    gateway = make(Ticket(UserInfo("alice")), Says(UserInfo("bob")))
    browser = Browser(gateway)
    elsewhere = (("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"))
    target = f"/auth/cli?challenge={'A' * 43}&port=40000&state=abc&client=kubectl"
    assert (await browser.get(target, headers=elsewhere)).status == 200
    assert (await browser.get("/auth/idp1/start", headers=elsewhere)).status == 403
    assert (await browser.get("/auth/idp1/start", headers=(("sec-fetch-site", "same-origin"),))).status == 303


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


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
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
