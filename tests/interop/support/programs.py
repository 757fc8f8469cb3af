"""The programs that ``make interop`` built, by version."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "interop-build"
ETCD, SPIRE, DEX, KEYCLOAK = "etcd", "spire", "dex", "keycloak"
KUBELOGIN, AWS_IAM_AUTHENTICATOR, KREW, WINDOWS = "kubelogin", "aws-iam-authenticator", "krew", "windows"
# Without these, only their own tests cannot run.
OTHERS = frozenset((SPIRE, DEX, KEYCLOAK, KUBELOGIN, AWS_IAM_AUTHENTICATOR, KREW, WINDOWS))


@dataclass(frozen=True)
class Kubernetes:
    """One minor version: kubectl always; the servers of the newest one, and of all with ``KUBERNETES=all``."""

    minor: str
    programs: tuple[tuple[str, Path], ...]

    def __str__(self) -> str:
        return self.minor

    @property
    def number(self) -> int:
        """36 for 1.36."""
        return int(self.minor.partition(".")[2])

    @property
    def has_servers(self) -> bool:
        return any(name == "kube-apiserver" for name, _ in self.programs)

    @property
    def has_constrained_impersonation(self) -> bool:
        """On by default since 1.36."""
        return self.number >= 36

    def program(self, name: str) -> Path:
        return dict(self.programs)[name]


@cache
def listed() -> dict[str, dict[str, Path]]:
    """Every program that the interop tests use: module -> program -> path, whether it is built or not."""
    shown = subprocess.run([SCRIPT, "--list"], capture_output=True, text=True, check=True, timeout=60).stdout
    modules: dict[str, dict[str, Path]] = {}
    for line in shown.splitlines():
        place, folder = line.split(" ", 1)
        module, program = place.split("/")
        modules.setdefault(module, {})[program] = Path(folder) / program
    return modules


@cache
def versions() -> tuple[Kubernetes, ...]:
    """Newest first."""
    found = [
        Kubernetes(module.removeprefix("kubernetes-"), tuple(programs.items()))
        for module, programs in listed().items()
        if module.startswith("kubernetes-")
    ]
    return tuple(sorted(found, key=lambda version: -version.number))


def etcd() -> Path:
    return listed()[ETCD]["etcd"]


def dex() -> Path:
    return listed()[DEX]["dex"]


def spire(program: str) -> Path:
    return listed()[SPIRE][program]


def program_of(module: str, name: str) -> Path:
    """A program of *module*; skips the test, and says why, where this machine has none."""
    program = listed()[module][name]
    if not program.exists():
        pytest.skip(reason_not_built(module))
    return program


def reason_not_built(module: str) -> str:
    """Why ``scripts/interop-build`` could not make *module*, which only some tests need."""
    (folder,) = {path.parent for path in listed()[ETCD].values()}
    reason = folder.parent / "not-built" / module
    return reason.read_text().strip() if reason.exists() else f"{module} is not built: `make interop` builds it"


def not_built(wanted: Callable[[str], bool]) -> list[str]:
    """What has to be built first of the modules that are *wanted*, as in ``kubernetes-1.36/kubectl``."""
    return [
        f"{module}/{program}"
        for module, programs in listed().items()
        if wanted(module)
        for program, path in programs.items()
        if not path.exists()
    ]
