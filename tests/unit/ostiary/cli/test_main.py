"""The program itself: its help, its mistakes, its exit codes, and how little it imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ostiary import __version__
from ostiary.cli import COMMANDS, GATEWAY_COMMANDS, main
from ostiary.cli import main as client_main
from ostiary_gateway import cli as gateway_cli
from ostiary_gateway.cli import main as gateway_main
from tests.support.plugins import exec_user, write_kubeconfig

PROGRAM = [sys.executable, "-m", "ostiary"]
Captured = pytest.CaptureFixture[str]


def ostiary(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


# --- real processes ---


def test_the_help_names_every_command_and_says_where_to_begin() -> None:
    done = ostiary("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout and does in done.stdout for name, (_, does) in COMMANDS.items())
    assert "ostiary exec explain" in done.stdout
    assert "Exit codes" in done.stdout


def test_an_unknown_command_is_answered_with_the_nearest_one() -> None:
    done = ostiary("exce")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("ostiary: unknown command 'exce'\n  hint   did you mean ostiary exec?\n  code   usage\n")


@pytest.mark.parametrize(
    ("program", "word", "hint"),
    [
        (client_main, "serve", "did you mean ostiary-gateway serve?"),
        (client_main, "sesions", "did you mean ostiary-gateway sessions?"),
        (gateway_main, "login", "did you mean ostiary login?"),
        (gateway_main, "serv", "did you mean ostiary-gateway serve?"),
    ],
)
def test_a_command_of_the_other_program_is_pointed_out(
    program: Callable[[list[str]], int], word: str, hint: str, capsys: Captured
) -> None:
    assert program([word]) == 2
    assert f"  hint   {hint}\n" in capsys.readouterr().err


def test_the_hint_knows_every_command_of_the_gateway() -> None:
    assert {*GATEWAY_COMMANDS, "completion"} == gateway_cli.COMMANDS.keys()


def test_importing_the_program_imports_nothing_else() -> None:
    """`get-token` runs before every kubectl command: each module that is imported here is waited for."""

    def modules(script: str) -> set[str]:
        command = [sys.executable, "-c", f"{script}\nimport sys; print(*sys.modules)"]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    bare = modules("pass")
    assert modules("import ostiary.cli") - bare == {"ostiary", "ostiary.cli"}


def test_the_help_of_the_program_needs_only_the_dispatcher() -> None:
    code = (
        "import sys, ostiary.cli\n"
        "before = set(sys.modules)\n"
        "assert ostiary.cli.main(['--help']) == 0\n"
        "print(*set(sys.modules) - before, file=sys.stderr)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr == (
        "ostiary.cli.dispatch\n"
    )


def test_a_reader_that_went_away_is_no_reason_to_complain() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*PROGRAM, "completion", "bash"],
            # Buffered, or there would be nothing left to complain about at the end.
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_ctrl_c_ends_the_plugin_and_then_the_program_quietly(tmp_path: Path) -> None:
    fifo = tmp_path / "started"
    os.mkfifo(fifo)
    script = tmp_path / "plugin"
    script.write_text(f"#!/bin/sh\necho > {fifo}\nread line < {fifo}\n")
    script.chmod(0o755)
    config = write_kubeconfig(tmp_path / "config", server="https://c", user=exec_user(script))
    with subprocess.Popen(
        [*PROGRAM, "exec", "run", "--kubeconfig", config], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        # Opening it waits until the plugin does the same.
        with open(fifo) as started:
            started.readline()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=100)
    assert (process.returncode, said) == (130, "")


# --- colours ---


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = os.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_and_never_where_they_are_not_wanted(env: dict[str, str], coloured: bool) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    with terminal() as (ours, theirs):
        subprocess.run([*PROGRAM, "nonsense"], env={**clean, **env}, stderr=theirs, timeout=100)
        said = os.read(ours, 65536)
    assert b"unknown command" in said
    assert (b"\x1b[" in said) == coloured


# --- the rest, without starting processes ---


def test_without_a_command_the_help_goes_to_stderr(capsys: Captured) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "usage: ostiary COMMAND" in shown.err


@pytest.mark.parametrize("word", ["-h", "--help", "help"])
def test_the_help_can_be_asked_for_in_three_ways(capsys: Captured, word: str) -> None:
    assert main([word]) == 0
    assert "usage: ostiary COMMAND" in capsys.readouterr().out


def test_the_version_is_the_packages(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ostiary {__version__}\n"


def test_kubectl_calls_it_by_another_name(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-ostiary", "exce"])
    assert main() == 2
    assert "did you mean kubectl ostiary exec?" in capsys.readouterr().err


def test_every_command_has_help(capsys: Captured, subtests: pytest.Subtests) -> None:
    for command in COMMANDS:
        with subtests.test(command=command):
            assert main([command, "--help"]) == 0
            assert f"usage: ostiary {command}" in capsys.readouterr().out


def test_a_wrong_command_line_is_told_in_our_form(capsys: Captured, subtests: pytest.Subtests) -> None:
    cases: list[list[str]] = [
        ["exec"],
        ["exec", "nonsense"],
        ["exec", "run", "--nonsense"],
        ["exec", "run", "--contex", "c"],
        ["exec", "run", "--timeout", "soon"],
        ["exec", "run", "--timeout", "0"],
        ["exec", "run", "--timeout", "nan"],
        ["exec", "explain", "--output", "header"],
        ["exec", "check"],
        ["exec", "check", "--env", "NAME", "true"],
        ["completion", "tcsh"],
    ]
    for line in cases:
        with subtests.test(line=line):
            assert main(line) == 2
            shown = capsys.readouterr()
            assert shown.out == ""
            assert shown.err.startswith("ostiary: ")
            assert "  hint   " in shown.err
            assert shown.err.endswith("  code   usage\n")


@pytest.mark.parametrize(
    "line",
    [
        ["nonsense", "--output", "json"],
        ["exec", "run", "--nonsense", "-o", "json"],
        ["exec", "run", "--output=json", "--timeout", "soon"],
        ["exec", "check", "-ojson", "--env", "NAME", "true"],
    ],
)
def test_a_program_that_asked_for_json_gets_its_mistakes_as_json(capsys: Captured, line: list[str]) -> None:
    assert main(line) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert json.loads(shown.err)["error"]["code"] == "usage"
