"""The section ``issuer``: every mistake is told where it stands, before anything listens."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.errors import ConfigurationError
from ostiary_gateway.config import loads
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.issuer.keys import KeyLife, SigningKey


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key.pem").write_bytes(SigningKey.generate().pem())
    (tmp_path / "no-key.pem").write_text("canary-of-a-key")
    (tmp_path / "caller-token").write_text("token")
    (tmp_path / "secret").write_text("0123456789abcdef0123456789abcdef")
    (tmp_path / "short-secret").write_text("canary")
    return tmp_path


def config(folder: Path, *, webhooks: dict[str, Any] | None = None, **issuer: Any) -> GatewayConfig:
    sections: dict[str, Any] = {
        "apiVersion": "ostiary.dev/v1",
        "kind": "Gateway",
        "externalURL": "https://gateway.example",
        "store": {"type": "memory"},
        "identity": [{"name": "me", "type": "single_user"}],
        "authorization": {"chain": [{"name": "everything", "type": "allow_all"}]},
    }
    if issuer:
        sections["issuer"] = {"audiences": ["prod"], "keys": {"files": ["key.pem"]}, **issuer}
    if webhooks:
        sections["webhooks"] = webhooks
    return loads(json.dumps(sections), directory=folder)


def test_left_out_nothing_is_signed(folder: Path) -> None:
    assert (config(folder).issuer, config(folder).issuer_url) == (None, "")


def test_the_issuer_is_the_external_url_unless_it_says_another(folder: Path) -> None:
    assert config(folder, audiences=["prod"]).issuer_url == "https://gateway.example"
    other = config(folder, url="https://issuer.example/a/b")
    assert other.issuer is not None
    assert (other.issuer_url, other.issuer.path) == ("https://issuer.example/a/b", "/a/b")


@pytest.mark.parametrize(
    ("issuer", "mistake"),
    [
        ({"audiences": []}, "required: without it no JWT can be asked for"),
        ({"audiences": ["a", "a"]}, "duplicate entry"),
        ({"lifetime": "16m"}, "from 30 seconds to 15 minutes"),
        ({"lifetime": "5s"}, "from 30 seconds to 15 minutes"),
        ({"url": "http://issuer.example"}, "keys from there could not be trusted"),
        ({"url": "https://issuer.example/"}, "without a slash at the end"),
        ({"url": "https://issuer.example/a/../b"}, "path must be plain"),
        ({"url": "https://issuer.example?x"}, "must not contain a query"),
        ({"url": "https://user:canary@issuer.example"}, "it is not a URL"),
        ({"url": "https://issuer.example/auth"}, "another meaning"),
        ({"url": "https://issuer.example/apis/x"}, "another meaning"),
        ({"keys": {"files": ["none.pem"]}}, "a signing key of the issuer cannot be used: No such file"),
        ({"keys": {"files": ["no-key.pem"]}}, "it is not a private key in PEM"),
        ({"keys": {}}, "either secretFile or files must be set"),
        ({"keys": {"files": ["key.pem"], "secretFile": "secret"}}, "either secretFile or files must be set"),
        ({"keys": {"secretFile": "none"}}, "the file cannot be read"),
        ({"keys": {"secretFile": "short-secret"}}, "shorter than 32 characters"),
        ({"keys": {"secretFile": "secret", "signFor": "29m"}}, "at least 30 minutes"),
        ({"keys": {"secretFile": "secret", "signFor": "1h", "publishAhead": "1h"}}, "shorter than signFor"),
        ({"keys": {"files": ["key.pem"], "signFor": "2h"}}, "not rotated by the gateway"),
        ({"lifetme": "1m"}, "lifetme"),
    ],
    ids=str,
)
def test_a_mistake_is_told_and_no_key_is_quoted(folder: Path, issuer: dict[str, Any], mistake: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        config(folder, **issuer)
    text = "\n".join(f"{problem} {problem.place} {problem.hint}" for problem in caught.value.problems)
    assert mistake in text
    assert "issuer" in text
    assert "canary" not in text


def test_keys_in_the_token_store_need_a_secret_and_live_as_long_as_is_said(folder: Path) -> None:
    keys = {"secretFile": "secret", "signFor": "12h", "publishAhead": "30m"}
    issuer = config(folder, keys=keys).issuer
    assert issuer is not None
    assert issuer.keys.life == KeyLife(timedelta(hours=12), timedelta(minutes=30))


def test_telling_clusters_of_revocations_needs_an_issuer_and_callers(folder: Path) -> None:
    for issuer, webhooks, mistake in (
        ({}, {"revocations": True, "callers": {"tokenFile": "caller-token"}}, "none are signed"),
        ({"audiences": ["prod"]}, {"revocations": True}, "without authentication"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            config(folder, webhooks=webhooks, **issuer)
        assert mistake in "\n".join(map(str, caught.value.problems))
