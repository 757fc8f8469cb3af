"""Sockets for one user: where they may be made, and what systemd passes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ostiary.core.unix_socket import listen_privately, passed_socket, peer_user


def test_only_the_owner_can_connect(tmp_path: Path) -> None:
    path = tmp_path / "run" / "s"
    with listen_privately(str(path), backlog=1), socket.socket(socket.AF_UNIX) as client:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        client.connect(str(path))
        assert peer_user(client) == os.geteuid()
        with pytest.raises(OSError, match="another process listens there"):
            listen_privately(str(path), backlog=1)
    # Left behind, as by a process that was killed.
    listen_privately(str(path), backlog=1).close()


def test_not_where_others_could_put_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(OSError, match="others may write to its folder"):
        listen_privately(str(folder / "s"), backlog=1)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="no socket"):
        listen_privately(str(tmp_path / "file"), backlog=1)


def test_what_is_meant_for_another_process_is_not_taken() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x", "OTHER": "y"}
    assert passed_socket(environment) is None
    assert environment == {"OTHER": "y"}
    with pytest.raises(OSError, match="passed 2 sockets"):
        passed_socket({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})


def test_another_kind_of_descriptor_is_refused(tmp_path: Path) -> None:
    script = """
import os, sys
from ostiary.core.unix_socket import passed_socket
try:
    passed_socket({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"})
except OSError as error:
    print(error)
"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.set_inheritable(listener.fileno(), True)
        command = ["bash", "-c", f'exec 3<&{listener.fileno()}; exec "$0" -c "$1"', sys.executable, script]
        done = subprocess.run(command, pass_fds=[listener.fileno()], capture_output=True, text=True)
    assert "no listening Unix socket" in done.stdout, done.stderr
