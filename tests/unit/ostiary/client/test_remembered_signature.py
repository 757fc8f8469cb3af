"""What a connection remembers of signing: the headers of one credential, and that the server took it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.client.retry_on_401 import Headers, Rejection, Signature, Signing, send_signed
from ostiary.client.signing import RequestToSign
from ostiary.core.single_flight import wait
from ostiary.errors import CredentialError
from ostiary.model import Credential, Secret
from ostiary_gateway.testing import FakeClock
from tests.conftest import Connect
from tests.support.plugins import PluginScript

IMPERSONATION = (("Impersonate-User", "alice"), ("Impersonate-Group", "one"), ("Impersonate-Group", "two"))


@dataclass
class Request:
    """What the caller set, and a `Carrier` that notes what is sent."""

    own: Sequence[str] = ()
    statuses: list[int] = field(default_factory=lambda: [200])
    sent: list[Headers] = field(default_factory=list)
    replayable = True

    def has(self, header: str) -> bool:
        return header.lower() in (name.lower() for name in self.own)

    def to_sign(self) -> RequestToSign:
        raise AssertionError("there is no signer")

    def send(self, headers: Headers) -> int:
        self.sent.append(headers)
        return self.statuses[min(len(self.sent), len(self.statuses)) - 1]

    def status(self, answer: int) -> int:
        return answer

    def headers(self, answer: int) -> Mapping[str, Sequence[str]]:
        return {}

    def discard(self, answer: int) -> None:
        pass


class Source:
    """A source whose credential the test replaces."""

    def __init__(self, credential: Credential) -> None:
        self.credential = credential
        self.asked = 0
        self.accepted: list[Credential] = []
        self.next: Credential | None = None

    def current(self) -> Credential:
        self.asked += 1
        return self.credential

    def replacement(self, rejected: Credential, rejection: Rejection) -> Credential | None:
        if self.next is not None:
            self.credential = self.next
        return self.next

    def note_accepted(self, credential: Credential) -> None:
        self.accepted.append(credential)


@dataclass
class Connected:
    signing: Signing
    retry_on: tuple[int, ...] = (401,)
    request_signer: None = None


def credential(token: str) -> Credential:
    return Credential(Secret(token))


def current(signing: Signing) -> Signature:
    signature = signing.current()
    return signing.signature(wait(signature)) if isinstance(signature, Future) else signature


def authorization(signing: Signing) -> str:
    return dict(current(signing).headers)["Authorization"]


# --- one credential, one set of headers ---


def test_the_headers_are_the_same_object_until_the_credential_is_another() -> None:
    source = Source(credential("a"))
    signing = Signing(source, impersonation=IMPERSONATION)
    first = current(signing)
    assert first.headers == (("Authorization", "Bearer a"), *IMPERSONATION)
    assert current(signing) is first
    # The same token from another run is another credential.
    source.credential = replace(source.credential)
    assert current(signing).headers is not first.headers
    assert current(signing).credential is source.credential


def test_a_replaced_credential_is_used_by_the_very_next_request() -> None:
    source = Source(credential("a"))
    connected = Connected(Signing(source))
    request = Request()
    send_signed(connected, request)
    source.credential = credential("b")
    send_signed(connected, request)
    assert [dict(headers)["Authorization"] for headers in request.sent] == ["Bearer a", "Bearer b"]


def test_threads_with_different_credentials_never_get_each_others_headers() -> None:
    signing = Signing(Source(credential("unused")))
    barrier = threading.Barrier(4)

    def sign_often(number: int) -> bool:
        mine = credential(f"token-{number}")
        barrier.wait()
        return all(
            signature.credential is mine and signature.headers == (("Authorization", f"Bearer token-{number}"),)
            for signature in (signing.signature(mine) for _ in range(5000))
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(sign_often, range(4)))


# --- what the caller set, and the address ---


def test_a_request_that_its_caller_signed_asks_for_no_credential_and_changes_nothing_for_others() -> None:
    source = Source(credential("a"))
    connected = Connected(Signing(source, impersonation=IMPERSONATION))
    signed, usual = Request(own=["authorization"]), Request()
    send_signed(connected, signed)
    assert (signed.sent, source.asked) == ([IMPERSONATION], 0)
    send_signed(connected, usual)
    assert usual.sent == [(("Authorization", "Bearer a"), *IMPERSONATION)]


def test_a_request_that_impersonates_by_itself_has_nothing_of_ours_but_the_credential() -> None:
    request = Request(own=["impersonate-user"])
    send_signed(Connected(Signing(Source(credential("a")), impersonation=IMPERSONATION)), request)
    assert request.sent == [(("Authorization", "Bearer a"),)]


def test_the_authorization_of_the_address_goes_before_the_credential_which_is_never_replaced() -> None:
    source = Source(credential("a"))
    source.next = credential("b")
    request = Request(statuses=[401])
    connected = Connected(Signing(source, authorization=Secret("Basic xyz")))
    assert send_signed(connected, request) == 401
    assert request.sent == [(("Authorization", "Basic xyz"),)]


def test_without_a_source_there_is_nothing_to_ask() -> None:
    request = Request(statuses=[401])
    assert send_signed(Connected(Signing(None, impersonation=IMPERSONATION)), request) == 401
    assert request.sent == [IMPERSONATION]


# --- what the server says ---


def test_the_source_is_told_once_for_each_credential_that_the_server_took_it() -> None:
    first, second = credential("a"), credential("b")
    source = Source(first)
    connected = Connected(Signing(source))
    for status in (500, 200, 200, 404):
        send_signed(connected, Request(statuses=[status]))
    assert source.accepted == [first]
    source.credential = second
    send_signed(connected, Request())
    assert source.accepted == [first, second]


def test_after_a_401_the_second_attempt_has_the_new_headers_and_so_has_the_next_request() -> None:
    source = Source(credential("a"))
    source.next = newer = credential("b")
    connected = Connected(Signing(source))
    request, following = Request(statuses=[401, 200]), Request()
    assert send_signed(connected, request) == 200
    send_signed(connected, following)
    tokens = [dict(headers)["Authorization"] for headers in (*request.sent, *following.sent)]
    assert tokens == ["Bearer a", "Bearer b", "Bearer b"]
    assert source.accepted == [newer]


# --- a plugin, a file ---


def test_an_expired_credential_is_not_sent_again(connect_to: Connect, plugin: PluginScript, clock: FakeClock) -> None:
    plugin.answer(token="token-1", expires_at=clock.now() + timedelta(minutes=10))
    signing = connect_to().signing
    assert [authorization(signing), authorization(signing)] == ["Bearer token-1"] * 2
    plugin.answer(token="token-2")
    clock.advance(minutes=10, seconds=1)
    assert authorization(signing) == "Bearer token-2"
    assert plugin.runs == 2


def test_when_the_clock_is_set_forward_the_remembered_headers_end_too(
    connect_to: Connect, plugin: PluginScript, clock: FakeClock
) -> None:
    plugin.answer(token="token-1", expires_at=clock.now() + timedelta(minutes=10))
    signing = connect_to().signing
    assert authorization(signing) == "Bearer token-1"
    plugin.exit(1)
    clock.set_back(minutes=-11)
    with pytest.raises(CredentialError):
        current(signing)


def test_what_was_remembered_is_not_used_once_the_credential_is_gone(
    connect_to: Connect, plugin: PluginScript, clock: FakeClock
) -> None:
    plugin.answer(token="token-1", expires_at=clock.now() + timedelta(minutes=10))
    connection, request = connect_to(), Request()
    send_signed(connection, request)
    plugin.exit(1)
    clock.advance(minutes=11)
    with pytest.raises(CredentialError):
        send_signed(connection, request)
    assert len(request.sent) == 1


def test_a_token_file_that_was_replaced_is_read_again(connect_to: Connect, tmp_path: Path, clock: FakeClock) -> None:
    file = tmp_path / "token"
    file.write_text("token-1")
    signing = connect_to(user={"tokenFile": str(file)}).signing
    assert authorization(signing) == "Bearer token-1"
    file.write_text("token-2")
    clock.advance(51)
    assert authorization(signing) == "Bearer token-2"


def test_what_is_remembered_prints_no_secret() -> None:
    signing = Signing(Source(credential("canary-7a1")), authorization=None)
    assert "canary" not in repr(current(signing)) + repr(signing)
