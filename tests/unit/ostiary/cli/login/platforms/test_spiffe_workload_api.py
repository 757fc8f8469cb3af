"""A JWT-SVID from the agent of this machine: one gRPC call over a Unix socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.cli.login.platforms import spiffe_workload_api as workload_api
from ostiary.cli.login.platforms.proof import PlatformChoice
from ostiary.cli.login.platforms.sources import find_proof
from ostiary.cli.login.platforms.spiffe_workload_api import fetch_jwt_svid
from ostiary.errors import CredentialError, OstiaryError, ProviderError
from tests.support.platform_tokens import CANARY, unsigned_token
from tests.support.spiffe_agent import NO_IDENTITY, SpiffeAgent

SERVER = "https://gateway.example"


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpiffeAgent]:
    with SpiffeAgent(tmp_path / "agent.sock", unsigned_token).running() as running:
        monkeypatch.setenv("SPIFFE_ENDPOINT_SOCKET", running.endpoint)
        yield running


def refusal(kind: type[OstiaryError]) -> OstiaryError:
    with pytest.raises(kind) as raised:
        find_proof(PlatformChoice(SERVER, "spiffe"))
    assert type(raised.value) is kind
    assert CANARY not in str(raised.value)
    return raised.value


@pytest.mark.parametrize("platform", ["spiffe", "auto"])
def test_the_agent_is_asked_for_an_svid_with_the_gateways_audience(agent: SpiffeAgent, platform: str) -> None:
    proof = find_proof(PlatformChoice(SERVER, platform))
    assert (proof.platform, proof.where, agent.audiences) == ("spiffe", agent.endpoint, [SERVER])
    assert proof.token.reveal().endswith(CANARY)


def test_a_long_audience_and_a_long_token_fit(agent: SpiffeAgent) -> None:
    audience = f"{SERVER}/{'a' * 500}"
    proof = find_proof(PlatformChoice(SERVER, "spiffe", audience=audience))
    assert agent.audiences == [audience]
    assert proof.claims["aud"] == audience


def test_a_file_is_taken_before_the_socket(agent: SpiffeAgent, tmp_path: Path) -> None:
    (tmp_path / "svid").write_text(unsigned_token(SERVER))
    find_proof(PlatformChoice(SERVER, "spiffe", token_file=str(tmp_path / "svid")))
    assert agent.audiences == []


def test_a_workload_that_is_not_registered_is_told_so(agent: SpiffeAgent) -> None:
    agent.refusal = (7, NO_IDENTITY)
    error = refusal(CredentialError)
    assert NO_IDENTITY in (error.cause or "")
    assert "registered" in (error.hint or "")


@pytest.mark.parametrize("status", [14, 13, 2])
def test_an_agent_that_cannot_answer_is_an_outage(agent: SpiffeAgent, status: int) -> None:
    agent.refusal = (status, "not now")
    error = refusal(ProviderError)
    assert (error.code, f"gRPC status {status}: not now" in (error.cause or "")) == ("platform-unreachable", True)


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 100])
def test_a_socket_that_is_no_agents_is_an_outage(agent: SpiffeAgent, raw: bytes) -> None:
    agent.raw = raw
    assert refusal(ProviderError).code == "platform-unreachable"


def test_an_agent_that_never_answers_is_not_waited_for_longer_than_allowed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent.sock"))
        silent.listen(1)
        with pytest.raises(ProviderError):
            fetch_jwt_svid(f"unix://{tmp_path}/silent.sock", SERVER, hint="", seconds=0.05)


def test_an_agent_that_only_keeps_the_connection_busy_is_not_waited_for_either(tmp_path: Path) -> None:
    settings_frame, ping = b"\0\0\0\x04\0\0\0\0\0", b"\0\0\x08\x06\0\0\0\0\0" + b"\0" * 8

    def read_all(connection: socket.socket) -> None:
        with suppress(OSError):
            while connection.recv(65536):
                pass

    def keep_busy() -> None:
        connection, _ = busy.accept()
        with connection, suppress(OSError):
            threading.Thread(target=read_all, args=(connection,)).start()
            connection.sendall(settings_frame)
            while True:
                connection.sendall(ping * 100)

    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(tmp_path / "busy.sock"))
        busy.listen(1)
        agent = threading.Thread(target=keep_busy)
        agent.start()
        with pytest.raises(ProviderError, match="in time"):
            fetch_jwt_svid(f"unix://{tmp_path}/busy.sock", SERVER, hint="", seconds=0.05)
        agent.join()


def test_a_socket_that_is_not_there_is_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPIFFE_ENDPOINT_SOCKET", f"unix://{tmp_path}/none.sock")
    assert "No such file" in (refusal(ProviderError).cause or "")


@pytest.mark.parametrize("endpoint", ["tcp://127.0.0.1:8081", "/run/agent.sock", "unix:agent.sock", "unix://host/x"])
def test_what_is_no_unix_socket_is_refused_in_words(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("SPIFFE_ENDPOINT_SOCKET", endpoint)
    assert "not the address of a Unix socket" in (refusal(CredentialError).cause or "")


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_no_answer_breaks_the_reader(message: bytes) -> None:
    token = workload_api._first_token(message)
    assert token is None or token


def test_a_token_is_found_behind_fields_of_other_types() -> None:
    svid = b"\x12\x03abc"
    other = b"\x18\x96\x01" + b"\x21" + b"\0" * 8 + b"\x2d" + b"\0" * 4
    assert workload_api._first_token(other + b"\x0a" + bytes([len(svid)]) + svid) == "abc"
