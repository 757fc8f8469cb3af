"""The programs that are no entry points find their interpreter in the entry point beside them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BIN = Path(__file__).parents[4] / "packages/ostiary/bin"
# Stands for Python: tells how it was run.
INTERPRETER = "#!/bin/sh\nprintf '%s\\n' \"$@\"\n"


def test_the_interpreter_is_that_of_the_entry_point(
    tmp_path_factory: pytest.TempPathFactory, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[str, str, list[str] | None]] = [
        ("venv", "#!{python}\n", []),
        ("venv", "#!{python} -sP\n", ["-sP"]),
        ("venv", "#! {python}\n", []),
        ("l" * 140, "#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\n", []),
        ("venv", "#!/bin/sh\n'''exec' {python} -sP \"$0\" \"$@\"\n' '''\n", ["-sP"]),
        ("with space", "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n", []),
        ("with space", "#!/bin/sh\n'''exec' \"{python}\" -sP \"$0\" \"$@\"\n' '''\n", ["-sP"]),
        ("venv", "#!python\n", None),
        ("venv", "#!/bin/sh\nexit 0\n", None),
        ("venv", "", None),
    ]
    for program in ["docker-credential-ostiary", "ostiary-credential-provider"]:
        for folder, lines, flags in cases:
            with subtests.test(program=program, folder=folder, lines=lines, flags=flags):
                tmp_path = tmp_path_factory.mktemp("case")
                python = tmp_path / folder / "python"
                python.parent.mkdir()
                python.write_text(INTERPRETER)
                python.chmod(0o755)
                copy = Path(shutil.copy(BIN / program, tmp_path))
                (tmp_path / "kubectl-ostiary").write_text(lines.format(python=python))
                done = subprocess.run(["/bin/sh", copy, "get", "a b"], capture_output=True, text=True, timeout=30)
                if flags is None:
                    assert (done.returncode, done.stdout) == (1, "")
                    assert "does not name one by its full path" in done.stderr
                else:
                    assert done.stdout.splitlines() == [*flags, str(copy), "get", "a b"], done.stderr
