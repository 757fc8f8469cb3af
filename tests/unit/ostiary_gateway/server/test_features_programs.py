"""Tokens of programs at a gateway that runs: owners are asked again in time, also about requests that stay open."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from ostiary.core.scopes import Delegation, parse_scope
from ostiary.errors import LoginRefused, ProviderError
from ostiary.model import UserInfo
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.provider import Identity
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.issuer.keys import SigningKey
from ostiary_gateway.sessions import Tokens, digest
from tests.support.http1 import Client, get, turn, upstream
from tests.unit.ostiary_gateway.proxy.gateways import Gateway, at, configured, endless, is_cut, opened, serving

ALICE = UserInfo("alice")
QUARTER = 15 * 60


class Directory:
    """An identity provider that can say whether somebody is still there."""

    def __init__(self) -> None:
        self.says: Exception | None = None
        self.asked = 0

    async def handle_client(self, request: LoginRequest) -> UserInfo:
        return ALICE

    async def handle_provider(self, request: LoginRequest) -> UserInfo:
        raise LoginRefused("nobody was sent away")

    async def revalidate(self, user: UserInfo) -> UserInfo:
        self.asked += 1
        if self.says is not None:
            raise self.says
        return user


def config(folder: Path, server: str, directory: Directory, **sections: Any) -> GatewayConfig:
    made = configured(folder, server, apiTokens={"enabled": True}, **sections)
    return replace(made, identity=(Identity("directory", "directory", directory),))


async def api_token(site: Gateway, user: UserInfo = ALICE) -> str:
    tokens: Tokens = site.worker.app.shared.tokens
    issued = await tokens.issue_token(user, provider="directory", name="job", lifetime=timedelta(days=30))
    return issued.token.reveal()


async def status(site: Gateway, token: str) -> int:
    answer: Any = await site.client.ask(get("/x", f"Authorization: Bearer {token}"))
    return int(answer.status)


async def is_cut_now(client: Client) -> bool:
    """Without waiting for an end that comes by itself."""
    for _ in range(100):
        if is_cut(client):
            break
        await turn()
    return is_cut(client)


async def test_an_owner_is_asked_about_once_in_a_quarter_of_an_hour_and_not_for_each_request(tmp_path: Path) -> None:
    directory = Directory()
    async with upstream() as made, serving(config(tmp_path, at(made), directory)) as site:
        token = await api_token(site)
        for _ in range(3):
            assert await status(site, token) == 200
        assert (directory.asked, site.store.lookups) == (0, 1)
        await site.tick(QUARTER)
        for _ in range(3):
            assert await status(site, token) == 200
        assert (directory.asked, site.store.lookups) == (1, 2)


async def test_a_directory_that_is_away_is_a_503_and_one_that_says_no_a_401(tmp_path: Path) -> None:
    directory = Directory()
    async with upstream() as made, serving(config(tmp_path, at(made), directory)) as site:
        token = await api_token(site)
        await site.tick(QUARTER)
        directory.says = ProviderError("the directory is away", cause="connection refused")
        assert await status(site, token) == 503
        directory.says = None
        assert await status(site, token) == 200
        await site.tick(QUARTER)
        directory.says = LoginRefused("unknown user")
        assert await status(site, token) == 401
        directory.says = None
        assert await status(site, token) == 401


async def test_an_owner_who_is_gone_is_nobody_at_whoami_either(tmp_path: Path) -> None:
    """Other programs ask there whose a token is."""
    directory = Directory()
    async with upstream() as made, serving(config(tmp_path, at(made), directory)) as site:
        token = await api_token(site)
        question = get("/auth/whoami", f"Authorization: Bearer {token}")
        before = json.loads((await site.client.ask(question)).body)
        await site.tick(QUARTER)
        assert json.loads((await site.client.ask(question)).body) == before
        await site.tick(QUARTER)
        directory.says = ProviderError("the directory is away", cause="connection refused")
        assert (await site.client.ask(question)).status == 503
        directory.says = LoginRefused("unknown user")
        assert (await site.client.ask(question)).status == 401


async def test_a_watch_of_an_owner_who_is_gone_is_cut(tmp_path: Path) -> None:
    """A stream lives as long as its session, and that of an API token is long."""
    directory = Directory()
    async with upstream(endless) as made, serving(config(tmp_path, at(made), directory)) as site:
        token = await api_token(site)
        authenticator = site.worker.app.shared.authenticator
        async with opened(site, token=token) as client:
            await authenticator.check_streams()
            assert directory.asked == 0, "it is not due yet"
            await site.tick(QUARTER)
            await authenticator.check_streams()
            assert directory.asked == 1
            assert not is_cut(client)
            await authenticator.check_streams()
            assert directory.asked == 1
            await site.tick(QUARTER)
            directory.says = LoginRefused("unknown user")
            await authenticator.check_streams()
            assert await is_cut_now(client)


async def test_a_watch_of_an_owner_who_lost_a_group_is_cut(tmp_path: Path) -> None:
    """It was allowed to somebody in that group. A new one is decided on with the groups of today."""
    directory = Directory()
    async with upstream(endless) as made, serving(config(tmp_path, at(made), directory)) as site:
        token = await api_token(site, UserInfo("alice", groups=("dev",)))
        authenticator = site.worker.app.shared.authenticator
        async with opened(site, token=token) as client:
            await site.tick(QUARTER)
            # Another request is the first to find out.
            assert await authenticator.find(digest(token)) is not None
            await authenticator.check_streams()
            assert await is_cut_now(client)
        async with opened(site, token=token) as client:
            await authenticator.check_streams()
            assert not is_cut(client)


async def test_a_watch_with_a_narrowed_api_token_goes_on_after_its_owner_was_checked(tmp_path: Path) -> None:
    directory, scope = Directory(), Delegation((parse_scope("* * -A; * /*"),)).encode()
    async with upstream(endless) as made, serving(config(tmp_path, at(made), directory)) as site:
        shared, life = site.worker.app.shared, timedelta(hours=1)
        issued = await shared.tokens.issue_token(
            ALICE, provider="directory", name="job", lifetime=life, delegation=scope
        )
        async with opened(site, token=issued.token.reveal()) as client:
            await site.tick(QUARTER)
            shared.authenticator.tick()
            await shared.authenticator.check_streams()
            assert directory.asked == 1
            assert not await is_cut_now(client)
            await site.tick(life.total_seconds() - QUARTER)
            shared.authenticator.tick()
            assert await is_cut_now(client)


async def test_an_owner_who_cannot_be_asked_about_does_not_keep_others_from_it(tmp_path: Path) -> None:
    directory = Directory()
    async with AsyncExitStack() as stack:
        made = await stack.enter_async_context(upstream(endless))
        site = await stack.enter_async_context(serving(config(tmp_path, at(made), directory)))
        authenticator = site.worker.app.shared.authenticator
        for name in ("alice", "bob", "carol"):
            await stack.enter_async_context(opened(site, token=await api_token(site, UserInfo(name))))
        await site.tick(QUARTER)
        directory.says = ProviderError("the directory is away", cause="connection refused")
        with pytest.raises(ProviderError, match="cannot be checked"):
            await authenticator.check_streams()
        assert directory.asked == 3


async def test_a_reload_asks_with_the_new_configuration(tmp_path: Path) -> None:
    directory, another = Directory(), Directory()
    async with upstream() as made, serving(config(tmp_path, at(made), directory)) as site:
        token = await api_token(site)
        await site.worker.reload(config(tmp_path, at(made), another))
        await site.tick(QUARTER)
        assert await status(site, token) == 200
        assert (directory.asked, another.asked) == (0, 1)


async def exchange(site: Gateway, token: str, **fields: str) -> tuple[int, dict[str, Any]]:
    """RFC 8693 with a token of the gateway."""
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "subject_token": token,
        "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
        **fields,
    }
    kind = "Content-Type: application/x-www-form-urlencoded"
    answer = await site.client.ask(get("/auth/token", kind, method="POST", body=urlencode(form).encode()), "POST")
    return answer.status, json.loads(answer.body)


async def test_an_owner_who_is_gone_gets_no_jwt_for_an_api_token_either(tmp_path: Path) -> None:
    """Who verifies a JWT asks nobody, so the owner is checked before it is signed."""
    directory, audience = Directory(), "https://cluster.test"
    (tmp_path / "key.pem").write_bytes(SigningKey.generate().pem())
    (tmp_path / "key.pem").chmod(0o600)
    issuer = {"url": "https://gateway.test", "audiences": [audience], "keys": {"files": ["key.pem"]}}
    wanted = {"requested_token_type": "urn:ietf:params:oauth:token-type:jwt", "audience": audience}
    async with upstream() as made, serving(config(tmp_path, at(made), directory, issuer=issuer)) as site:
        token = await api_token(site)
        assert (await exchange(site, token, **wanted))[0] == 200
        await site.tick(QUARTER)
        assert (await exchange(site, token, **wanted))[0] == 200
        assert directory.asked == 1
        await site.tick(QUARTER)
        directory.says = ProviderError("the directory is away", cause="connection refused")
        assert (await exchange(site, token, **wanted))[0] in (500, 503)
        directory.says = LoginRefused("unknown user")
        status_, answer = await exchange(site, token, **wanted)
        assert (status_, answer["error"]) == (400, "invalid_grant")


async def test_an_api_token_can_be_narrowed_and_what_it_becomes_ends_with_its_owner(tmp_path: Path) -> None:
    directory = Directory()
    async with upstream() as made, serving(config(tmp_path, at(made), directory)) as site:
        token = await api_token(site)
        status_, answer = await exchange(site, token, scope="get /x")
        assert status_ == 200, answer
        narrowed = answer["access_token"]
        assert await status(site, narrowed) == 200
        await site.tick(QUARTER)
        directory.says = LoginRefused("unknown user")
        assert await status(site, narrowed) == 401
        assert (await exchange(site, token, scope="get /x"))[0] == 400
