"""Follows a page of the docs as a reader would: writes its files, types its commands, runs its Python.

A block whose first line is a comment with a file name (``# gateway.yaml``, or the second line below ``#!``) becomes
that file. In a ``console`` block the lines that begin with ``$ `` are typed, in one shell and in the order of the page;
what stands below a command is what it must print, where ``...`` stands for anything. Any other ``python`` block is run
where it stands, and a block without a language below it is what it must print. ``ostiary-gateway serve`` runs on in the
background, as in a second terminal, and so do ``ostiary registry serve`` and a command that ends with ``&``. The ports
that a page uses are replaced by free ones. Blocks in other languages are shown and not run.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from types import TracebackType
from typing import Self

from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
PORTS = ("8443", "8444", "8451", "8452", "8453", "8461", "8462", "8463", "9000")
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?P<interpreter>#!.*\n)?# (?P<name>[\w./-]+)\n")
_END = "@@end@@"
# The two commands of the README prepare a clone; every other page begins with a package that is installed.
_OF_THE_CLONE = "make "
_LOGS = ("podman logs", "journalctl")


@dataclass(frozen=True)
class WriteFile:
    name: str
    text: str


@dataclass(frozen=True)
class Command:
    line: str
    shows: tuple[str, ...]


@dataclass(frozen=True)
class RunPython:
    text: str
    shows: tuple[str, ...]


Step = WriteFile | Command | RunPython


def sections(path: Path) -> list[tuple[str, str]]:
    """A page as a whole, and the README door by door; each with a name."""
    text, name = path.read_text(), str(path.relative_to(ROOT))
    if path.name != "README.md":
        return [(name, text)]
    doors = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return [(f"{name}: {door.splitlines()[0].removeprefix('## ').partition(':')[0]}", door) for door in doors]


def steps(page: str) -> Iterator[Step]:
    program: RunPython | None = None
    for indent, language, block in _BLOCK.findall(page):
        text = dedent(block) if indent else block
        if program is not None:
            shown = tuple(text.splitlines()) if not language else ()
            yield RunPython(program.text, shown)
            program = None
        named = _FILE.match(text)
        if named is not None and language in ("python", "yaml", "json", "toml", "sh", "cfg"):
            yield WriteFile(named["name"], text)
        elif language == "python":
            program = RunPython(text, ())
        elif language == "console":
            yield from _commands(text)
    if program is not None:
        yield program


def _commands(text: str) -> Iterator[Command]:
    line, shows = "", list[str]()
    for row in text.splitlines():
        if line.endswith("\\"):
            line = f"{line}\n{row}"
        elif row.startswith("$ "):
            if line:
                yield Command(line, tuple(shows))
            line, shows = row.removeprefix("$ "), []
        else:
            shows.append(row)
    if line:
        yield Command(line, tuple(shows))


def on_free_ports(page: str) -> str:
    for port in PORTS:
        page = re.sub(rf"\b{port}\b", str(free_port()), page)
    return page


class Walk:
    """One reader, in *folder*, with the *programs* folders before all others on the PATH.

    *inside* is the beginning of a command that starts the reader's shell elsewhere: on another machine, so to speak.
    """

    def __init__(self, folder: Path, *programs: Path, inside: Sequence[str] = (), **environment: str) -> None:
        self._folder = folder
        self._inside = inside
        path = ":".join([*map(str, programs), os.environ["PATH"]])
        self._environment = {**os.environ, "PATH": path, **environment}
        self._servers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        self._shell = subprocess.Popen(
            [*self._inside, "bash", "--norc", "--noprofile"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            said = server.communicate(timeout=SECONDS)[1]
            if error is not None:
                error.add_note(said)
        # The shell's group: what the page started with an ampersand ends with it.
        os.killpg(self._shell.pid, signal.SIGTERM)
        self._shell.kill()
        self._shell.communicate(timeout=SECONDS)

    def follow(self, page: str) -> None:
        for step in steps(page):
            match step:
                case WriteFile():
                    path = self._folder / step.name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(step.text)
                case RunPython():
                    self._run_python(step)
                case Command(line) if line.startswith("ostiary-gateway serve") and "--check" not in line:
                    self._serve(line)
                case Command(line) if line.startswith("ostiary registry serve"):
                    self._serve(line, ready="listening on")
                case Command(line) if not line.startswith(_OF_THE_CLONE):
                    self._type(step)

    def _run_python(self, program: RunPython) -> None:
        done = subprocess.run(
            ["python3", "-W", "error::SyntaxWarning", "-c", program.text],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{program.text}\n{done.stderr}"
        if program.shows:
            assert _like(program.shows).fullmatch(done.stdout.strip()), f"{program.text}\n{done.stdout}"

    def _serve(self, line: str, ready: str = "serving on") -> None:
        server = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._servers.append(server)
        assert server.stderr is not None
        said: list[str] = []
        for row in server.stderr:
            said.append(row)
            if ready in row:
                return
        raise AssertionError(f"$ {line}\n{''.join(said)}")

    def _type(self, command: Command) -> None:
        shown, succeeded = self._run(command.line)
        if command.line.endswith("&"):
            _wait_for_port(command.line)
        elif command.shows:
            expected, deadline = _like(command.shows), time.monotonic() + SECONDS
            while not expected.fullmatch(shown):
                # A log may be read before the line is written.
                assert command.line.startswith(_LOGS), f"$ {command.line}\n{shown}"
                assert time.monotonic() < deadline, f"$ {command.line}\n{shown}"
                shown, _ = self._run(command.line)
        else:
            assert succeeded, f"$ {command.line}\n{shown}"

    def _run(self, line: str) -> tuple[str, bool]:
        """What a command prints in the reader's shell, and whether it succeeds."""
        stdin, stdout = self._shell.stdin, self._shell.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(f"{line}\nprintf '\\n{_END}%d\\n' $?\n")
        stdin.flush()
        printed: list[str] = []
        for row in stdout:
            if row.startswith(_END):
                break
            printed.append(row.rstrip("\n"))
        return "\n".join(printed).strip(), row == f"{_END}0\n"


def _like(shows: tuple[str, ...]) -> re.Pattern[str]:
    text = "\n".join(shows).strip()
    return re.compile(".*".join(re.escape(part) for part in text.split("...")), re.DOTALL)


def _wait_for_port(line: str) -> None:
    port = re.search(r"\b(\d{4,5})\b", line)
    assert port is not None, f"which port does it listen on? {line}"
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", int(port[1])), timeout=SECONDS).close()
            return
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, line
            time.sleep(0.02)  # somebody else's program, which does not tell when it listens
