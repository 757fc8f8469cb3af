"""The way of a browser to the sign-in page and back, and what others could do with its parts."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ostiary_gateway.login.web_app_endpoints import STARTS_PER_MINUTE
from tests.support.visitor import GATEWAY, PAGE, SCRIPT, Visitor
from tests.unit.ostiary_gateway.proxy.applications import BOARD, WIKI, applications

COOKIE = "__Host-ostiary-app-wiki"
VISIT = "__Host-ostiary-visit"


def is_in(visitor: Visitor, host: str = "wiki.test") -> bool:
    return any(name.startswith("__Host-ostiary-app-") for name in visitor.cookies.get(host, {}))


async def test_the_browser_is_back_where_it_wanted_to_go(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for target in ["/", "/a/b?x=1&y=%2F", "/a?", "/a?next=https://evil.test/", "/a%20b", "/%C3%A4?q=1"]:
        with subtests.test(target=target):
            tmp_path = tmp_path_factory.mktemp("case")
            async with applications(tmp_path) as site:
                visitor = await site.signed_in(f"{WIKI}{target}")
                assert site.application.requests[-1].target.decode() == target.removesuffix("?")
                assert visitor.url == f"{WIKI}{target.removesuffix('?')}"


async def test_several_tabs_sign_in_at_once(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = site.visitor()
        ways = [(await visitor.step(f"{WIKI}/{number}"))[1] for number in range(3)]
        for number, way in reversed(list(enumerate(ways))):
            assert (await visitor.open(way)).status == 200
            assert visitor.url == f"{WIKI}/{number}"


# --- where somebody could be led ---

HOSTILE = [
    "//evil.test/",
    "/\\evil.test",
    "/%5cevil.test",
    "/%2f/evil.test",
    "/.//evil.test",
    "/%0d%0aLocation:x",
    "/a;b",
]


async def test_no_target_leads_to_another_host(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for target in HOSTILE:
        with subtests.test(target=target):
            tmp_path = tmp_path_factory.mktemp("case")
            async with applications(tmp_path) as site:
                answer = await site.visitor().ask(f"{WIKI}/", *PAGE)
                assert answer.status == 303
                visitor = site.visitor()
                # As bytes: a URL library would tidy it up.
                answer = await visitor.ask_raw(target, "wiki.test", *PAGE)
                location = answer.one("Location")
                if location is None:
                    assert answer.status in (400, 401)
                    continue
                await visitor.open(location.decode())
                assert urlsplit(visitor.url).netloc == "wiki.test"


async def test_no_parameter_says_where_to_go(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    for name in ["rd", "redirect", "next", "target", "return_to", "url"]:
        with subtests.test(name=name):
            tmp_path = tmp_path_factory.mktemp("case")
            async with applications(tmp_path) as site:
                visitor = site.visitor()
                way = await visitor.way_to(f"{WIKI}/wanted", "request=")
                await visitor.open(f"{way}&{name}=https://evil.test/")
                assert visitor.url == f"{WIKI}/wanted"


async def test_a_target_that_is_too_long_leads_to_the_front_of_the_application(tmp_path: Path) -> None:
    async with applications(tmp_path, names=["wiki"], prefix="/wiki") as site:
        visitor = await site.signed_in(f"{WIKI}/wiki/x?{'a' * 3000}")
        assert visitor.url == f"{WIKI}/wiki"


async def test_thousands_of_begun_sign_ins_of_one_visitor_are_stopped(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = site.visitor()
        statuses = [(await visitor.ask(f"{WIKI}/{number}", *PAGE)).status for number in range(int(STARTS_PER_MINUTE))]
        assert set(statuses) == {303}
        answer = await visitor.ask(f"{WIKI}/more", *PAGE)
        assert (answer.status, answer.one("Content-Type")) == (429, b"text/html; charset=utf-8")
        assert int(answer.one("Retry-After") or b"0") >= 1


# --- the code ---


async def test_a_code_is_good_once(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = site.visitor()
        way = await visitor.way_to(f"{WIKI}/x", "code=")
        assert (await visitor.ask(way, *PAGE)).status == 303
        again = await visitor.ask(way, *PAGE)
        assert again.status == 403
        assert b"open the application again" in again.body


async def test_a_code_ends_after_half_a_minute(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = site.visitor()
        way = await visitor.way_to(f"{WIKI}/x", "code=")
        site.gateway.clock.advance(seconds=31)
        assert (await visitor.ask(way, *PAGE)).status == 403
        assert not is_in(visitor)


async def test_a_stolen_code_is_worth_nothing_in_another_browser(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        alice, mallory = site.visitor(), site.visitor()
        stolen = await alice.way_to(f"{WIKI}/x", "code=")
        # Mallory has a cookie, too, from a sign-in of their own.
        await mallory.step(f"{WIKI}/")
        assert (await mallory.ask(stolen, *PAGE)).status == 403
        assert not is_in(mallory)
        assert (await alice.ask(stolen, *PAGE)).status == 403, "it was spent by the attempt"


async def test_nobody_is_signed_in_as_somebody_else_by_a_link(tmp_path: Path) -> None:
    """Fixation, and login CSRF: the attacker signs in, and gives the victim the last step of it."""
    async with applications(tmp_path) as site:
        mallory, victim = site.visitor(), site.visitor()
        link = await mallory.way_to(f"{WIKI}/x", "code=")
        assert (await victim.ask(link, *PAGE)).status == 403
        assert not is_in(victim)


async def test_a_victim_who_follows_the_attackers_first_step_gives_nothing_away(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        mallory, victim = site.visitor(), await site.signed_in()
        link = await mallory.way_to(f"{WIKI}/x", "request=")
        _, code = await victim.step(link)
        assert "code=" in code
        assert (await mallory.ask(code, *PAGE)).status == 303, "only with the very code, in the hands of mallory"
        # So the code must not get there: it is in a redirect to the application's host, where the gateway answers it.
        _, code = await victim.step(link)
        assert (await victim.ask(code, *PAGE)).status == 403
        assert (await mallory.ask(code, *PAGE)).status == 403


async def test_a_code_for_one_host_is_worth_nothing_at_another(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = site.visitor()
        way = await visitor.way_to(f"{WIKI}/x", "code=")
        visitor.cookies["board.test"] = dict(visitor.cookies["wiki.test"])
        assert (await visitor.ask(way.replace(WIKI, BOARD), *PAGE)).status == 403
        assert not is_in(visitor, "board.test")


async def test_scripts_cannot_fetch_a_code(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        way = await visitor.way_to(f"{BOARD}/x", "request=")
        answer = await visitor.ask(way, "Accept: text/html", "Sec-Fetch-Mode: cors")
        assert (answer.status, answer.one("Location")) == (403, None)


async def test_an_unknown_or_old_request_says_what_to_do(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = site.visitor()
        way = await visitor.way_to(f"{WIKI}/x", "request=")
        site.gateway.clock.advance(seconds=601)
        for url in (way, f"{GATEWAY}/auth/application", f"{GATEWAY}/auth/application?request=x&request=y"):
            answer = await visitor.ask(url, *PAGE)
            assert answer.status == 400
            assert b"open the application again" in answer.body


async def test_no_secret_of_the_way_is_in_the_audit_record_or_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    async with applications(tmp_path) as site:
        visitor = site.visitor()
        code = await visitor.way_to(f"{WIKI}/x", "code=")
        await visitor.open(code)
        await visitor.ask(code, *PAGE)
        await visitor.ask(f"{WIKI}/y", *SCRIPT)
        secrets = [code.partition("code=")[2], *visitor.cookies["wiki.test"].values()]
        secrets += visitor.cookies["gateway.test"].values()
        record = json.dumps(await site.gateway.events())
        assert len(secrets) >= 4
        assert "application" in record
        for secret in secrets:
            assert secret not in record
            assert secret not in caplog.text


# --- the hosts of applications ---


async def test_the_pages_of_the_gateway_are_not_at_the_host_of_an_application(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        for path in ("/auth", "/auth/token", "/auth/admin", "/auth/me"):
            answer = await site.visitor().ask(f"{WIKI}{path}", *PAGE)
            assert (answer.status, answer.one("Location")) == (303, f"{GATEWAY}{path}".encode())
        posted = await site.visitor().ask(f"{WIKI}/auth/me", *PAGE, f"Origin: {WIKI}", method="POST", body=b"a=1")
        assert posted.status == 404


# --- signing out ---

CLICK = ("Sec-Fetch-Site: same-origin", "Sec-Fetch-User: ?1")


async def test_a_click_in_the_application_signs_out_everywhere(tmp_path: Path) -> None:
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        await visitor.open(f"{BOARD}/")
        answer = await visitor.ask(f"{WIKI}/auth/logout", *PAGE, *CLICK)
        assert answer.status == 200
        assert b"You are signed out" in answer.body
        assert not is_in(visitor)
        assert is_in(visitor, "board.test"), "the cookie is still there"
        assert (await visitor.ask(f"{BOARD}/x", *SCRIPT)).status == 401
        assert (await visitor.ask(f"{GATEWAY}/auth/sessions", *PAGE)).one("Location") == b"/auth"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(("Sec-Fetch-Site: cross-site", "Sec-Fetch-User: ?1"), id="a link of another site"),
        pytest.param(("Sec-Fetch-Site: same-site", "Sec-Fetch-User: ?1"), id="a link of a sibling"),
        pytest.param(("Sec-Fetch-Site: same-origin",), id="no click"),
        pytest.param((), id="an old browser"),
    ],
)
async def test_anything_else_asks_first(tmp_path: Path, lines: tuple[str, ...]) -> None:
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        answer = await visitor.ask(f"{WIKI}/auth/logout", *PAGE, *lines)
        assert b"Sign out?" in answer.body
        assert (await visitor.ask(f"{WIKI}/x", *SCRIPT)).status == 200


async def test_the_form_signs_out_and_a_foreign_one_does_not(tmp_path: Path) -> None:
    form = ("Content-Type: application/x-www-form-urlencoded", *PAGE)
    async with applications(tmp_path) as site:
        visitor = await site.signed_in()
        page = await visitor.ask(f"{WIKI}/auth/logout", *PAGE)
        token = page.body.partition(b'name="form_token" value="')[2].partition(b'"')[0]
        for origin, body in ((BOARD, b"form_token=" + token), (WIKI, b"form_token=wrong"), (WIKI, b"")):
            answer = await visitor.ask(
                f"{WIKI}/auth/logout", *form, f"Origin: {origin}", method="POST", body=body or b"x=1"
            )
            assert answer.status == 403
        assert (await visitor.ask(f"{WIKI}/x", *SCRIPT)).status == 200
        body = b"form_token=" + token
        answer = await visitor.ask(f"{WIKI}/auth/logout", *form, f"Origin: {WIKI}", method="POST", body=body)
        assert b"You are signed out" in answer.body
        assert (await visitor.ask(f"{WIKI}/x", *SCRIPT)).status == 401


async def test_an_application_on_the_gateways_own_host(tmp_path: Path) -> None:
    async with applications(tmp_path, names=["wiki"], hosts=["gateway.test"], prefix="/wiki") as site:
        visitor = await site.signed_in(f"{GATEWAY}/wiki/page?x=1")
        assert visitor.url == f"{GATEWAY}/wiki/page?x=1"
        assert (await visitor.ask(f"{GATEWAY}/auth/token", *PAGE)).status == 200
        assert b"Sign out?" in (await visitor.ask(f"{GATEWAY}/auth/logout", *PAGE)).body
        del visitor.cookies["gateway.test"]["__Host-ostiary-session"]
        answer = await visitor.ask(f"{GATEWAY}/auth/logout", *PAGE, *CLICK)
        assert b"You are signed out" in answer.body
        assert (await visitor.ask(f"{GATEWAY}/wiki/x", *SCRIPT)).status == 401
