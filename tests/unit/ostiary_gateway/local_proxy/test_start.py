"""Errors that come from the proxy, folders that cannot be used, and the command line's own mistakes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostiary.cli import main
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary_gateway.local_proxy.runtime import LONGEST_PATH, ensured_folder
from ostiary_gateway.local_proxy.start import content_of


def test_an_error_of_the_proxy_is_told_as_it_is() -> None:
    assert content_of(b"ok\n{}") == b"{}"
    with pytest.raises(OstiaryError) as raised:
        content_of(b'error\n{"summary": "no", "cause": "c", "hint": "h", "code": "exec-plugin-failed"}')
    error = raised.value
    assert (error.summary, error.cause, error.hint, error.code) == ("no", "c", "h", "exec-plugin-failed")


@pytest.mark.parametrize("content", [b"", b"7", b'{"cause": "c"}', b'{"summary": "x", "code": "?"}'])
def test_an_error_that_cannot_be_read_is_still_an_error(content: bytes) -> None:
    with pytest.raises(OstiaryError) as raised:
        content_of(b"error\n" + content)
    assert raised.value.code == "connect-unavailable"


def test_the_folder_of_the_socket_must_be_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    folder = ensured_folder()
    assert os.stat(folder).st_mode & 0o777 == 0o700
    os.chmod(folder, 0o755)
    with pytest.raises(ConfigurationError) as raised:
        ensured_folder()
    assert raised.value.code == "connect-socket-foreign"
    os.rmdir(folder)
    os.symlink(tmp_path, folder)
    with pytest.raises(ConfigurationError) as raised:
        ensured_folder()
    assert raised.value.code == "connect-socket-foreign"


def test_a_folder_that_is_too_long_or_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp/" + "x" * LONGEST_PATH)
    with pytest.raises(ConfigurationError, match="cannot be used"):
        ensured_folder()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/dev/null/r")
    with pytest.raises(ConfigurationError, match="cannot be made"):
        ensured_folder()


def test_a_mistake_on_the_command_line_is_told_and_nothing_is_done(
    subtests: pytest.Subtests, capsys: pytest.CaptureFixture[str]
) -> None:
    cases: list[tuple[list[str], str]] = [
        ([], "name a context"),
        (["a", "b", "--name", "c"], "for one context"),
        (["a", "b", "--port", "2000"], "for one context"),
        (["a", "--status"], "take no context"),
        (["--stop", "--port", "2000"], "--port needs a context"),
        (["a", "--print", "-o", "json"], "cannot be combined"),
        (["a", "--port", "80"], "port from 1024 on"),
        (["a", "--idle", "1"], "minutes from 5"),
        (["--remove"], "name a context"),
        (["token"], "the name of one context"),
        (["token", "a", "b"], "the name of one context"),
    ]
    for words, said in cases:
        with subtests.test(words=words, said=said):
            assert main(["connect", *words]) == 2
            captured = capsys.readouterr()
            assert said in captured.err
            assert captured.out == ""
