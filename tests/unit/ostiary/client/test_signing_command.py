"""A command that signs requests, from Python and from a kubeconfig: real programs, told on stdin alone."""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary import (
    Allowlist,
    ConfigurationError,
    Credential,
    DenyAll,
    PluginRefused,
    RequestNotSigned,
    RequestToSign,
    Secret,
    SigningCommand,
)
from ostiary.client.signing_command import SignatureRefused, decode_signature, encode_request
from tests.conftest import Connect
from tests.support.apiserver import ApiServer
from tests.support.plugins import PluginScript, exec_user

REQUEST = RequestToSign(
    "POST", "https://k.test/api", (("Host", "k.test"), ("Authorization", "Bearer c4n4ry-token")), b"{}"
)
ANSWER = '{"apiVersion": "ostiary.dev/v1", "kind": "RequestSignature", "status": {"headers": %s}}'
GOOD = ANSWER % '[{"name": "X-Signature", "value": "s1gn3d"}]'
EXTENSION = "ostiary.dev/request-signing"
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A signing command that runs these lines of shell, in the folder of the test."""

    def make(script: str) -> Path:
        path = tmp_path / "sign"
        path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
        path.chmod(0o755)
        return path

    return make


def printing(answer: str) -> str:
    return f"cat > told\nprintf '%s' '{answer}'"


def test_it_is_told_the_request_on_stdin_and_nothing_in_its_arguments_or_environment(
    write: Write, tmp_path: Path
) -> None:
    """F10."""
    command = write("env > environment; tr '\\0' ' ' < /proc/$$/cmdline > arguments\n" + printing(GOOD))
    signer = SigningCommand(str(command), ["--key", "7"], env={"ACME_PROFILE": "prod"})
    assert signer.sign(REQUEST) == [("X-Signature", "s1gn3d")]
    told = json.loads((tmp_path / "told").read_text())
    assert (told["apiVersion"], told["kind"]) == ("ostiary.dev/v1", "RequestSignature")
    spec = told["spec"]
    assert (spec["method"], spec["url"], b64decode(spec["body"])) == ("POST", "https://k.test/api", b"{}")
    assert spec["headers"][1] == {"name": "Authorization", "value": "Bearer c4n4ry-token"}
    environment = (tmp_path / "environment").read_text()
    assert "ACME_PROFILE=prod" in environment
    assert "c4n4ry" not in environment + (tmp_path / "arguments").read_text()


def test_a_streamed_body_needs_leave(write: Write, tmp_path: Path) -> None:
    streamed = RequestToSign("POST", "https://k.test/api", (), None)
    with pytest.raises(RequestNotSigned) as caught:
        SigningCommand(str(write(printing(GOOD)))).sign(streamed)
    assert caught.value.code == "request-body-streamed"
    SigningCommand(str(write(printing(GOOD))), streamed=True).sign(streamed)
    spec = json.loads((tmp_path / "told").read_text())["spec"]
    assert spec["streamed"] is True
    assert "body" not in spec


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("exit 3", "exit code 3"),
        ("sleep 60", "within 0.3 s"),
        ("kill -9 $$", "exit code -9"),
        ("head -c 2000000 /dev/zero", "more than a signature"),
        ("true", "not one JSON object"),
        ("echo c4n4ry", "not one JSON object"),
        ("echo '[]'", "not one JSON object"),
        ("echo '{}'", "not of apiVersion"),
        (f"echo '{ANSWER % '[]'}'", "no status.headers"),
        (f"echo '{ANSWER % 'null'}'", "no status.headers"),
        (f"echo '{ANSWER % '[1]'}'", "no name and value"),
    ],
)
def test_what_goes_wrong_is_one_clear_error(script: str, cause: str, write: Write) -> None:
    signer = SigningCommand(str(write(script)), seconds=0.3 if "sleep" in script else 30)
    with pytest.raises(RequestNotSigned) as caught:
        signer.sign(REQUEST)
    assert cause in str(caught.value.cause)
    assert "c4n4ry" not in str(caught.value)


def test_its_stderr_is_not_passed_on(write: Write, capfd: pytest.CaptureFixture[str]) -> None:
    """It was told the credential."""
    SigningCommand(str(write(f"tee /dev/stderr > told\nprintf '%s' '{GOOD}'"))).sign(REQUEST)
    assert capfd.readouterr().err == ""


def test_in_a_clean_environment_it_has_only_what_the_kubeconfig_says(
    connect_to: Connect, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_PROGRAM", "1")
    script = write(f"/bin/cat > told\n/usr/bin/env > environment\nprintf '%s' '{GOOD}'")
    extension = {"name": EXTENSION, "extension": {"command": str(script), "env": [{"name": "A", "value": "b"}]}}
    with connect_to(user={"token": "t", "extensions": [extension]}, clean_environment=True).httpx() as client:
        client.get("/version")
    variables = (tmp_path / "environment").read_text().splitlines()
    assert "A=b" in variables
    assert not any(line.startswith("OF_THE_PROGRAM") for line in variables)


def test_with_a_source_of_the_program_it_is_not_run(
    connect_to: Connect, api: ApiServer, write: Write, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be told a credential that the kubeconfig has nothing to do with."""

    class Source:
        def fetch(self, rejection: object) -> Credential:
            return Credential(token=Secret("of-the-program"))

    extension = {"name": EXTENSION, "extension": {"command": str(write(printing(GOOD)))}}
    with connect_to(user={"extensions": [extension]}, source=Source()).httpx() as client:
        client.get("/version")
    assert not (tmp_path / "told").exists()
    assert "is not used" in caplog.text


def test_its_stderr_is_shown_without_what_it_was_told(write: Write) -> None:
    signer = SigningCommand(str(write("grep -o 'Bearer [^\"]*' >&2; echo 'the card is locked' >&2; exit 1")))
    with pytest.raises(RequestNotSigned) as caught:
        signer.sign(REQUEST)
    assert "the card is locked" in str(caught.value.cause)
    assert "c4n4ry" not in str(caught.value.cause)


def test_a_command_that_is_missing_or_cannot_run_is_told(tmp_path: Path) -> None:
    (tmp_path / "no").write_text("")
    for command, cause in (("acme-is-not-there", "no such command"), (str(tmp_path / "no"), "cannot be started")):
        with pytest.raises(RequestNotSigned) as caught:
            SigningCommand(command).sign(REQUEST)
        assert cause in str(caught.value.cause)


# --- from a kubeconfig ---


def signed_user(plugin: PluginScript, **extension: Any) -> dict[str, Any]:
    return {**exec_user(plugin.path), "extensions": [{"name": EXTENSION, "extension": extension}]}


def test_the_command_of_a_kubeconfig_signs_each_request(
    connect_to: Connect, api: ApiServer, plugin: PluginScript, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write(printing(GOOD))
    with caplog.at_level(logging.WARNING), connect_to(user=signed_user(plugin, command="./sign")).httpx() as client:
        client.get("/version")
        client.post("/api", content=b"x")
    assert [request.headers.get("X-Signature") for request in api.requests] == ["s1gn3d"] * 2
    assert caplog.text == ""


def test_the_plugin_policy_judges_it(connect_to: Connect, api: ApiServer, plugin: PluginScript, write: Write) -> None:
    path = write(printing(GOOD))
    user = {"token": "t", "extensions": [{"name": EXTENSION, "extension": {"command": str(path)}}]}
    with connect_to(user=user, policy=DenyAll()).httpx() as client, pytest.raises(PluginRefused):
        client.get("/version")
    assert api.requests == []
    with connect_to(user=user, policy=Allowlist([str(path)])).httpx() as client:
        assert client.get("/version").status_code == 200


def test_a_signer_of_the_program_beats_it_and_the_log_says_so(
    connect_to: Connect, plugin: PluginScript, caplog: pytest.LogCaptureFixture
) -> None:
    signer = SigningCommand("true")
    with caplog.at_level(logging.WARNING):
        connection = connect_to(user=signed_user(plugin, command="./sign"), signer=signer)
    assert connection.request_signer is signer
    assert "brings a signer of its own" in caplog.text


@pytest.mark.parametrize("extension", [{}, {"command": ""}, {"command": ["x"]}, {"command": "x", "args": "y"}])
def test_a_mistake_in_the_extension_is_told(
    extension: dict[str, Any], connect_to: Connect, plugin: PluginScript
) -> None:
    with pytest.raises(ConfigurationError, match="extensions"):
        connect_to(user=signed_user(plugin, **extension))


# --- the wire ---


@given(st.binary())
def test_whatever_a_command_prints_is_a_signature_or_one_error_that_does_not_quote_it(stdout: bytes) -> None:
    with pytest.raises(SignatureRefused) as caught:
        decode_signature(stdout)
    assert stdout == b"" or stdout.decode("latin-1") not in str(caught.value) or len(stdout) < 8


@given(st.text(), st.text(), st.lists(st.tuples(st.text(), st.text())), st.none() | st.binary())
def test_any_request_can_be_told(method: str, url: str, headers: list[tuple[str, str]], content: bytes | None) -> None:
    spec = json.loads(encode_request(method, url, headers, content))["spec"]
    assert (spec["method"], spec["url"]) == (method, url)
    assert [(header["name"], header["value"]) for header in spec["headers"]] == headers
    assert spec.get("streamed", False) is (content is None)
    assert content is None or b64decode(spec["body"]) == content
