"""Public paths: forwarded without a user, whoever sends them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary_gateway.interfaces.token_store import RevocationKind
from tests.support.visitor import GATEWAY, PAGE, SCRIPT
from tests.unit.ostiary_gateway.proxy.applications import WIKI, applications
from tests.unit.ostiary_gateway.proxy.gateways import DENY

PUBLIC = ["/healthz", "/static/"]
CLAIMS = ("X-Remote-User: root", "X_Remote_User: root", "X-Ostiary-Assertion: x", "Impersonate-User: root")


@pytest.mark.parametrize("path", ["/healthz", "/healthz?full=1", "/static/", "/static/a/b.css"])
async def test_a_public_path_needs_no_sign_in_and_asks_no_policy(tmp_path: Path, path: str) -> None:
    async with applications(tmp_path, public=PUBLIC) as site:
        site.policy.rule = DENY
        answer = await site.visitor().ask(f"{WIKI}{path}", *SCRIPT, *CLAIMS)
        assert answer.status == 200
        assert site.policy.asked == []
        names = {name.lower() for name, _ in site.application.requests[-1].headers}
        assert not {name for name in names if name.startswith((b"x-remote", b"x_remote", b"x-ostiary", b"impersonate"))}


async def test_nothing_beside_it_is_public(tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests) -> None:
    for path in ["/healthz/", "/healthzz", "/static", "/staticx/", "/Static/a", "/", "/x/static/a"]:
        with subtests.test(path=path):
            tmp_path = tmp_path_factory.mktemp("case")
            async with applications(tmp_path, public=PUBLIC) as site:
                assert (await site.visitor().ask(f"{WIKI}{path}", *SCRIPT)).status == 401


@pytest.mark.parametrize(
    "path", ["/static/../admin", "/static/%2e%2e/admin", "/static//admin", "/static/..%2fadmin", "/static/a%5c..%5cb"]
)
async def test_a_path_with_two_readings_is_not_public(tmp_path: Path, path: str) -> None:
    async with applications(tmp_path, public=PUBLIC) as site:
        assert (await site.visitor().ask(f"{WIKI}{path}", *SCRIPT)).status in (400, 401)
        assert site.application.requests == []


async def test_somebody_with_a_session_or_a_token_has_no_user_there_either(tmp_path: Path) -> None:
    async with applications(tmp_path, public=PUBLIC) as site:
        visitor = await site.signed_in()
        token = f"Authorization: Bearer {site.gateway.token}"
        for lines in (PAGE, (token, *SCRIPT)):
            assert (await visitor.ask(f"{WIKI}/static/a", *lines)).status == 200
            assert site.application.requests[-1].all("Authorization") == []
            assert site.application.requests[-1].all("Cookie") == []
        event = (await site.gateway.events())[-1]
        assert event["user"]["username"] == "system:anonymous"


async def test_authorization_of_the_application_passes_only_where_that_is_configured(tmp_path: Path) -> None:
    for number, configured in enumerate((False, True)):
        (tmp_path / str(number)).mkdir()
        async with applications(tmp_path / str(number), public=PUBLIC, passAuthorization=configured) as site:
            assert (await site.visitor().ask(f"{WIKI}/healthz", "Authorization: Basic YTpi", *SCRIPT)).status == 200
            assert site.application.requests[-1].all("Authorization") == [b"Basic YTpi"] * configured


async def test_a_revocation_of_everything_does_not_close_public_paths(tmp_path: Path) -> None:
    async with applications(tmp_path, public=PUBLIC) as site:
        assert (await site.visitor().ask(f"{WIKI}/healthz", *SCRIPT)).status == 200
        await site.gateway.worker.app.shared.tokens.revoke(RevocationKind.BEFORE)
        assert (await site.visitor().ask(f"{WIKI}/healthz", *SCRIPT)).status == 200


async def test_an_upstream_for_programs_may_have_public_paths_too(tmp_path: Path) -> None:
    async with applications(tmp_path, public=PUBLIC, auth="token") as site:
        assert (await site.visitor().ask(f"{WIKI}/healthz", *PAGE)).status == 200
        assert (await site.visitor().ask(f"{WIKI}/x", *PAGE)).status == 401
        assert (await site.visitor().ask(f"{GATEWAY}/healthz", *PAGE)).status == 401
