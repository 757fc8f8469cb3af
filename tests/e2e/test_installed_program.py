"""The program ``ostiary`` as pip installs it: from a wheel and editable, wherever it is put, and at what cost."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary import __version__
from ostiary.cli.login.sessions import FILE, GatewayAccount, Sessions, SignInGrant
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.model import Secret
from tests.support.wheel import build, install

SERVER = "https://gateway.example"
SECONDS = 100


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What pip is given, by the name of the build; each is built once."""
    return functools.cache(lambda name: build(tmp_path_factory.mktemp(name), version=name))


@pytest.fixture(scope="module")
def programs(wheel: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("programs") / "venv", wheel("standard"))


def run(program: Path | str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [str(program), *words]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=SECONDS)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("standard", "with spaces"),
        *(
            pytest.param(kind, name, marks=pytest.mark.slow)
            for kind, name in (("standard", "plain"), ("editable", "plain"), ("editable", "with spaces"))
        ),
    ],
)
def test_it_runs_wherever_it_is_installed(wheel: Callable[[str], Path], kind: str, name: str, tmp_path: Path) -> None:
    programs = install(tmp_path / name, wheel(kind))
    done = run(programs / "ostiary", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ostiary {__version__}\n", "")
    helper = run(programs / "docker-credential-ostiary", "version")
    assert (helper.returncode, helper.stderr) == (0, "")
    assert helper.stdout == f"docker-credential-ostiary (ostiary) {__version__}\n"
    provider = run(programs / "ostiary-credential-provider", "--help")
    assert (provider.returncode, provider.stdout.startswith("usage: ostiary-credential-provider")) == (0, True)


def test_its_arguments_its_exit_code_and_its_name_are_as_given(programs: Path) -> None:
    wrong = run(programs / "ostiary", "exec * $HOME", "'")
    assert wrong.returncode == 2
    assert "exec * $HOME" in wrong.stderr
    found = run("ostiary", "--help", PATH=f"{programs}:{os.environ['PATH']}")
    assert "usage: ostiary COMMAND" in found.stdout


def test_it_runs_through_links(programs: Path, tmp_path: Path) -> None:
    for name, linked in {"of it alone": ["ostiary"], "of all": ["ostiary", "kubectl-ostiary"]}.items():
        folder = tmp_path / name
        folder.mkdir()
        for program in linked:
            (folder / program).symlink_to(programs / program)
        assert run(folder / "ostiary", "--version").stdout == f"ostiary {__version__}\n", name
    # As into the kubelet's directory of providers; a copy has nothing beside it that knows the interpreter.
    (tmp_path / "acme").symlink_to(programs / "ostiary-credential-provider")
    assert run(tmp_path / "acme", "--help").returncode == 0
    shutil.copy(programs / "ostiary-credential-provider", tmp_path / "copied")
    copied = run(tmp_path / "copied", "--help")
    assert (copied.returncode, "do not copy it" in copied.stderr) == (1, True)


def test_get_token_imports_what_it_needs_and_nothing_else(programs: Path) -> None:
    """Whatever pip there is: some write entry points that import more than all of ours."""
    end = SYSTEM_CLOCK.now() + timedelta(hours=1)
    grant = SignInGrant(Secret("t0ken"), end, Secret("renewal"), "s1", end, "ann")
    Sessions(GatewayAccount(SERVER)).save(grant, store=FILE, authorities_pem=None)
    done = run(programs / "ostiary", "get-token", "--server", SERVER, PYTHONPROFILEIMPORTTIME="1")
    assert done.stdout.startswith('{"kind":"ExecCredential"')
    bare = run(programs / "python", "-c", "pass", PYTHONPROFILEIMPORTTIME="1")
    assert imported(done.stderr) - imported(bare.stderr) <= {
        "ostiary",
        "ostiary.cli",
        "ostiary.cli.cached_token",
        "time",
    }


def imported(timings: str) -> set[str]:
    return {line.rpartition("|")[2].strip() for line in timings.splitlines() if line.startswith("import time:")}
