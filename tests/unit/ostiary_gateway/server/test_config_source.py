"""Where the configuration comes from: all workers load the same text, whatever happens to the file meanwhile."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from ostiary.errors import ConfigurationError
from ostiary_gateway.config import load
from ostiary_gateway.server.config_source import ConfigSource


def test_without_a_file_it_is_the_built_in_configuration() -> None:
    source = ConfigSource().at_this_moment()
    assert source.text is None
    assert source.load().listen.workers == 1


def test_the_text_of_one_moment_is_loaded_and_not_what_the_file_says_later(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("apiVersion: ostiary.dev/v1\nkind: Nonsense\n")
    source = ConfigSource(path).at_this_moment()
    path.unlink()
    with pytest.raises(ConfigurationError, match="it must be Gateway"):
        source.load()


def test_a_file_that_cannot_be_read_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        ConfigSource(tmp_path / "gone.yaml").at_this_moment()


def test_only_the_gateway_runs_the_commands_that_its_keys_name(tmp_path: Path) -> None:
    """Others read a configuration as well: ``can-i`` takes the one in the current directory."""
    trustme.CA().issue_cert("localhost").cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    command = tmp_path / "signer"
    command.write_text(f"#!/bin/sh\necho >> {tmp_path}/ran\nexit 1\n")
    command.chmod(0o755)
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "apiVersion: ostiary.dev/v1\nkind: Gateway\n"
        "listen: {address: 127.0.0.1:0, tls: {certificate: server.pem, key: 'exec:./signer'}}\n"
        "externalURL: https://localhost\n"
        "issuer: {audiences: [a], keys: {files: ['exec:./signer issuer']}}\n"
        "upstreams: [{name: a, server: 'https://localhost', tls: {certificate: server.pem, key: 'exec:./signer a'}}]\n"
    )
    with suppress(ConfigurationError):
        load(path)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ConfigurationError, match="failed with exit code 1") as error:
        ConfigSource(path).at_this_moment().load()
    assert str(error.value).count("failed with exit code 1") == 3
    assert (tmp_path / "ran").read_text() == "\n" * 3


def test_an_address_that_cannot_be_read_is_a_mistake_for_all(tmp_path: Path) -> None:
    trustme.CA().issue_cert("localhost").cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    path = tmp_path / "gateway.yaml"
    path.write_text(
        "apiVersion: ostiary.dev/v1\nkind: Gateway\n"
        "listen: {address: 127.0.0.1:0, tls: {certificate: server.pem, key: 'tpm2:handle:1'}}\n"
    )
    with pytest.raises(ConfigurationError, match="the address of a key cannot be read"):
        load(path)
