"""A PostgreSQL server for the duration of the demo, in a temporary folder. It listens on a Unix socket only."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Debian's path and user. PostgreSQL does not run as root.
PROGRAMS = Path("/usr/lib/postgresql/15/bin")
RUN_AS = "postgres"
SECONDS = 60.0


@contextmanager
def database() -> Iterator[Path]:
    """Run the server and yield the folder of its socket. Only users with access to the folder can connect."""
    if not (PROGRAMS / "initdb").exists():
        raise SystemExit("this demo needs PostgreSQL: apt-get install postgresql-15")
    # Directly below /tmp, because the path of a Unix socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="ostiary-", dir="/tmp"))
    try:
        if os.geteuid() == 0:
            owner = pwd.getpwnam(RUN_AS)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        _run("initdb", "-D", f"{folder}/data", "-A", "trust", "-U", RUN_AS, "--no-sync")
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={folder}"]
        command = _as_server([str(PROGRAMS / "postgres"), "-D", f"{folder}/data", *options])
        with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            try:
                _wait(folder)
                yield folder
            finally:
                process.terminate()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(program: str, *arguments: str) -> None:
    subprocess.run(_as_server([str(PROGRAMS / program), *arguments]), check=True, capture_output=True, cwd="/")


def _wait(folder: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while subprocess.run([PROGRAMS / "pg_isready", "-q", "-h", folder], check=False).returncode:
        if time.monotonic() > deadline:
            raise SystemExit("PostgreSQL did not start:\n" + (folder / "log").read_text(errors="replace"))
        time.sleep(0.05)


def _as_server(command: list[str]) -> list[str]:
    if os.geteuid() != 0:
        return command
    return ["setpriv", f"--reuid={RUN_AS}", f"--regid={RUN_AS}", "--init-groups", *command]
