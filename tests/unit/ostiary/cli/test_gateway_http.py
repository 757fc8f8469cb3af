"""Which addresses of a gateway are taken, and how it is asked: with bounds, and by nobody who could listen."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.cli.arguments import UsageError
from ostiary.cli.gateway_http import GatewayHttp, Reply, checked_address
from ostiary.errors import ProviderError
from tests.support.http_server import HttpServer, Response

EMPTY = Response(body={})


def test_one_gateway_has_one_address(subtests: pytest.Subtests) -> None:
    cases = [
        ("https://gateway.example", "https://gateway.example"),
        ("HTTPS://Gateway.Example:8443/", "https://gateway.example:8443"),
        ("https://gateway.example/Sub/", "https://gateway.example/Sub"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://[::1]:8080", "http://[::1]:8080"),
        ("http://localhost", "http://localhost"),
    ]
    for address, taken in cases:
        with subtests.test(address=address, taken=taken):
            assert checked_address(address) == taken
            assert checked_address(taken) == taken


def test_what_is_no_address_or_shows_the_token_is_refused_and_not_quoted(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        "gateway.example",
        "ftp://gateway.example",
        "http://gateway.example",
        "http://localhost.evil.example",
        "https://ann:word@gateway.example",
        "https://gateway.example?x",
        "https://gateway.example#x",
        "https://gateway.example:port",
        "https://gateway.example/a b",
        "https://gateway.example/\n",
        "https://[::1",
    ]
    for address in cases:
        with subtests.test(address=address):
            with pytest.raises(UsageError) as caught:
                checked_address(address)
            assert "ann:word" not in str(caught.value)


def test_what_is_wrong_with_an_address_is_told(subtests: pytest.Subtests) -> None:
    cases = [
        ("gateway.example", "it does not begin with https://"),
        ("gateway.example:8443/sub", "it does not begin with https://"),
        ("localhost:8080", "it does not begin with https://"),
        ("https://gateway.example:99999", "its port is not a number from 0 to 65535"),
        ("https://gateway.example:port", "its port is not a number from 0 to 65535"),
        ("ftp://gateway.example", "it is not a URL such as https://gateway.example"),
        ("", "it is not a URL such as https://gateway.example"),
        ("a gateway", "it is not a URL such as https://gateway.example"),
    ]
    for address, cause in cases:
        with subtests.test(address=address, cause=cause):
            with pytest.raises(UsageError) as caught:
                checked_address(address)
            assert caught.value.cause == cause


@settings(max_examples=200)
@given(st.text(max_size=30))
def test_any_text_is_taken_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert checked_address(checked_address(text)) == checked_address(text)


# --- one question ---


def ask(server: str, **options: Any) -> Reply:
    return GatewayHttp(server, **options).ask("GET", "/x", headers={"Authorization": "Bearer t"})


def test_what_stays_on_this_machine_is_shown_to_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpServer(EMPTY).running() as gateway, HttpServer(EMPTY).running() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        assert ask(gateway.url).status == 200
        assert (len(gateway.requests), proxy.requests) == (1, [])


def test_a_proxy_sees_where_to_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpServer(Response(502)).running() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        with pytest.raises(ProviderError) as caught:
            ask("https://gateway.example")
        assert caught.value.code == "gateway-unreachable"
        assert [(request.method, request.target) for request in proxy.requests] == [("CONNECT", "gateway.example:443")]


def test_a_redirect_is_an_answer_and_not_a_way() -> None:
    with HttpServer(EMPTY).running() as other:
        with HttpServer(Response(307, {}, {"Location": f"{other.url}/x"})).running() as gateway:
            assert ask(gateway.url).status == 307
        assert other.requests == []


@pytest.mark.parametrize(
    "body",
    [b"", b"no", b"[1]", b"[" * 99, b'{"a": "' + b"x" * 100 + b'"}'],
    ids=["empty", "no JSON", "a list", "deep", "large"],
)
def test_an_answer_that_is_no_object_or_too_large_has_no_fields(body: bytes) -> None:
    with HttpServer(Response(body=body)).running() as gateway:
        assert ask(gateway.url, largest=100).fields == {}


def test_a_reply_does_not_show_what_is_in_it() -> None:
    with HttpServer(Response(body={"token": "s3cret"})).running() as gateway:
        found = ask(gateway.url)
        assert found.fields == {"token": "s3cret"}
        assert "s3cret" not in repr(found)
