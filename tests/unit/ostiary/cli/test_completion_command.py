"""The completion scripts, tried in the shells they are for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ostiary.cli import COMMANDS, main
from ostiary.cli.completion import SCRIPTS, levels, whole_parser
from ostiary_gateway.cli import main as gateway_main

PRESS_TAB = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); "_${1//-/_}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "ostiary.bash"
    path.write_text(SCRIPTS["bash"](tuple(levels(whole_parser())), "ostiary"))
    return path


def offered(script: Path, *words: str, cwd: Path | None = None, program: str = "ostiary") -> set[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", PRESS_TAB, "bash", script, program, *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert done.stderr == ""
    return set(done.stdout.split("\n")) - {""}


def test_bash_offers_the_commands(script: Path) -> None:
    assert offered(script, "") == {*COMMANDS, "-h", "--help", "--version"}
    assert offered(script, "log") == {"login", "logout"}
    assert offered(script, "exe") == {"exec"}


def test_the_gateway_has_a_script_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gateway_main(["completion", "bash"]) == 0
    script = tmp_path / "gateway.bash"
    script.write_text(capsys.readouterr().out)
    assert offered(script, "serve", "--", program="ostiary-gateway") == {
        "--config",
        "--check",
        "--online",
        "--schema",
        "--help",
    }, "options that are not for people are not offered"
    assert {"token", "session", "user", "group", "before"} <= offered(
        script, "sessions", "revoke", "", program="ostiary-gateway"
    )


def test_bash_offers_the_verbs_of_a_command(script: Path) -> None:
    assert offered(script, "exec", "") == {"run", "explain", "check", "-h", "--help"}
    assert offered(script, "exec", "e") == {"explain"}


def test_bash_offers_options_and_their_values(script: Path) -> None:
    assert offered(script, "exec", "run", "--c") == {"--context", "--cluster", "--clean-environment"}
    assert offered(script, "exec", "run", "--output", "") == {"text", "json", "header"}
    assert offered(script, "exec", "explain", "-o", "") == {"text", "json"}
    assert offered(script, "completion", "") == {*SCRIPTS, "-h", "--help"}


def test_bash_does_not_take_the_value_of_an_option_for_a_word(script: Path) -> None:
    assert offered(script, "exec", "run", "--context", "check", "--t") == {"--timeout"}
    assert offered(script, "exec", "check", "--api-version", "v1", "--t") == {"--timeout"}
    assert offered(script, "exec", "run", "--context", "") == set()


def test_bash_offers_files_where_a_file_is_wanted(script: Path, tmp_path: Path) -> None:
    (tmp_path / "my config").touch()
    assert offered(script, "exec", "run", "--kubeconfig", "my", cwd=tmp_path) == {"my config"}


def test_bash_offers_programs_to_check_and_files_as_their_arguments(script: Path, tmp_path: Path) -> None:
    (tmp_path / "argument").touch()
    assert "bash" in offered(script, "exec", "check", "bas")
    assert offered(script, "exec", "check", "bash", "arg", cwd=tmp_path) == {"argument"}
    assert offered(script, "exec", "check", "--a") == {"--api-version"}


def test_every_option_of_every_command_is_in_every_script(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(levels(whole_parser()))
    assert ("exec", "check") in [level.path for level in found]
    for shell in SCRIPTS:
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        for option in (option for level in found for option in level.options):
            assert all(name.lstrip("-") in script for name in option.names)


SHELLS = {"bash": "-n", "zsh": "-n", "fish": "--no-execute"}


@pytest.mark.parametrize(
    ("shell", "only_read"), [pytest.param(*pair, marks=pytest.mark.needs(pair[0])) for pair in SHELLS.items()]
)
def test_the_shell_finds_no_mistake_in_its_script(
    shell: str, only_read: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    done = subprocess.run([shell, only_read, "script"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
