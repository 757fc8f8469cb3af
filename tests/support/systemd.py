"""A systemd of the test's own: a real one, first process of its own namespaces, with nothing but the units it needs.

It sees this machine's files; what it and its services write to /etc, /var, /run and /opt is gone when it ends. In its
/opt is the program, as the image has it. Needs root, and a kernel with cgroup2 and overlay.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Self

import pytest

from tests.support import image
from tests.support.tiers import missing

SECONDS = 60.0
SYSTEMD = Path("/lib/systemd/systemd")
UNITS = Path("/lib/systemd/system")
# What the unit names, and what systemd itself cannot do without.
TARGETS = (
    *("basic", "sysinit", "sockets", "timers", "paths", "slices", "shutdown", "local-fs", "swap", "multi-user"),
    *("network", "network-online", "nss-lookup", "umount"),
)
# A cgroup of its own first: in the namespace it is the root of all cgroups.
_OUTSIDE = """
set -e
echo $$ >"$CGROUP/cgroup.procs"
exec unshare --mount --pid --fork --ipc --uts --cgroup --mount-proc --kill-child bash -c "$INSIDE"
"""
_INSIDE = """
set -e
mount --make-rprivate /
umount -R /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
mount -t tmpfs none /run
for folder in etc var; do
  over=/run/writable/$folder
  mkdir -p $over/{files,work}
  mount -t overlay none -o lowerdir=/$folder,upperdir=$over/files,workdir=$over/work /$folder
done
mkdir -p /run/systemd /run/lock /etc/systemd/system
mount -t tmpfs none /etc/systemd/system
# There is no journal: what services print goes to the same place.
mkdir /etc/systemd/system/service.d
printf '[Service]\nStandardOutput=append:%s\nStandardError=inherit\n' "$LOG" >/etc/systemd/system/service.d/log.conf
mount --bind "$OPT" /opt
# As on every machine with systemd: it mounts credentials in another namespace and expects to see them here.
mount --make-rshared /
export container=test SYSTEMD_UNIT_PATH="/etc/systemd/system:$UNITS"
exec "$SYSTEMD" --system --unit=basic.target --log-target=console --show-status=no
"""


class PrivateSystemd:
    """``with PrivateSystemd(folder) as systemd``: `systemd.run("systemctl", "start", ...)`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._log = folder / "log"

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            missing("root")
        units, opt = self._folder / "units", self._folder / "opt"
        units.mkdir()
        for target in TARGETS:
            shutil.copy(UNITS / f"{target}.target", units)
        image.copy_out("/opt/ostiary", opt)
        self._cgroup = _cgroup2() / f"ostiary-{os.getpid()}-{time.monotonic_ns()}"
        self._cgroup.mkdir()
        names = {
            "CGROUP": self._cgroup,
            "OPT": opt,
            "UNITS": units,
            "SYSTEMD": SYSTEMD,
            "INSIDE": _INSIDE,
            "LOG": self._log,
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", _OUTSIDE],
                env={**os.environ, **{name: str(value) for name, value in names.items()}},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._first = self._wait_for_first_process()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # Its namespace of processes, and so everything in it, ends with it.
        self._process.kill()
        self._process.wait(SECONDS)
        deadline = time.monotonic() + SECONDS
        while (self._cgroup / "cgroup.procs").exists() and time.monotonic() < deadline:
            for folder in sorted(self._cgroup.rglob("*/"), reverse=True):
                _remove(folder)
            _remove(self._cgroup)

    @property
    def root(self) -> Path:
        """The root of its files, as seen from outside."""
        return Path(f"/proc/{self._first}/root")

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def shell(self, folder: Path) -> list[str]:
        """The beginning of a command that runs beside its services, in *folder*."""
        return ["nsenter", f"--target={self._first}", "--mount", "--pid", f"--wdns={folder}"]

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.shell(Path("/")), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0 or not check, f"{command}\n{done.stdout}{done.stderr}\n{self.log}"
        return done

    def main_pid(self, unit: str) -> str:
        """In its own namespace of processes."""
        return self.run("systemctl", "show", "--property=MainPID", "--value", unit).stdout.strip()

    def _wait_for_first_process(self) -> int:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            first = children.read_text().split()
            if first and Path(f"/proc/{first[0]}/root/run/systemd/private").exists():
                return int(first[0])
            time.sleep(0.02)  # another's program, which does not tell when it listens
        pytest.skip(f"no systemd can be started on this machine: {self.log}")


def _cgroup2() -> Path:
    for row in Path("/proc/mounts").read_text().splitlines():
        _, folder, kind, *_ = row.split()
        if kind == "cgroup2":
            return Path(folder)
    pytest.skip("a systemd of its own needs cgroup2")


def _remove(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        # Its processes are still ending.
        time.sleep(0.02)
