"""Every adapter has its requests signed: what the signer saw is what the server gets, retries and streams included."""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from urllib.parse import quote, urlsplit

import pytest

from ostiary import RequestNotSigned, RequestToSign
from ostiary.client.connection import Connection
from tests.conformance.adapters.contract import (
    PODS,
    WATCH,
    Driver,
    assert_nothing_of_ours,
    event,
    impersonating,
    redirect_to,
)
from tests.conformance.adapters.test_aiohttp import AiohttpDriver
from tests.conformance.adapters.test_httpx import (
    AsyncHttpx2Driver,
    AsyncHttpxDriver,
    Httpx2Driver,
    HttpxDriver,
    TrioHttpxDriver,
)
from tests.conformance.adapters.test_kr8s import Kr8sDriver
from tests.conformance.adapters.test_kubernetes import KubernetesDriver
from tests.conformance.adapters.test_kubernetes_aio import KubernetesAioDriver, KubernetesAsyncioDriver
from tests.conformance.adapters.test_lightkube import AsyncLightkubeDriver, LightkubeDriver
from tests.conformance.adapters.test_requests import RequestsDriver
from tests.conformance.adapters.test_urllib3 import Urllib3Driver
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.http_server import HttpServer, Request, Response
from tests.support.plugins import PluginScript

DRIVERS = [
    AiohttpDriver,
    AsyncHttpx2Driver,
    AsyncHttpxDriver,
    AsyncLightkubeDriver,
    Httpx2Driver,
    HttpxDriver,
    Kr8sDriver,
    KubernetesAioDriver,
    KubernetesAsyncioDriver,
    KubernetesDriver,
    LightkubeDriver,
    RequestsDriver,
    TrioHttpxDriver,
    Urllib3Driver,
]
KEY = b"a key that the server knows too"
ECHO = "/api/v1/echo"
CANARY = "canary-of-the-signature"


def mac(method: str, url: str, host: str, authorization: str, body: bytes) -> str:
    parts = [method.encode(), url.encode(), host.encode(), authorization.encode(), hashlib.sha256(body).digest()]
    return hmac.new(KEY, b"\n".join(parts), "sha256").hexdigest()


class MacSigner:
    """Signs method, URL, host, credential and body with a key that both sides know; remembers what it saw."""

    def __init__(self, *, streams: bool = False) -> None:
        self.requests: list[RequestToSign] = []
        self.threads: set[str] = set()
        self._streams = streams

    def sign(self, request: RequestToSign) -> dict[str, str]:
        self.requests.append(request)
        self.threads.add(threading.current_thread().name)
        body = b"" if request.is_streamed and self._streams else request.body
        signature = mac(
            request.method, request.url, request.header("host") or "", request.header("authorization") or "", body
        )
        return {
            "X-Signature": signature,
            "X-Number": str(len(self.requests)),
            "X-Unsigned-Body": str(request.is_streamed),
        }


class LoopSigner(MacSigner):
    """The same, within the event loop."""

    async def sign_async(self, request: RequestToSign) -> dict[str, str]:
        return self.sign(request)


def verify(api: ApiServer, received: Request) -> None:
    """As a server would: from what has arrived."""
    body = b"" if received.headers.get("X-Unsigned-Body") == "True" else received.body
    expected = mac(
        received.method,
        api.url + received.target,
        received.headers.get("Host", ""),
        received.headers.get("Authorization", ""),
        body,
    )
    assert received.headers.get_list("X-Signature") == [expected]


OpenWith = Callable[[Connection], Driver]


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.__name__)
def opened(request: pytest.FixtureRequest) -> Iterator[OpenWith]:
    drivers: list[Driver] = []

    def open_driver(connection: Connection) -> Driver:
        drivers.append(request.param(connection))
        return drivers[-1]

    yield open_driver
    for driver in drivers:
        with closing(driver):
            pass


def test_what_the_signer_saw_is_what_the_server_gets(opened: OpenWith, connect_to: Connect, api: ApiServer) -> None:
    signer = MacSigner()
    driver = opened(connect_to(signer=signer))
    odd = f"{PODS}?labelSelector={quote('a=b,c in (d)')}&note=%7Eplus%2Bspace%20"
    assert driver.get(PODS).status == 200
    assert driver.get(odd).status == 200
    assert driver.post(ECHO, b"x" * 70000).status == 200
    for received, shown in zip(api.requests, signer.requests, strict=True):
        verify(api, received)
        assert received.headers.get("Authorization") == "Bearer token-1" == shown.header("authorization")
        assert urlsplit(shown.url).path + "?" + urlsplit(shown.url).query == (
            received.target if "?" in received.target else received.target + "?"
        )
    assert signer.requests[-1].body == b"x" * 70000
    assert not signer.requests[0].is_streamed


def test_a_request_that_is_sent_again_after_a_401_is_signed_again(
    opened: OpenWith, connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    signer = MacSigner()
    driver = opened(connect_to(signer=signer))
    driver.get(PODS)
    api.rules.tokens = {"token-2"}
    plugin.answer(token="token-2")
    assert driver.post(ECHO, b"again").status == 200
    assert api.statuses == [200, 401, 200]
    for received in api.requests:
        verify(api, received)
    assert [request.headers.get("X-Number") for request in api.requests] == ["1", "2", "3"]
    assert api.requests[1].headers.get("X-Signature") != api.requests[2].headers.get("X-Signature")


def test_a_streamed_body_is_an_error_or_knowingly_unsigned(
    opened: OpenWith, connect_to: Connect, api: ApiServer
) -> None:
    driver = opened(connect_to(signer=MacSigner()))
    if not driver.sends_generators:
        pytest.skip("the library does not take a generator as the body")
    with pytest.raises(RequestNotSigned) as caught:
        driver.post(ECHO, (part for part in (b"one", b"two")))
    assert caught.value.code == "request-body-streamed"
    assert api.requests == []
    driver = opened(connect_to(signer=MacSigner(streams=True)))
    assert driver.post(ECHO, (part for part in (b"one", b"two"))).status == 200
    assert (api.requests[0].body, api.requests[0].headers.get("X-Unsigned-Body")) == (b"onetwo", "True")
    verify(api, api.requests[0])


def test_the_signature_goes_to_the_cluster_and_nowhere_else(opened: OpenWith, connect_to: Connect) -> None:
    signer = MacSigner()
    driver = opened(connect_to(signer=signer))
    with HttpServer(Response(body={})).running() as elsewhere:
        driver.get(redirect_to(elsewhere.url + PODS))
        with suppress(Exception):
            driver.get(elsewhere.url + PODS)
    assert len(elsewhere.requests) >= driver.follows_redirects
    assert_nothing_of_ours(elsewhere.requests)
    assert [request.headers.get("X-Signature") for request in elsewhere.requests] == [None] * len(elsewhere.requests)
    assert not any(elsewhere.url in request.url for request in signer.requests if "/redirect" not in request.url)


def test_each_hop_of_a_redirect_within_the_cluster_is_signed(
    opened: OpenWith, connect_to: Connect, api: ApiServer
) -> None:
    driver = opened(connect_to(signer=MacSigner()))
    if not driver.follows_redirects:
        pytest.skip("the library does not follow redirects")
    assert driver.get(redirect_to(PODS)).status == 200
    assert api.statuses == [307, 200]
    for received in api.requests:
        verify(api, received)


def test_a_watch_is_signed(opened: OpenWith, connect_to: Connect, api: ApiServer) -> None:
    api.first_event = event("a")
    driver = opened(connect_to(signer=MacSigner()))
    with driver.watch(WATCH) as lines:
        next(lines)
        api.end_watches()
    verify(api, api.requests[0])


def test_impersonation_is_shown_to_the_signer(
    opened: OpenWith, connect_to: Connect, api: ApiServer, plugin: PluginScript
) -> None:
    signer = MacSigner()
    opened(connect_to(user=impersonating(plugin), signer=signer)).get(PODS)
    assert signer.requests[0].header("Impersonate-User") == "jane"
    assert signer.requests[0].header("Impersonate-Group") == "developers, night shift"
    assert api.requests[0].headers.get_list("Impersonate-Group") == ["developers", "night shift"]
    verify(api, api.requests[0])


def test_an_authorization_of_the_signer_replaces_the_connections_own(
    opened: OpenWith, connect_to: Connect, api: ApiServer
) -> None:
    class Replacing:
        def sign(self, request: RequestToSign) -> list[tuple[str, str]]:
            return [("authorization", f"Sigma {len(request.body)}"), ("X-Date", "now")]

    opened(connect_to(signer=Replacing())).get(PODS)
    assert api.requests[0].headers.get_list("Authorization") == ["Sigma 0"]


def test_a_signer_that_fails_sends_nothing_and_the_cause_reaches_the_caller(
    opened: OpenWith, connect_to: Connect, api: ApiServer
) -> None:
    class Failing:
        def sign(self, request: RequestToSign) -> dict[str, str]:
            raise LookupError("no key")

    driver = opened(connect_to(signer=Failing()))
    with pytest.raises(RequestNotSigned) as caught:
        driver.get(PODS)
    assert caught.value.cause == "signer Failing: it raised LookupError: no key"
    assert api.requests == []


def test_a_signer_of_the_event_loop_is_used_there_and_no_thread_is_started(
    opened: OpenWith, connect_to: Connect, api: ApiServer
) -> None:
    signer = LoopSigner()
    driver = opened(connect_to(signer=signer))
    assert driver.get(PODS).status == 200
    verify(api, api.requests[0])
    assert not any("ostiary-request-signer" in name for name in signer.threads)


def test_the_signature_is_in_no_repr_and_no_log(
    opened: OpenWith, connect_to: Connect, api: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    class Canary:
        def sign(self, request: RequestToSign) -> dict[str, str]:
            return {"X-Signature": CANARY}

    caplog.set_level(logging.DEBUG)
    driver = opened(connect_to(signer=Canary()))
    driver.get(PODS)
    assert api.requests[0].headers.get("X-Signature") == CANARY
    assert CANARY not in caplog.text
    for shown in driver.shown():
        assert CANARY not in repr(shown)
