"""From a WSGI environ to a request, and what becomes of the application's answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.types import WSGIEnvironment

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.middleware import SyncGatekeeper
from ostiary_gateway.middleware.gatekeeper import Gatekeeper
from ostiary_gateway.middleware.wsgi import GatekeeperMiddleware, request_of
from tests.support.scripted_gateway import ScriptedGateway


def environ(path: str = "/a", **more: str) -> WSGIEnvironment:
    return {"REQUEST_METHOD": "GET", "SCRIPT_NAME": "", "PATH_INFO": path, "QUERY_STRING": "", **more}


def test_what_an_environ_says() -> None:
    request = request_of(
        environ(
            "/a", QUERY_STRING="x=1", HTTP_AUTHORIZATION="Bearer ost_x", REMOTE_ADDR="192.0.2.7", HTTP_USER_AGENT="curl"
        )
    )
    assert (request.target, request.token) == (b"/a?x=1", b"ost_x")
    assert (request.remote, request.user_agent, request.mistake) == ("192.0.2.7", b"curl", "")


def test_the_path_is_the_one_that_the_application_routes_by() -> None:
    assert request_of(environ("/b", SCRIPT_NAME="/app")).target == b"/app/b"
    # UTF-8, as PEP 3333 hands it over.
    assert request_of(environ("/\u00e4".encode().decode("latin-1"))).target == b"/%C3%A4"


def test_impersonation_is_refused() -> None:
    """H5."""
    assert request_of(environ(HTTP_IMPERSONATE_USER="root")).mistake != ""


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    with ScriptedGateway().running() as served:
        yield served


@pytest.fixture
def gatekeeper(gateway: ScriptedGateway, tmp_path: Path) -> Iterator[SyncGatekeeper]:
    settings = gateway.settings(tmp_path, openPaths=["/open"], audit={"log": {"path": "audit.log"}})
    with SyncGatekeeper(lambda: Gatekeeper.from_mapping(settings, directory=tmp_path)) as gatekeeper:
        yield gatekeeper


class Server:
    """Calls the application as a server does."""

    def __init__(self, app: Callable[..., Any], gatekeeper: SyncGatekeeper) -> None:
        self._app = GatekeeperMiddleware(app, gatekeeper)

    def __call__(self, asked: WSGIEnvironment) -> tuple[str, dict[str, str], bytes]:
        started: list[tuple[str, dict[str, str]]] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: object = None, /
        ) -> Callable[[bytes], object]:
            started.append((status, dict(headers)))
            return lambda data: None

        body = self._app(asked, start_response)
        try:
            content = b"".join(body)
        finally:
            close = getattr(body, "close", None)
            if close is not None:
                close()
        return *started[0], content


def greeting(asked: WSGIEnvironment, start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    user = asked.get("ostiary.user")
    return [b"nobody" if user is None else user.username.encode()]


def test_the_path_of_a_configuration_is_read_when_the_middleware_is_made(
    gateway: ScriptedGateway, tmp_path: Path
) -> None:
    path = tmp_path / "backend.yaml"
    path.write_text(json.dumps(gateway.settings(tmp_path)))
    GatekeeperMiddleware(greeting, path)
    with pytest.raises(ConfigurationError, match=r"absent\.yaml"):
        GatekeeperMiddleware(greeting, tmp_path / "absent.yaml")


def test_an_application_knows_the_user(gateway: ScriptedGateway, gatekeeper: SyncGatekeeper) -> None:
    status, headers, body = Server(greeting, gatekeeper)(environ(HTTP_AUTHORIZATION=f"Bearer {gateway.add('ann')}"))
    assert (status, body) == ("200 OK", b"ann")
    assert len(headers["Audit-Id"]) == 36


def test_an_open_path_has_no_user_whatever_a_server_sets(gatekeeper: SyncGatekeeper) -> None:
    assert Server(greeting, gatekeeper)(environ("/open", **{"ostiary.user": "root"}))[2] == b"nobody"


def test_a_refusal_of_a_view_is_answered(gateway: ScriptedGateway, gatekeeper: SyncGatekeeper) -> None:
    def view(asked: WSGIEnvironment, start_response: Callable[..., Any]) -> list[bytes]:
        raise asked["ostiary"].missing()

    status, headers, _ = Server(view, gatekeeper)(environ(HTTP_AUTHORIZATION=f"Bearer {gateway.add('ann')}"))
    assert (status, headers["Cache-Control"]) == ("404 Not Found", "no-cache, private")


def test_other_failures_are_the_servers_to_answer(gateway: ScriptedGateway, gatekeeper: SyncGatekeeper) -> None:
    def view(asked: WSGIEnvironment, start_response: Callable[..., Any]) -> list[bytes]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Server(view, gatekeeper)(environ(HTTP_AUTHORIZATION=f"Bearer {gateway.add('ann')}"))


def test_a_head_gets_no_body(gatekeeper: SyncGatekeeper) -> None:
    status, headers, body = Server(greeting, gatekeeper)(environ(REQUEST_METHOD="HEAD"))
    assert (status, body) == ("401 Unauthorized", b"")
    assert int(headers["Content-Length"]) > 0
