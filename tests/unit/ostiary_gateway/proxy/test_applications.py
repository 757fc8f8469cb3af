"""Which host and path belong to a web application, and which origin it has."""

from __future__ import annotations

import pytest

from ostiary_gateway.config.upstream import UpstreamAuth
from ostiary_gateway.config.values import is_listed
from ostiary_gateway.proxy.applications import Applications
from ostiary_gateway.proxy.routes import Routes
from tests.unit.ostiary_gateway.proxy.test_routes import upstream

BROWSER = UpstreamAuth.BROWSER


@pytest.fixture
async def applications() -> Applications:
    routes = Routes(
        [
            upstream("wiki", hosts=("wiki.test", "[2001:db8::1]"), auth=BROWSER),
            upstream("api", hosts=("wiki.test",), prefix="/api"),
            upstream("home", prefix="/home", auth=BROWSER),
        ]
    )
    return Applications(routes, "https://gateway.test:8443")


@pytest.mark.parametrize(
    ("host", "path", "name"),
    [
        ("wiki.test:8443", "/", "wiki"),
        ("WIKI.test:8443", "/x", "wiki"),
        ("[2001:db8::1]:8443", "/x", "wiki"),
        ("wiki.test:8443", "/api/x", ""),
        ("gateway.test:8443", "/home", "home"),
        ("gateway.test:8443", "/other", ""),
        ("wiki.test", "/", ""),
        ("wiki.test:443", "/", ""),
        ("evil.test:8443", "/home", ""),
        ("", "/home", ""),
    ],
)
async def test_only_hosts_of_the_configuration_have_applications(
    applications: Applications, host: str, path: str, name: str
) -> None:
    assert applications.serving(host, path) == ({name} if name else set())


async def test_the_origin_is_what_a_browser_writes(applications: Applications) -> None:
    assert applications.origin("WIKI.test:8443") == "https://wiki.test:8443"
    assert applications.origin("evil.test:8443") == ""
    assert applications.is_gateways_own("Gateway.test:8443")
    assert not applications.is_gateways_own("wiki.test:8443")
    assert Applications(Routes([]), "https://gateway.test").origin("gateway.test") == ""


async def test_the_port_is_that_of_the_proxy_which_carries_the_requests(applications: Applications) -> None:
    board = upstream("board", hosts=("board.test",), auth=BROWSER)
    routes = Routes([board, upstream("wiki", hosts=("wiki.test",), auth=BROWSER)])
    other = Applications(routes, "https://gateway.test:8443", port=9443)
    assert other.origin("board.test:9443") == "https://board.test:9443"
    assert other.origin("board.test:8443") == ""
    assert not other.is_gateways_own("gateway.test:9443")
    every = applications.with_others([other])
    assert every.serving("wiki.test:8443", "/") == every.serving("wiki.test:9443", "/api") == {"wiki"}
    assert every.serving("wiki.test:8443", "/api") == set(), "there it is another upstream's"
    assert every.at("board.test:9443") == (board,)
    assert applications.at("board.test:9443") == (), "as it was"
    usual = Applications(routes, "https://gateway.test:8443", port=443)
    assert usual.origin("board.test") == "https://board.test"
    assert usual.origin("board.test:443") == "", "browsers leave it out"


def test_a_public_path_is_an_exact_one_or_below_one_with_a_slash(subtests: pytest.Subtests) -> None:
    cases = [
        ("/healthz", True),
        ("/healthz/", False),
        ("/static/", True),
        ("/static/a/b", True),
        ("/static", False),
        ("/", False),
    ]
    for path, public in cases:
        with subtests.test(path=path, public=public):
            assert is_listed(path, ("/healthz", "/static/")) is public
