"""How long a token shall live, as people write it; and that a token goes to one place only."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from ostiary.cli.arguments import UsageError, expiration_seconds
from ostiary_gateway.cli.new_token import give_token, scope_text

ANSWER = {"status": {"token": "the-token", "user": "alice", "expirationTimestamp": "2030-01-01T00:00:00Z"}}


def test_a_lifetime_is_read(subtests: pytest.Subtests) -> None:
    for text, seconds in [(None, None), ("30m", 1800), ("12h", 43_200), ("90d", 7_776_000), ("1s", 1), ("1h30m", 5400)]:
        with subtests.test(text=text, seconds=seconds):
            assert expiration_seconds(argparse.Namespace(lifetime=text)) == seconds


def test_anything_else_is_a_mistake_on_the_command_line(subtests: pytest.Subtests) -> None:
    for text in ["", "0s", "-1h", "soon", "d", "9" * 20 + "d", "1.5d", "٣d", "100", "500ms"]:
        with subtests.test(text=text), pytest.raises(UsageError, match="--for needs a time"):
            expiration_seconds(argparse.Namespace(lifetime=text))


def test_a_token_that_is_less_still_lets_kubectl_find_its_way() -> None:
    assert scope_text(argparse.Namespace(can=[])) == ""
    assert scope_text(argparse.Namespace(can=["get pods -n shop"])) == "discovery; get pods -n shop"


def test_the_token_is_on_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    give_token(argparse.Namespace(file=None, output="text"), ANSWER)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("the-token\n", "")


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_token_that_is_in_a_file_is_not_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, output: str
) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    file.chmod(0o644)
    give_token(argparse.Namespace(file=str(file), output=output), ANSWER)
    captured = capsys.readouterr()
    assert "the-token" not in captured.out + captured.err
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("the-token", 0o600)
