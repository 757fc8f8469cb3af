"""Credentials without a plugin: fixed ones, and files that somebody else renews."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from ostiary.client.retry_on_401 import Rejection
from ostiary.client.static_credentials import Files, FileSource, FixedSource
from ostiary.errors import CredentialError
from ostiary.model import Credential, Place, Secret
from ostiary_gateway.testing import FakeClock

CANARY = "c4n4ry0c4n4ry0c4n4ry"
REJECTION = Rejection(401, {})


def token_of(credential: Credential | None) -> str | None:
    return credential.token.reveal() if credential and credential.token else None


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


@pytest.fixture
def source(token_file: Path, clock: FakeClock) -> FileSource:
    return FileSource(Files(token=str(token_file)), base=Credential(), where=Place("config"), clock=clock)


def test_a_fixed_credential_has_no_replacement() -> None:
    credential = Credential(Secret("t"))
    source = FixedSource(credential)
    assert source.current() is credential
    assert source.replacement(credential, REJECTION) is None


def test_white_space_around_the_token_is_not_part_of_it(source: FileSource) -> None:
    assert token_of(source.current()) == "first"


def test_the_file_is_read_again_after_fifty_seconds(source: FileSource, token_file: Path, clock: FakeClock) -> None:
    first = source.current()
    token_file.write_text("second")
    clock.advance(49)
    assert source.current() is first
    clock.advance(1)
    assert token_of(source.current()) == "second"


def test_an_unchanged_file_gives_the_same_credential(source: FileSource, clock: FakeClock) -> None:
    first = source.current()
    clock.advance(60)
    assert source.current() is first


def test_a_rejected_token_is_replaced_if_the_file_holds_another_by_now(source: FileSource, token_file: Path) -> None:
    first = source.current()
    assert source.replacement(first, REJECTION) is None
    token_file.write_text("second")
    assert token_of(source.replacement(first, REJECTION)) == "second"


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_text(""), lambda path: path.write_bytes(b"\xff")]
)
def test_a_file_that_cannot_be_read_any_more_leaves_the_last_token(
    source: FileSource,
    token_file: Path,
    clock: FakeClock,
    damage: Callable[[Path], object],
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = source.current()
    damage(token_file)
    clock.advance(60)
    with caplog.at_level(logging.WARNING, "ostiary"):
        assert source.current() is first
    assert "using their previous content" in caplog.text


def test_a_file_that_is_not_there_at_first_is_an_error_that_names_it(tmp_path: Path) -> None:
    source = FileSource(Files(token=str(tmp_path / "none")), base=Credential(), where=Place("config", "users[0].user"))
    with pytest.raises(CredentialError, match="No such file") as caught:
        source.current()
    assert caught.value.code == "token-file-unreadable"
    assert "users[0].user" in str(caught.value)


def test_bytes_that_are_not_text_are_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(CANARY.encode() + b"\xff")
    with pytest.raises(CredentialError, match="not UTF-8") as caught:
        FileSource(Files(token=str(path)), base=Credential(), where=Place("config")).current()
    assert CANARY not in str(caught.value)


def test_a_token_that_no_header_can_carry_is_refused_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{CANARY}\nX-Remote-User: root")
    with pytest.raises(CredentialError, match="no header can carry") as caught:
        FileSource(Files(token=str(path)), base=Credential(), where=Place("config")).current()
    assert CANARY not in str(caught.value)


def test_certificate_files_are_read_again_after_a_second(
    tmp_path: Path, clock: FakeClock, client_certificate: Callable[[str], tuple[str, str]]
) -> None:
    certificate, key = tmp_path / "crt", tmp_path / "key"

    def write(name: str) -> None:
        chain, private = client_certificate(name)
        certificate.write_text(chain)
        key.write_text(private)

    write("one")
    source = FileSource(Files(None, str(certificate), str(key)), base=Credential(), where=Place("config"), clock=clock)
    first = source.current()
    assert first.certificate is not None
    write("two")
    clock.advance(1)
    second = source.current()
    assert second.certificate is not None
    assert second.certificate != first.certificate
