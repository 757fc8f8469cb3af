"""One user, on this machine, under a name of this machine."""

from __future__ import annotations

import pytest

from ostiary.core.yaml import ConfigReader, parse
from ostiary.errors import LoginRefused
from ostiary_gateway.catalog import Context
from ostiary_gateway.interfaces.identity import LoginRequest
from ostiary_gateway.providers.single_user import SingleUserIdentity


def request(*, host: str | None = "localhost:8443", remote: str = "127.0.0.1", callback: str = "") -> LoginRequest:
    headers = () if host is None else (("host", host),)
    return LoginRequest("GET", "/auth", headers=headers, remote_address=remote, callback_url=callback)


async def test_the_default_is_the_user_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """S15."""
    monkeypatch.setenv("LOGNAME", "carol")
    assert (await SingleUserIdentity().handle_client(request())).username == "carol"


@pytest.mark.parametrize("remote", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
async def test_the_loopback_is_let_in(remote: str) -> None:
    assert await SingleUserIdentity(username="a").handle_client(request(remote=remote))


@pytest.mark.parametrize("remote", ["192.0.2.1", "::ffff:192.0.2.1", "fe80::1", "", "localhost"])
async def test_others_are_not(remote: str) -> None:
    """S15."""
    with pytest.raises(LoginRefused):
        await SingleUserIdentity(username="a").handle_client(request(remote=remote))


async def test_a_page_that_points_its_own_name_at_us_is_refused(subtests: pytest.Subtests) -> None:
    """The answer could be read by its scripts: to the browser it comes from the page's own origin."""
    for host in ["evil.example", "localhost.evil.example", None, "", "[", "0.0.0.0"]:
        with subtests.test(host=host), pytest.raises(LoginRefused):
            await SingleUserIdentity(username="a").handle_client(
                request(host=host, callback="http://gw.test/auth/provider")
            )


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8443", "[::1]:8443", "gw.test"])
async def test_our_own_names_are_known(host: str) -> None:
    provider = SingleUserIdentity(username="a")
    assert await provider.handle_client(request(host=host, callback="http://gw.test/auth/provider"))


@pytest.mark.parametrize("header", ["forwarded", "via", "x-forwarded-for", "x-real-ip"])
async def test_who_comes_through_a_proxy_of_this_machine_may_be_anybody(header: str) -> None:
    """S15, H3."""
    through = LoginRequest("GET", "/auth", headers=(("host", "localhost"), (header, "x")), remote_address="127.0.0.1")
    with pytest.raises(LoginRefused):
        await SingleUserIdentity(username="a").handle_client(through)


def test_an_empty_name_is_a_mistake() -> None:
    reading = ConfigReader(parse("username: ''"))
    SingleUserIdentity.from_config(reading.root, Context())
    assert [problem.place.path for problem in reading.problems] == ["username"]


async def test_the_name_comes_from_the_configuration() -> None:
    reading = ConfigReader(parse("username: dave"))
    provider = SingleUserIdentity.from_config(reading.root, Context())
    assert (await provider.handle_client(request())).username == "dave"
