"""What comes of a sign-in: a token that attests what was found out, and nothing unless it is finished."""

from __future__ import annotations

import asyncio
import html

from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.audit.sign_ins import LoginEventKind
from ostiary_gateway.interfaces.identity import Challenge, LoginRequest, Redirect
from ostiary_gateway.testing import FakeClock
from tests.unit.ostiary_gateway.signing_in import (
    Make,
    Revalidating,
    Says,
    SaysGroups,
    body,
    members,
    nobody_came_in,
)


async def test_a_user_gets_a_token_that_attests_user_and_groups(make: Make) -> None:
    """S8, S11, S17, S20, S21, S22, S25, S28."""
    gateway = make(Revalidating(UserInfo("alice", uid="7")), groups=[SaysGroups(members("developers"))])
    answer = await gateway.get()
    told = body(answer)
    assert answer.status == 200
    assert (told["user"], told["groups"]) == ("alice", ["developers"])
    assert told["expires_at"] == "2026-01-01T00:15:00Z"
    assert told["session_expires_at"] == "2026-01-02T00:00:00Z"
    found = await gateway.tokens.find(told["token"])
    assert found is not None
    assert found.session.user == UserInfo("alice", "7", ("developers",))
    assert found.session.id == told["session"]
    assert [event.kind for event in gateway.events] == [LoginEventKind.ISSUED]
    assert gateway.events[0].session == told["session"]


async def test_tokens_are_random_and_short_lived(make: Make, clock: FakeClock) -> None:
    """S8, S24."""
    gateway = make(Says(UserInfo("alice")))
    first, second = body(await gateway.get()), body(await gateway.get())
    assert first["token"] != second["token"]
    clock.advance(minutes=15)
    assert await gateway.tokens_kept() > 0, "nothing was swept yet"
    assert await gateway.tokens.find(first["token"]) is None


async def test_whatever_is_not_a_finished_login_puts_nothing_into_the_store(make: Make) -> None:
    """S21, S23."""
    for said in (Challenge("Basic"), Redirect("https://idp.test/"), LoginRefused("no"), RuntimeError("x"), None):
        gateway = make(Says(said, said), groups=[SaysGroups(members("developers"))])
        for path in ("/auth", "/auth/provider", "/auth/groups/provider"):
            await nobody_came_in(gateway, await gateway.get(path))


async def test_what_an_issuer_reports_reaches_the_person_and_the_log(make: Make) -> None:
    """Nobody else knows that a redirect URI is not registered, or that a client secret has expired."""
    reported = 'invalid_client ("the secret has expired")'
    outage = ProviderError("the issuer is unavailable", cause=f"status 401 and {reported}", reported=reported)
    gateway = make(Says(outage))
    answer = await gateway.get()
    assert answer.status == 503
    assert body(answer)["message"] == f"the identity provider is unavailable: it reported {reported}"
    assert reported in gateway.events[-1].reason
    page = await gateway.get(headers=(("accept", "text/html"), ("accept-language", "de")))
    assert "invalid_client (&quot;the secret has expired&quot;)" in html.unescape(page.body.decode()).replace(
        '"', "&quot;"
    )
    assert b"the identity provider is unavailable" not in page.body, "in the language of the page"


async def test_a_challenge_goes_into_a_401(make: Make) -> None:
    """S38, S41."""
    gateway = make(Says(Challenge('Basic realm="staff"')))
    answer = await gateway.get()
    assert (answer.status, answer.header("WWW-Authenticate")) == (401, 'Basic realm="staff"')
    await nobody_came_in(gateway, answer)


async def test_many_logins_at_once_do_not_mix(make: Make) -> None:
    class ByHeader(Says):
        async def handle_client(self, request: LoginRequest) -> UserInfo:
            await asyncio.sleep(0)
            return UserInfo(request.header("x-user") or "")

    gateway = make(ByHeader())
    names = [f"user{number}" for number in range(50)]
    answers = await asyncio.gather(*(gateway.get(headers=(("x-user", name),)) for name in names))
    assert [body(answer)["user"] for answer in answers] == names
    assert len({body(answer)["token"] for answer in answers}) == 50


async def test_the_session_says_which_client_it_was(make: Make) -> None:
    gateway = make(Says(UserInfo("alice")))
    await gateway.get(headers=(("user-agent", "kubectl/1.38\x1b[31m" + "x" * 500),))
    (session,) = await gateway.store.sessions()
    assert session.client.startswith("kubectl/1.38[31mxxx")
    assert session.client.endswith(" from 192.0.2.1")
    assert len(session.client) < 200
