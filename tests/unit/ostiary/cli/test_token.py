"""``ostiary token`` before anybody is asked; what it does at a gateway is in tests/e2e/test_less_power.py."""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.cli import main
from ostiary.cli.arguments import UsageError
from ostiary.cli.token import _lifetime, _scope

Captured = pytest.CaptureFixture[str]
NOWHERE = ("--server", "https://127.0.0.1:1")


def given(*can: str, exact: bool = False) -> argparse.Namespace:
    return argparse.Namespace(can=list(can), exact=exact)


@pytest.mark.parametrize(
    ("arguments", "scope"),
    [
        (given("list,get pods -n shop"), "discovery; get,list pods -n shop"),
        (given("get pods -n shop", "get /metrics"), "discovery; get /metrics; get pods -n shop"),
        (given("get pods -n shop", exact=True), "get pods -n shop"),
        (given("get /metrics"), "get /metrics"),
        (given("get pods -n shop; discovery"), "discovery; get pods -n shop"),
    ],
)
def test_discovery_is_added_where_resources_are_asked_for(arguments: argparse.Namespace, scope: str) -> None:
    assert str(_scope(arguments)) == scope


def test_a_lifetime_is_a_duration_of_a_second_at_least() -> None:
    assert _lifetime("1h30m") == timedelta(minutes=90)
    for text in ("ten", "10", "0s", "-5m", "999ms", ""):
        with pytest.raises(UsageError, match="--for"):
            _lifetime(text)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--can", "get pods"), "the rule names no namespace"),
        (("--can", "get pods -n shop", "--for", "never"), "--for is not a duration"),
        (("--can", "get pods -n shop", "--prefix", "x"), "--prefix must be a path"),
    ],
)
def test_a_mistake_is_told_before_anybody_is_asked(capsys: Captured, words: tuple[str, ...], said: str) -> None:
    assert main(["token", *words, *NOWHERE]) != 0
    shown = capsys.readouterr()
    assert said in shown.err
    assert "unreachable" not in shown.err
    assert shown.out == ""


def test_a_gateway_that_is_not_there_leaves_no_file_behind(capsys: Captured, tmp_path: Path) -> None:
    parent, made = tmp_path / "token", tmp_path / "agent.yaml"
    parent.write_text("ost_marked-secret")
    words = ("--can", "get pods -n shop", "--token-file", str(parent), "--kubeconfig", str(made))
    assert main(["token", *words, *NOWHERE]) == 1
    shown = capsys.readouterr()
    assert "the gateway is unreachable" in shown.err
    assert "marked-secret" not in shown.out + shown.err
    assert not made.exists()
