"""One request to a server outside: a real one on loopback."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import pytest

from ostiary.core.http import NO_REPLY, OutgoingHttp, reason_of
from ostiary_gateway.testing import FakeClock
from tests.support.http_server import HttpServer, Request, Response

LARGEST = 64


class Server(HttpServer):
    """Responds by the path."""

    def __init__(self) -> None:
        super().__init__(self._respond)
        self.clock = FakeClock()

    def _respond(self, request: Request) -> Response | None:
        kind, _, detail = request.path.strip("/").partition("/")
        headers = {"X-Kind": "test"}
        match kind:
            case "status":
                return Response(int(detail), {}, headers)
            case "size":
                return Response(200, b"x" * int(detail), headers)
            case "moved":
                return Response(302, headers={"Location": f"/{detail}"})
            case "late":
                self.clock.advance(60)
                return Response(200, {}, headers)
        return None


@pytest.fixture
def server() -> Iterator[Server]:
    with Server().running() as server:
        yield server


def outgoing(server: Server, *, follow_redirects: bool = False) -> OutgoingHttp:
    return OutgoingHttp(
        context=ssl.create_default_context(),
        seconds=30,
        largest=LARGEST,
        proxies={},
        follow_redirects=follow_redirects,
        clock=server.clock,
    )


@pytest.mark.parametrize("status", [200, 204, 400, 401, 404, 500, 503])
@pytest.mark.parametrize("follow_redirects", [False, True])
def test_every_status_is_a_reply_and_not_an_exception(server: Server, status: int, follow_redirects: bool) -> None:
    reply = outgoing(server, follow_redirects=follow_redirects).send("GET", f"{server.url}/status/{status}")
    assert (reply.status, reply.headers["X-Kind"], reply.is_whole) == (status, "test", True)


def test_method_body_and_headers_are_sent(server: Server) -> None:
    outgoing(server).send("POST", f"{server.url}/status/200", b"a=b", headers={"Authorization": "Basic eDp5"})
    (request,) = server.requests
    assert (request.method, request.target, request.body) == ("POST", "/status/200", b"a=b")
    assert request.headers["Authorization"] == "Basic eDp5"


def test_a_redirect_is_not_followed_so_that_a_secret_goes_no_further(server: Server) -> None:
    reply = outgoing(server).send("GET", f"{server.url}/moved/status/200", headers={"Authorization": "Basic eDp5"})
    assert reply.status == 302
    assert [request.target for request in server.requests] == ["/moved/status/200"]


def test_a_redirect_is_followed_where_the_caller_says_so(server: Server) -> None:
    reply = outgoing(server, follow_redirects=True).send("GET", f"{server.url}/moved/status/200")
    assert reply.status == 200
    assert [request.target for request in server.requests] == ["/moved/status/200", "/status/200"]


@pytest.mark.parametrize(("size", "is_whole"), [(LARGEST, True), (LARGEST + 1, False), (100_000, False)])
def test_no_more_than_the_allowed_size_is_kept(server: Server, size: int, is_whole: bool) -> None:
    reply = outgoing(server).send("GET", f"{server.url}/size/{size}")
    assert (len(reply.body), reply.is_whole) == (LARGEST, is_whole)


def test_a_head_request_has_no_body(server: Server) -> None:
    assert outgoing(server).send("HEAD", f"{server.url}/size/10").body == b""


def test_a_reply_that_takes_longer_than_allowed_is_none(server: Server) -> None:
    with pytest.raises(TimeoutError, match="timed out"):
        outgoing(server).send("GET", f"{server.url}/late")


@pytest.mark.parametrize("path", ["/nothing", "/\x00", "/\u20ac"])
def test_what_prevents_a_reply_is_one_of_the_named_errors(server: Server, path: str) -> None:
    with pytest.raises(NO_REPLY):
        outgoing(server).send("GET", server.url + path)


def test_the_reason_is_told_without_the_librarys_wrapping() -> None:
    with Server().running() as server:
        pass
    with pytest.raises(OSError) as caught:
        outgoing(server).send("GET", server.url)
    assert isinstance(reason_of(caught.value), ConnectionRefusedError)
    assert str(reason_of(ValueError("it is wrong"))) == "it is wrong"


def test_a_reply_does_not_show_what_it_holds(server: Server) -> None:
    assert "xxx" not in repr(outgoing(server).send("GET", f"{server.url}/size/10"))
