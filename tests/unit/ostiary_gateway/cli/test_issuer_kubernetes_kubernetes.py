"""``ostiary-gateway issuer kubernetes``, ``keys`` and ``rotate`` with a configuration, and on wrong command lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ostiary_gateway.cli import main

AUDIENCES = ["https://prod.example", "https://dev.example"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "issuer-secret").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "caller-token").write_text("token")
    sections: dict[str, Any] = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "externalURL": "https://gateway.example",
        "store": {"type": "sqlite", "path": "tokens.db"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "everything", "type": "allow_all"}]},
        "issuer": {"audiences": AUDIENCES, "keys": {"secretFile": "issuer-secret"}},
        "webhooks": {"revocations": True, "callers": {"tokenFile": "caller-token"}},
    }
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps(sections))
    return path


def test_the_configuration_of_one_cluster(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["issuer", "kubernetes", "--audience", AUDIENCES[0]]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    (jwt,) = yaml.safe_load(said.out)["jwt"]
    assert jwt["issuer"] == {"url": "https://gateway.example", "audiences": AUDIENCES[:1]}


def test_without_an_audience_it_is_told_that_all_are_accepted(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["issuer", "kubernetes"]) == 0
    said = capsys.readouterr()
    assert "name this cluster's own with --audience" in said.err
    assert yaml.safe_load(said.out)["jwt"][0]["issuer"]["audiences"] == AUDIENCES


def test_it_is_added_to_a_configuration_that_is_there(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = {"issuer": {"url": "https://other.example", "audiences": ["x"]}}
    base = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [other]}
    Path("base.yaml").write_text(yaml.safe_dump(base))
    assert main(["issuer", "kubernetes", "--base", "base.yaml", "--audience", AUDIENCES[1]]) == 0
    assert [each["issuer"]["url"] for each in yaml.safe_load(capsys.readouterr().out)["jwt"]] == [
        "https://other.example",
        "https://gateway.example",
    ]
    Path("base.yaml").write_text("kind: Pod\n")
    assert main(["issuer", "kubernetes", "--base", "base.yaml", "--audience", AUDIENCES[1]]) == 1
    assert "kind is not AuthenticationConfiguration" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--follow", "file"], "need --server"),
        (["--server", "https://gateway.example"], "--server needs --token-file"),
        (["--server", "https://gateway.example", "-c", "gateway.yaml", "--token-file", "x"], "cannot be combined"),
        (
            ["--server", "https://gateway.example", "--token-file", "x", "--follow", "f", "--webhook", "k"],
            "cannot be combined",
        ),
        (["--audience", "https://other.example"], "no JWTs for the audience"),
        (["--failure-policy", "Allow"], "is one of Deny, NoOpinion"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_told(
    config: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    assert main(["issuer", "kubernetes", *words]) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert said.out == ""


def test_keys_are_listed_and_rotated(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["issuer", "keys", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"keys": []}
    assert main(["issuer", "rotate", "-o", "json"]) == 0
    (first,) = json.loads(capsys.readouterr().out)["keys"]
    assert first["state"] == "next"
    assert main(["issuer", "rotate", "--withdraw", "-o", "json"]) == 0
    said = capsys.readouterr()
    (second,) = json.loads(said.out)["keys"]
    assert (second["state"], second["kid"] == first["kid"]) == ("signs", False)
    assert "until they fetch them again" in said.err
    Path("issuer-secret").write_text("another-secret-0123456789abcdef0123456789")
    assert main(["issuer", "keys"]) == 0
    assert "cannot be opened" in capsys.readouterr().out


def test_a_gateway_that_signs_nothing_has_nothing_to_print(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sections = json.loads(config.read_text())
    del sections["issuer"], sections["webhooks"]
    config.write_text(json.dumps(sections))
    assert main(["issuer", "kubernetes"]) == 1
    assert "this gateway signs no JWTs" in capsys.readouterr().err
    assert main(["issuer", "keys"]) == 1
    assert "there are no signing keys in the token store" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["keys", "rotate"])
def test_keys_in_files_are_not_those_of_the_store(
    config: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    sections = json.loads(config.read_text())
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    config.with_name("key.pem").write_bytes(pem)
    sections["issuer"]["keys"] = {"files": ["key.pem"]}
    config.write_text(json.dumps(sections))
    assert main(["issuer", command]) == 1
    said = capsys.readouterr()
    assert "there are no signing keys in the token store" in said.err
    assert said.out == ""
