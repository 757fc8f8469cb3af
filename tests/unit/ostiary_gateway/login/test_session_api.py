"""What programs do with a session: renew it, end it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.stores.memory import MemoryTokenStore
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import (
    Gateway,
    Make,
    Revalidating,
    Says,
    SaysGroups,
    body,
    members,
)


async def test_a_renewal_asks_about_user_and_groups_again(make: Make, clock: FakeClock) -> None:
    """S36, S64."""
    provider, groups = Revalidating(UserInfo("alice")), SaysGroups(members("developers"))
    gateway = make(provider, groups=[groups], prefix="corp:")
    first = body(await gateway.get())
    clock.advance(minutes=14)
    groups.of = members("operators")
    answer = await gateway.post("/auth/renew", renewal_token=first["renewal_token"])
    told = body(answer)
    assert (answer.status, told["user"], told["groups"]) == (200, "corp:alice", ["operators"])
    assert told["session"] == first["session"]
    assert told["token"] != first["token"]
    assert told["session_expires_at"] == first["session_expires_at"]
    assert provider.asked[-1] == ("revalidate", LoginRequest("", "alice"))
    assert gateway.events[-1].kind is LoginEventKind.RENEWED


async def test_a_user_who_is_gone_loses_the_session(make: Make) -> None:
    """S64."""
    provider = Revalidating(UserInfo("alice"))
    gateway = make(provider)
    first = body(await gateway.get())
    provider.said = LoginRefused("the user is no longer known")
    answer = await gateway.post("/auth/renew", renewal_token=first["renewal_token"])
    assert answer.status == 401
    assert "invalid_token" in (answer.header("WWW-Authenticate") or "")
    assert await gateway.tokens.find(first["token"]) is None


async def test_an_outage_at_renewal_costs_nobody_the_session(make: Make) -> None:
    provider = Revalidating(UserInfo("alice"))
    gateway = make(provider)
    first = body(await gateway.get())
    provider.said = ProviderError("down")
    assert (await gateway.post("/auth/renew", renewal_token=first["renewal_token"])).status == 503
    provider.said = None
    assert (await gateway.post("/auth/renew", renewal_token=first["renewal_token"])).status == 200


@pytest.mark.parametrize("token", ["", "nonsense", "ost_" + "a" * 51])
async def test_what_is_no_renewal_token_renews_nothing(make: Make, token: str) -> None:
    gateway = make(Says(UserInfo("alice")))
    assert (await gateway.post("/auth/renew", renewal_token=token)).status == (401 if token else 400)
    assert (await gateway.get("/auth/renew")).status == 405
    assert (await gateway.get(f"/auth/renew?renewal_token={token}", method="POST")).status == 400


async def test_an_access_token_renews_nothing(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    first = body(await gateway.get())
    assert (await gateway.post("/auth/renew", renewal_token=first["token"])).status == 401


@pytest.mark.parametrize("which", ["token", "renewal_token"])
async def test_a_logout_ends_the_session(make: Make, which: str) -> None:
    gateway = make(Says(UserInfo("alice")))
    first, other = body(await gateway.get()), body(await gateway.get())
    if which == "token":
        bearer = (("authorization", f"Bearer {first['token']}"),)
        answer = await gateway.get("/auth/logout", method="POST", headers=bearer)
    else:
        answer = await gateway.post("/auth/logout", renewal_token=first["renewal_token"])
    assert answer.status == 204
    assert await gateway.tokens.find(first["token"]) is None
    assert await gateway.tokens.find(other["token"]) is not None
    assert (await gateway.post("/auth/renew", renewal_token=first["renewal_token"])).status == 401
    assert gateway.events[-2].kind is LoginEventKind.ENDED


async def test_a_logout_tells_nobody_which_tokens_there_are(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    assert (await gateway.post("/auth/logout", renewal_token="unknown")).status == 204


async def test_a_logout_without_a_token_is_challenged_for_one(make: Make) -> None:
    """S38, S41."""
    gateway = make(Says(UserInfo("alice")))
    answer = await gateway.post("/auth/logout")
    assert answer.status == 401
    assert (answer.header("WWW-Authenticate") or "").startswith("Bearer ")
    assert (await gateway.get("/auth/logout")).status == 405


async def test_programs_that_renew_at_the_same_moment_get_the_same_answer(make: Make, clock: FakeClock) -> None:
    gate = asyncio.Event()

    class Slow(Revalidating):
        async def revalidate(self, user: UserInfo) -> Any:
            await gate.wait()
            return await super().revalidate(user)

    says = Slow(UserInfo("alice"))
    gateway = make(says)
    first = body(await gateway.get())
    renewals = [
        asyncio.ensure_future(gateway.post("/auth/renew", renewal_token=first["renewal_token"])) for _ in range(20)
    ]
    await asyncio.sleep(0)
    gate.set()
    told = [body(answer) for answer in await asyncio.gather(*renewals)]
    assert len({one["token"] for one in told}) == 1
    assert len([asked for asked, _ in says.asked if asked == "revalidate"]) == 1
    assert [event.kind for event in gateway.events] == [LoginEventKind.ISSUED, LoginEventKind.RENEWED]
    assert await gateway.tokens.find(told[0]["token"]) is not None


async def test_who_lost_the_answer_of_a_renewal_gets_it_again_for_a_moment(make: Make, clock: FakeClock) -> None:
    gateway = make(Says(UserInfo("alice")))
    first = body(await gateway.get())
    renewed = await gateway.post("/auth/renew", renewal_token=first["renewal_token"])
    clock.advance(9)
    assert (await gateway.post("/auth/renew", renewal_token=first["renewal_token"])).body == renewed.body
    clock.advance(1.5)
    assert (await gateway.post("/auth/renew", renewal_token=first["renewal_token"])).status == 401
    assert await gateway.tokens.find(body(renewed)["token"]) is None, "used twice: nobody knows by whom"


async def test_another_worker_refuses_a_token_that_was_just_used_and_ends_nothing(clock: FakeClock) -> None:
    store = MemoryTokenStore(clock=clock)
    one, two = (Gateway([Identity("idp1", "test", Says(UserInfo("alice")))], clock, store=store) for _ in range(2))
    first = body(await one.get())
    renewed = body(await one.post("/auth/renew", renewal_token=first["renewal_token"]))
    refused = await two.post("/auth/renew", renewal_token=first["renewal_token"])
    assert (refused.status, refused.header("Retry-After")) == (409, "1")
    assert body(refused)["reason"] == "Conflict"
    assert await one.tokens.find(renewed["token"]) is not None


async def test_whoami_tells_a_token_whose_it_is(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")), groups=[SaysGroups(members("developers"))])
    said = body(await gateway.get())
    told = await gateway.get("/auth/whoami", headers=(("authorization", f"Bearer {said['token']}"),))
    assert body(told) == {
        "user": "alice",
        "groups": [{"name": "developers", "source": "g1"}, {"name": "system:authenticated", "source": "gateway"}],
        "session": said["session"],
        "provider": "idp1",
        "since": "2026-01-01T00:00:00Z",
        "expires_at": said["expires_at"],
        "session_expires_at": said["session_expires_at"],
    }
    for given in ("", f"Bearer {said['renewal_token']}", "Bearer x"):
        answer = await gateway.get("/auth/whoami", headers=(("authorization", given),))
        assert (answer.status, (answer.header("WWW-Authenticate") or "")[:6]) == (401, "Bearer")


async def test_a_program_signs_its_user_out_everywhere(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    first, second = body(await gateway.get()), body(await gateway.get())
    answer = await gateway.post("/auth/logout", renewal_token=first["renewal_token"], everywhere="true")
    assert answer.status == 204
    assert await gateway.tokens.find(second["token"]) is None
