"""The image, built by ``deploy/image/build``, and containers of it: real ones, as locked down as a cluster runs them.

buildah and podman work in a storage of the tests' own, which is kept between runs so that only what has changed is
built: ``${OSTIARY_IMAGE:-~/.cache/ostiary-image}``, as that script says.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.gateway import SECONDS, ServedGateway, Site

ROOT = Path(__file__).parents[2]
NAME = "localhost/ostiary-test"
USER = 65532
CONFIG, STATE = "/etc/ostiary", "/var/lib/ostiary"
# With nothing in the cache, on two busy cores: a Debian root, a compiler, the libraries.
BUILD_SECONDS = 900
RUN_SECONDS = 60
# Taken when this module is imported: tests have a HOME of their own.
CACHE = Path(
    os.environ.get("OSTIARY_IMAGE")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ostiary-image"
)
_STORAGE = CACHE / "storage.conf"
_ENVIRONMENT = {"CONTAINERS_STORAGE_CONF": str(_STORAGE), "OSTIARY_IMAGE": str(CACHE)}
# crun refuses machines with version 1 and 2 of cgroups side by side, even where a container is to have none. So podman
# sees a machine without cgroups, in a mount namespace of its own.
_WITHOUT_CGROUPS = 'umount -R /sys/fs/cgroup; mount -t tmpfs none /sys/fs/cgroup && exec "$0" "$@"'
LOCKED_DOWN = [
    "--read-only",
    # podman would mount a writable /tmp and others; a cluster does not.
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
]


@functools.cache
def build() -> str:
    """The name of the image, built from this tree."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if not _STORAGE.exists():
        _write_storage("overlay")
        # Not on top of another overlay, for example.
        if _run("buildah", "info", check=False).returncode != 0:
            _write_storage("vfs")
    _prune()
    _run(str(ROOT / "deploy/image/build"), NAME, seconds=BUILD_SECONDS)
    return NAME


def identifier() -> str:
    """What the name stands for now. Another run of the tests may give the name to another image at any time."""
    return _run("buildah", "inspect", "--type", "image", "--format", "{{.FromImageID}}", NAME).stdout.strip()


def _prune() -> None:
    """Once a day, remove what earlier builds left: each change of the source leaves 300 MB."""
    marker, now = CACHE / "pruned", time.time()
    if not marker.exists() or marker.stat().st_mtime < now - 86400:
        marker.touch()
        _run("flock", str(CACHE / "lock"), "buildah", "rmi", "--prune", check=False, seconds=BUILD_SECONDS)


def podman(*arguments: str) -> list[str]:
    # The path: a page of the docs has a `podman` of its own on the PATH, which calls this one.
    program = shutil.which("podman") or "podman"
    if os.geteuid() != 0:
        return [program, *arguments]
    return ["unshare", "--mount", "bash", "-c", _WITHOUT_CGROUPS, program, *arguments]


def run(*arguments: str, entrypoint: str | None = None, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command in a container of the image, to its end; *folder* is where the configuration is."""
    before = [*limits(), *LOCKED_DOWN, "--network=none"]
    if entrypoint is not None:
        before.append(f"--entrypoint={entrypoint}")
    if folder is not None:
        before.append(f"--volume={folder}:{CONFIG}:ro")
    return _run(*podman("run", "--rm", *before, NAME, *arguments), check=False)


def python(program: str) -> str:
    """What a Python *program* prints in the image."""
    done = run("-c", program, entrypoint="/opt/ostiary/bin/python")
    assert done.returncode == 0, done.stderr
    return done.stdout


def inspect() -> dict[str, Any]:
    """The configuration of the image, as a runtime reads it."""
    document = json.loads(_run("buildah", "inspect", "--type", "image", NAME).stdout)
    return dict(document["OCIv1"]["config"])


def copy_out(path: str, target: Path) -> None:
    """Copy the folder *path* of the image into the new folder *target*."""
    container = _run("buildah", "from", NAME).stdout.strip()
    try:
        root = Path(_run("buildah", "mount", container).stdout.strip())
        target.mkdir()
        shutil.copytree(root / path.removeprefix("/"), target / Path(path).name, symlinks=True)
    finally:
        _run("buildah", "rm", container)


def give_to_user(folder: Path) -> None:
    """As a volume of the image is, or one of a pod with ``fsGroup``."""
    os.chown(folder, USER, USER)


_PODMAN = """#!/bin/bash
# podman for readers of the docs: with the tests' storage, without cgroups, on the network of this machine.
export {environment}
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
  -p) shift ;;
  run) arguments+=("$1" {options} --network=host) ;;
  *) arguments+=("$1") ;;
  esac
  shift
done
exec {command} "${{arguments[@]}}"
"""


def write_podman(path: Path) -> None:
    """The program ``podman`` for a page of the docs."""
    environment = " ".join(f"{name}={shlex.quote(value)}" for name, value in _ENVIRONMENT.items())
    options, command = shlex.join(limits()), shlex.join(podman())
    path.write_text(_PODMAN.format(environment=environment, options=options, command=command))
    path.chmod(0o755)


def remove(*, container: str, volume: str) -> None:
    _run(*podman("rm", "--force", "--time=0", container), check=False)
    _run(*podman("volume", "rm", "--force", volume), check=False)


class ContainerGateway(ServedGateway):
    """The image, served from the folder of *site*, which is mounted read-only; *state* is its only writable folder."""

    def __init__(self, site: Site, state: Path, **sections: Any) -> None:
        super().__init__(site, site.write_config(**sections), _ENVIRONMENT)
        self._state = state
        self.name = f"ostiary-{uuid.uuid4().hex}"

    def command(self) -> list[str]:
        volumes = [f"--volume={self.site.folder}:{CONFIG}:ro", f"--volume={self._state}:{STATE}"]
        # The host's network: the gateway listens on the loopback, and the tests' servers are there.
        return podman("run", "--rm", f"--name={self.name}", *limits(), *LOCKED_DOWN, *volumes, "--network=host", NAME)

    def processes(self) -> list[Path]:
        """The folders in /proc of the processes in the container."""
        first = _run(*podman("inspect", "--format={{.State.Pid}}", self.name)).stdout.strip()
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [Path("/proc", pid) for pid in (first, *children)]

    def wait_until_refusing(self) -> None:
        """Until nobody is let in any more. No event tells it."""
        deadline = time.monotonic() + SECONDS
        with suppress(OSError):
            while time.monotonic() < deadline:
                self.connect().close()
            raise AssertionError("the gateway still accepts connections")

    def kill(self) -> None:
        """Its processes are not ours: podman has to end them."""
        _run(*podman("rm", "--force", "--time=0", self.name), check=False)
        super().kill()


def limits() -> list[str]:
    """podman's own are higher than some machines allow, and then no container starts."""
    return ["--cgroups=disabled", "--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]


def _write_storage(driver: str) -> None:
    folders = {"graphroot": CACHE / "storage", "runroot": CACHE / "run"}
    rows = [f'{name} = "{folder}"\n' for name, folder in folders.items()]
    _STORAGE.write_text("".join(["[storage]\n", f'driver = "{driver}"\n', *rows]))


def _run(*command: str, check: bool = True, seconds: float = RUN_SECONDS) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command,
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0 or not check, f"{command}\n{done.stdout}\n{done.stderr}"
    return done
