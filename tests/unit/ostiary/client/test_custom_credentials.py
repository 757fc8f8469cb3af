"""A program's own source of credentials: fetched when it must be, once for all callers, and judged before use."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import ec

import ostiary
from ostiary import ClientCertificate, ConfigurationError, Credential, Rejection, Secret, SourceFailed
from ostiary.errors import KeyUnusable
from ostiary_gateway.testing import FakeClock
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.device_keys.certified import certify
from tests.support.device_keys.handshake import MemoryKey
from tests.support.plugins import PluginScript

PODS = "/api/v1/namespaces/default/pods"


class Tokens:
    """token-1, token-2, ...; remembers why it was asked."""

    def __init__(self, *, lifetime: timedelta | None = None, clock: FakeClock | None = None) -> None:
        self.rejections: list[Rejection | None] = []
        self._lifetime, self._clock = lifetime, clock

    def next(self, rejection: Rejection | None) -> Credential:
        self.rejections.append(rejection)
        expires_at = None if self._lifetime is None or self._clock is None else self._clock.now() + self._lifetime
        return Credential(token=Secret(f"token-{len(self.rejections)}"), expires_at=expires_at)


class Source(Tokens):
    def fetch(self, rejection: Rejection | None) -> Credential:
        return self.next(rejection)


class AsyncSource(Tokens):
    loop: asyncio.AbstractEventLoop | None = None

    async def fetch_async(self, rejection: Rejection | None) -> Credential:
        self.loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        return self.next(rejection)


class Returning:
    def __init__(self, value: object) -> None:
        self._value = value

    def fetch(self, rejection: Rejection | None) -> Any:
        return self._value


@pytest.fixture(params=[Source, AsyncSource])
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    kind: Callable[..., Any] = request.param
    return kind


def test_many_requests_at_once_fetch_once_and_the_kubeconfigs_plugin_never_runs(
    make: Callable[..., Any],
    connect_to: Connect,
    api: ApiServer,
    plugin: PluginScript,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = make()
    with (
        caplog.at_level(logging.WARNING),
        connect_to(source=source).httpx() as client,
        ThreadPoolExecutor(16) as threads,
    ):
        statuses = list(threads.map(lambda _: client.get(PODS).status_code, range(32)))
    assert statuses == [200] * 32
    assert {request.headers.get("Authorization") for request in api.requests} == {"Bearer token-1"}
    assert (source.rejections, plugin.runs) == ([None], 0)
    assert "brings a source of its own" in caplog.text


def test_a_401_is_told_to_the_source_and_the_request_sent_again(
    make: Callable[..., Any], connect_to: Connect, api: ApiServer
) -> None:
    source = make()
    api.rules.tokens = {"token-2"}
    with connect_to(source=source).httpx() as client:
        assert client.get(PODS).status_code == 200
    assert api.statuses == [401, 200]
    first, second = source.rejections
    assert first is None
    assert second.status == 401
    assert second.headers["Www-Authenticate"] == ['Bearer realm="test"']


def test_it_is_fetched_again_when_it_has_expired_and_not_before(
    make: Callable[..., Any], connect_to: Connect, api: ApiServer, clock: FakeClock
) -> None:
    source = make(lifetime=timedelta(minutes=10), clock=clock)
    with connect_to(source=source).httpx() as client:
        client.get(PODS)
        clock.advance(minutes=9)
        client.get(PODS)
        clock.advance(minutes=1, seconds=1)
        client.get(PODS)
    assert [request.headers.get("Authorization") for request in api.requests] == [
        f"Bearer token-{n}" for n in (1, 1, 2)
    ]


def test_a_coroutine_runs_in_the_loop_of_connect_and_without_one_in_its_own(connect_to: Connect) -> None:
    source = AsyncSource()

    async def ask() -> asyncio.AbstractEventLoop:
        async with connect_to(source=source).httpx_async() as client:
            assert (await client.get(PODS)).status_code == 200
        return asyncio.get_running_loop()

    assert asyncio.run(ask()) is source.loop
    other = AsyncSource()
    with connect_to(source=other).httpx() as client:
        client.get(PODS)
    assert other.loop is not None
    assert other.loop.is_closed()


def test_a_coroutine_that_does_not_end_and_a_loop_that_is_blocked_are_told(connect_to: Connect) -> None:
    class Hanging:
        async def fetch_async(self, rejection: Rejection | None) -> Credential:
            await asyncio.Event().wait()
            raise AssertionError

    with connect_to(source=Hanging(), plugin_seconds=0.05).httpx() as client, pytest.raises(SourceFailed) as caught:
        client.get(PODS)
    assert "within 0.05 s" in str(caught.value.cause)

    async def blocked() -> None:
        with connect_to(source=AsyncSource(), plugin_seconds=0.05).httpx() as client:
            client.get(PODS)

    with pytest.raises(SourceFailed, match="no credential") as caught:
        asyncio.run(blocked())
    assert "blocking client" in str(caught.value.hint)


def test_a_certificate_of_the_source_is_presented(
    connect_to: Connect, api: ApiServer, client_certificate: Callable[[str], tuple[str, str]]
) -> None:
    """F23."""
    chain, key = client_certificate("robot")
    api.rules.certificates = {"robot"}
    source = Returning(Credential(certificate=ClientCertificate(chain, Secret(key))))
    with connect_to(source=source).httpx() as client:
        assert client.get(PODS).status_code == 200
    assert api.requests[0].certificate == "robot"


def test_a_key_of_the_source_may_be_one_that_signs(connect_to: Connect, api: ApiServer, ca: trustme.CA) -> None:
    """E4, F23."""
    key, other = (MemoryKey(ec.generate_private_key(ec.SECP256R1())) for _ in range(2))
    chain = certify(ca, key.public_key, "robot").decode()
    api.rules.certificates = {"robot"}
    source = Returning(Credential(certificate=ClientCertificate(chain, device_key=key)))
    with connect_to(source=source).httpx() as client:
        assert client.get(PODS).status_code == 200
    assert api.requests[0].certificate == "robot"
    mismatched = Returning(Credential(certificate=ClientCertificate(chain, device_key=other)))
    with connect_to(source=mismatched).httpx() as client, pytest.raises(KeyUnusable):
        client.get(PODS)


def test_two_connections_with_one_source_share_what_it_fetched(connect_to: Connect) -> None:
    source = Source()
    first, second = connect_to(source=source), connect_to(source=source)
    assert first.source is second.source is not None
    with first.httpx() as one, second.httpx() as two:
        one.get(PODS)
        two.get(PODS)
    assert len(source.rejections) == 1
    assert connect_to(source=Source()).source is not first.source


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("token-1", "it returned str"),
        (None, "it returned NoneType"),
        (Credential(), "neither a token nor a certificate"),
        (Credential(token="canary-token"), "not a Secret"),  # type: ignore[arg-type]
        (Credential(token=Secret("canary-token\n")), "line break"),
        (Credential(token=Secret("t"), expires_at=datetime(2030, 1, 1)), "time with its zone"),
        (Credential(certificate=ClientCertificate("no pem", Secret("canary-key"))), "PEM"),
        (Credential(certificate=("a", "b")), "not a ClientCertificate"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_used_is_refused_before_it_is_sent(
    value: object, cause: str, connect_to: Connect, api: ApiServer
) -> None:
    with connect_to(source=Returning(value)).httpx() as client, pytest.raises(SourceFailed) as caught:
        client.get(PODS)
    assert caught.value.code == "own-source-invalid"
    assert cause in str(caught.value.cause)
    assert "canary" not in str(caught.value)
    assert api.requests == []


def test_what_it_raises_is_the_cause_and_it_is_left_alone_for_a_while(connect_to: Connect, clock: FakeClock) -> None:
    calls = []

    class Failing:
        def fetch(self, rejection: Rejection | None) -> Credential:
            calls.append(rejection)
            raise OSError("vault is sealed, password=hunter2-hunter2")

    with connect_to(source=Failing()).httpx() as client:
        with pytest.raises(SourceFailed) as caught:
            client.get(PODS)
        assert "OSError: vault is sealed" in str(caught.value.cause)
        assert "hunter2" not in str(caught.value)
        assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(ostiary.BackingOff):
            client.get(PODS)
        assert len(calls) == 1
        clock.advance(seconds=2)
        with pytest.raises(SourceFailed):
            client.get(PODS)


def test_a_source_that_insists_on_a_rejected_credential_is_asked_once_more_and_then_less_often(
    connect_to: Connect, api: ApiServer, clock: FakeClock
) -> None:
    api.rules.tokens = {"another"}
    calls = []

    class Insisting(Returning):
        def fetch(self, rejection: Rejection | None) -> Any:
            calls.append(rejection)
            return super().fetch(rejection)

    with connect_to(source=Insisting(Credential(token=Secret("t")))).httpx() as client:
        assert [client.get(PODS).status_code for _ in range(5)] == [401] * 5
    assert len(calls) == 2
    assert api.statuses == [401] * 6


def test_an_error_of_its_own_words_comes_through(connect_to: Connect) -> None:
    class Saying:
        def fetch(self, rejection: Rejection | None) -> Credential:
            raise ostiary.CredentialError("the vault is sealed", hint="unseal it")

    with connect_to(source=Saying()).httpx() as client, pytest.raises(ostiary.CredentialError, match="vault is sealed"):
        client.get(PODS)


def test_a_credential_that_had_expired_when_it_came_is_told(connect_to: Connect, clock: FakeClock) -> None:
    past = Returning(Credential(token=Secret("t"), expires_at=clock.now() - timedelta(hours=1)))
    with connect_to(source=past).httpx() as client:
        client.get(PODS)
        with pytest.raises(ostiary.BackingOff, match="no credential") as caught:
            client.get(PODS)
    assert "expired 3600 s before" in str(caught.value.cause)


class Both(Source):
    async def fetch_async(self, rejection: Rejection | None) -> Credential:
        return self.next(rejection)


@pytest.mark.parametrize(
    ("source", "cause"),
    [(object(), "neither fetch"), (Source, "a class"), (Both(), "both fetch"), (lambda: None, "neither fetch")],
)
def test_what_is_no_source_is_refused_at_once(source: Any, cause: str, connect_to: Connect) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect_to(source=source)
    assert cause in str(caught.value.cause)


def test_a_server_without_tls_gets_nothing_of_it_and_the_log_says_so(
    connect_to: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source()
    with caplog.at_level(logging.WARNING):
        connection = connect_to(server="http://localhost:1", user={}, source=source)
    assert connection.source is None
    assert "no credential is sent" in caplog.text


def test_no_kubeconfig_is_needed(api: ApiServer, ca_data: str) -> None:
    from base64 import b64decode

    overrides = ostiary.Overrides(server=api.url, certificate_authority_data=b64decode(ca_data))
    with ostiary.connect(overrides=overrides, source=Source()).httpx() as client:
        assert client.get(PODS).status_code == 200
    assert api.requests[0].headers.get("Authorization") == "Bearer token-1"


def test_it_is_fetched_in_a_thread_of_its_own(connect_to: Connect) -> None:
    names = []

    class Telling(Source):
        def fetch(self, rejection: Rejection | None) -> Credential:
            names.append(threading.current_thread())
            return self.next(rejection)

    connection = connect_to(source=Telling())
    assert isinstance(connection.source, ostiary.Authenticator)
    token = connection.source.get().token
    assert token is not None
    assert token.reveal() == "token-1"
    assert names[0] is not threading.current_thread()
