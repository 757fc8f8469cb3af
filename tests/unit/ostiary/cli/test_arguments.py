"""What was likely meant is told in place of a command, an option or a choice that does not exist."""

from __future__ import annotations

import pytest

from ostiary.cli import COMMANDS
from ostiary.cli import main as client_main
from ostiary_gateway.cli import main as gateway_main

Captured = pytest.CaptureFixture[str]


def main(words: list[str]) -> int:
    return (client_main if words[0] in COMMANDS else gateway_main)(words)


def test_what_was_meant_is_told(subtests: pytest.Subtests, capsys: Captured) -> None:
    cases = [
        ("sesions list", "did you mean ostiary-gateway sessions?"),
        ("sessions lst", "did you mean list?"),
        ("policy lin x", "did you mean lint?"),
        ("sessions list --usr alice", "did you mean --user?"),
        ("login --sever https://x", "did you mean --server?"),
        ("login --sever=https://x", "did you mean --server?"),
        ("kubeconfig --mege", "did you mean --merge?"),
        ("sessions list -o jsn", "did you mean json?"),
        ("login --store keyrin", "did you mean keyring?"),
    ]
    for words, told in cases:
        with subtests.test(words=words, told=told):
            assert main(words.split()) == 2
            assert told in capsys.readouterr().err


def test_what_looks_like_nothing_leads_to_the_help(capsys: Captured) -> None:
    for words in (["login", "--qqq"], ["login", "extra"], ["sessions", "qqq"]):
        assert main(words) == 2
        assert "--help" in capsys.readouterr().err


def test_a_token_in_the_wrong_place_is_not_repeated(capsys: Captured) -> None:
    token = "ost_" + "a1B2" * 12
    for words in (["login", token], ["sessions", token], ["login", f"--sever={token}"]):
        assert main(words) == 2
        assert token not in capsys.readouterr().err
