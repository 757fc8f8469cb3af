"""What a signer may add, and what is refused before anything is sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary import ConfigurationError, RequestNotSigned, RequestToSign
from ostiary.client.signing import signed_headers, signed_headers_async
from tests.conftest import Connect
from tests.support.apiserver import ApiServer

OURS = (("Authorization", "Bearer t"), ("Impersonate-User", "jane"))


class Request:
    def __init__(self, url: str = "https://k.test:6443/api", *, has: Sequence[str] = ()) -> None:
        self._url, self._has = url, has

    def has(self, header: str) -> bool:
        return header in self._has

    def to_sign(self) -> RequestToSign:
        return RequestToSign("GET", self._url, (("Accept", "text/plain"),))


class Returning:
    def __init__(self, value: Any) -> None:
        self.value, self.shown = value, RequestToSign("", "")

    def sign(self, request: RequestToSign) -> Any:
        self.shown = request
        return self.value


def test_it_sees_the_callers_headers_ours_and_the_host() -> None:
    signer = Returning({})
    assert signed_headers(signer, Request(), OURS) == OURS
    assert signer.shown.headers == (("Host", "k.test:6443"), ("Accept", "text/plain"), *OURS)
    signed_headers(signer, Request("https://[::1]:443/api"), ())
    assert signer.shown.header("HOST") == "[::1]"


def test_what_it_adds_comes_after_ours_and_replaces_only_the_same_name() -> None:
    headers = signed_headers(Returning([("authorization", "Sigma"), ("X-A", "1"), ("X-A", "2")]), Request(), OURS)
    assert headers == (("Impersonate-User", "jane"), ("authorization", "Sigma"), ("X-A", "1"), ("X-A", "2"))


def test_what_no_signer_may_add_is_refused_and_no_value_is_quoted(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        (None, "it returned no headers"),
        ("X-A: 1", "it returned no headers"),
        ([("X-A", 1)], "not a pair of strings"),
        (["X-A"], "not a pair of strings"),
        ({"X A": "1"}, "a name is not one"),
        ({"X-A:": "1"}, "a name is not one"),
        ({"": "1"}, "a name is not one"),
        ({"X-A": "canary\r\nX-B: 2"}, "the value of X-A"),
        ({"X-A": "canary "}, "the value of X-A"),
        ({"X-A": "canary\u00e9"}, "the value of X-A"),
        ({"Host": "elsewhere"}, "cannot set Host"),
        ({"content-length": "0"}, "cannot set content-length"),
        ({"Transfer-Encoding": "chunked"}, "cannot set Transfer-Encoding"),
        ({"impersonate-user": "admin"}, "cannot set impersonate-user"),
        ({f"X-{number}": "1" for number in range(40)}, "more than 32 headers"),
        ({"X-A": "a" * 40000}, "more than 32"),
        ({"X-Mine": "1"}, "which the caller has set"),
    ]
    for value, cause in cases:
        with subtests.test(value=value, cause=cause):
            with pytest.raises(RequestNotSigned) as caught:
                signed_headers(Returning(value), Request(has=["x-mine"]), OURS)
            assert cause in str(caught.value.cause)
            assert str(caught.value.cause).startswith("signer Returning: ")
            assert "canary" not in str(caught.value)
            assert caught.value.code == "request-signing-failed"


@given(st.dictionaries(st.text(), st.text()))
def test_whatever_it_returns_no_header_breaks_out_of_its_line(added: dict[str, str]) -> None:
    try:
        headers = signed_headers(Returning(added), Request(), ())
    except RequestNotSigned:
        return
    text = "".join(f"{name}: {value}\r\n" for name, value in headers)
    assert text.count("\r") == text.count("\n") == len(added)
    assert text.isascii()


def test_in_an_event_loop_the_same_is_judged() -> None:
    class AsyncRequest(Request):
        async def to_sign(self) -> RequestToSign:  # type: ignore[override]
            return super().to_sign()

    class Both(Returning):
        async def sign_async(self, request: RequestToSign) -> Any:
            return {"X-Loop": "1"}

    assert asyncio.run(signed_headers_async(Returning({"X-A": "1"}), AsyncRequest(), ())) == (("X-A", "1"),)
    assert asyncio.run(signed_headers_async(Both({"X-A": "1"}), AsyncRequest(), ())) == (("X-Loop", "1"),)
    with pytest.raises(RequestNotSigned):
        asyncio.run(signed_headers_async(Returning({"Host": "1"}), AsyncRequest(), ()))


def test_a_request_shows_neither_its_headers_nor_its_body() -> None:
    request = RequestToSign("POST", "https://k.test/", (("Authorization", "Bearer canary"),), b"canary")
    assert "canary" not in repr(request)
    assert request.header("missing") is None


# --- which signer a connection has ---


@pytest.mark.parametrize("signer", [object(), Returning, lambda request: {}])
def test_what_cannot_sign_is_refused_by_connect(signer: Any, connect_to: Connect) -> None:
    with pytest.raises(ConfigurationError, match="request signer"):
        connect_to(signer=signer)


def test_a_server_without_tls_gets_no_signature_and_the_log_says_so(
    connect_to: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        connection = connect_to(server="http://localhost:1", user={}, signer=Returning({"X-A": "1"}))
    assert connection.request_signer is None
    assert "no credential is sent" in caplog.text


def test_a_user_without_a_credential_is_signed_all_the_same(connect_to: Connect, api: ApiServer) -> None:
    with connect_to(user={}, signer=Returning({"Authorization": "Sigma 1"})).httpx() as client:
        client.get("/version")
    assert api.requests[0].headers.get_list("Authorization") == ["Sigma 1"]


def test_an_authorization_of_the_caller_is_not_replaced_in_silence(connect_to: Connect, api: ApiServer) -> None:
    mine = {"Authorization": "Bearer mine"}
    connection = connect_to(signer=Returning({"Authorization": "Sigma 1"}))
    with connection.httpx() as client, pytest.raises(RequestNotSigned, match="could not be signed"):
        client.get("/version", headers=mine)
    with connect_to(signer=Returning({"X-Signature": "1"})).httpx() as client:
        client.get("/version", headers=mine)
    assert [(request.headers.get("Authorization"), request.headers.get("X-Signature")) for request in api.requests] == [
        ("Bearer mine", "1")
    ]
