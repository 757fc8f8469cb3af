"""Which configuration ``ostiary-gateway serve`` reads: --config, else gateway.yaml here, else the built-in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostiary_gateway.cli import main

Captured = pytest.CaptureFixture[str]

CONFIG = """\
apiVersion: ostiary.dev/v1
kind: Gateway
store: {type: memory}
identity: [{name: me, type: single_user, username: alice}]
authorization: {chain: [{name: all, type: allow_all}]}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_gateway_yaml_of_this_directory_is_taken_as_by_every_command(folder: Path, capsys: Captured) -> None:
    """S15: somebody who wrote a configuration is not served with one that allows everything."""
    (folder / "gateway.yaml").write_text(CONFIG)
    assert main(["serve", "--check"]) == 0
    out, err = capsys.readouterr()
    assert out == "gateway.yaml: OK\n"
    assert "ostiary: using gateway.yaml in this directory\n" in err


@pytest.mark.parametrize("make", ["mistaken", "a link to nothing", "a directory"])
def test_a_gateway_yaml_that_cannot_be_used_is_not_passed_over(folder: Path, capsys: Captured, make: str) -> None:
    """S15."""
    path = folder / "gateway.yaml"
    match make:
        case "mistaken":
            path.write_text("kind: Gatway\n")
        case "a link to nothing":
            path.symlink_to("absent.yaml")
        case _:
            path.mkdir()
    assert main(["serve", "--check"]) != 0
    assert "gateway.yaml" in capsys.readouterr().err


def test_the_one_that_is_named_comes_first_and_is_not_told(folder: Path, capsys: Captured) -> None:
    (folder / "gateway.yaml").write_text("kind: Gatway\n")
    (folder / "other.yaml").write_text(CONFIG)
    assert main(["serve", "--config", "other.yaml", "--check"]) == 0
    out, err = capsys.readouterr()
    assert out == "other.yaml: OK\n"
    assert "taking" not in err


def test_without_any_the_built_in_one_is_taken_and_it_is_told(capsys: Captured) -> None:
    """S15."""
    assert main(["serve", "--check"]) == 0
    out, err = capsys.readouterr()
    assert out == "the built-in configuration: OK\n"
    assert "there is no gateway.yaml in this directory: using the built-in configuration" in err
    assert "everybody who can connect may do everything" in err
