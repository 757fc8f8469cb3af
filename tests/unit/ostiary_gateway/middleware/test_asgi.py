"""From an ASGI scope to a request, and answers without an application."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary_gateway.middleware import access as refusing
from ostiary_gateway.middleware.asgi import Message, request_of, send_refusal

BEARER = (b"authorization", b"Bearer ost_x")


def scope(path: str = "/a", *headers: tuple[bytes, bytes], **more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": list(headers),
        "client": ("192.0.2.7", 1),
        **more,
    }


def test_what_a_scope_says() -> None:
    request = request_of(scope("/a", BEARER, (b"user-agent", b"curl"), query_string=b"x=1"))
    assert (request.method, request.target, request.token) == ("GET", b"/a?x=1", b"ost_x")
    assert (request.remote, request.user_agent, request.mistake) == ("192.0.2.7", b"curl", "")
    assert "ost_x" not in repr(request)


def test_a_server_that_gives_no_raw_path_is_understood() -> None:
    assert request_of(scope("/\u00e4 b/c", raw_path=None)).target == b"/%C3%A4%20b/c"
    assert request_of(scope("/a", client=None)).remote == ""


@pytest.mark.parametrize(
    "changed",
    [
        scope("/a", BEARER, BEARER),
        scope("/a", (b"impersonate-user", b"root")),
        # Something in between has rewritten one of the two.
        scope("/admin", raw_path=b"/public"),
        scope("/a/b", raw_path=b"/a%252Fb"),
    ],
)
def test_what_has_two_readings_is_a_mistake(changed: dict[str, Any]) -> None:
    """P1, H5."""
    assert request_of(changed).mistake != ""


def test_an_encoded_path_is_decided_on_as_it_was_sent() -> None:
    assert request_of(scope("/a b", raw_path=b"/a%20b")).mistake == ""
    assert request_of(scope("/a b", raw_path=b"/a%20b")).target == b"/a%20b"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_path_is_read(path: str) -> None:
    request_of(scope("/" + path, raw_path=None))


async def sent(changed: dict[str, Any]) -> list[Message]:
    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    async def receive() -> Message:
        raise AssertionError

    await send_refusal(changed, receive, send, refusing.unauthorized("id", attempted=False))
    return messages


async def test_a_refusal_is_sent_whole() -> None:
    start, body = await sent(scope())
    assert start["status"] == 401
    assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()
    assert (await sent(scope(method="HEAD")))[1]["body"] == b""


async def test_a_websocket_is_refused_as_its_server_can() -> None:
    closed = await sent(scope(type="websocket"))
    assert closed == [{"type": "websocket.close", "code": 1008, "reason": ""}]
    start, _ = await sent(scope(type="websocket", extensions={"websocket.http.response": {}}))
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 401)
