"""The real krew installs the plugin from the archive that `scripts/krew` writes, and kubectl finds it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.support.programs import KREW, program_of
from tests.support.kubectl import find_kubectl

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    subprocess.run([sys.executable, ROOT / "scripts/krew", folder], check=True, capture_output=True, timeout=100)
    return folder


def run(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words], env=environment, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.parametrize("manifest", [ROOT / "deploy/krew/ostiary.yaml", None], ids=["in the tree", "of the release"])
def test_the_manifest_is_valid_for_the_index(release: Path, manifest: Path | None) -> None:
    validate = program_of(KREW, "validate-krew-manifest")
    done = run(validate, "-manifest", manifest or release / "ostiary.yaml", "-skip-install", PATH=os.environ["PATH"])
    assert done.returncode == 0, done.stderr


def test_kubectl_runs_what_krew_has_installed(release: Path, tmp_path: Path) -> None:
    path = f"{tmp_path / 'krew/bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"PATH": path, "HOME": str(tmp_path), "KREW_ROOT": str(tmp_path / "krew")}
    krew = program_of(KREW, "krew")
    archive, manifest = f"--archive={release / 'ostiary-krew.tar.gz'}", f"--manifest={release / 'ostiary.yaml'}"
    done = run(krew, "install", manifest, archive, **environment)
    assert done.returncode == 0, done.stderr
    kubectl = find_kubectl()
    assert kubectl is not None
    assert run(kubectl, "ostiary", "--version", **environment).stdout.startswith("ostiary ")
    assert "usage: kubectl ostiary " in run(kubectl, "ostiary", "--help", **environment).stdout
    refused = run(kubectl, "ostiary", "get-token", "--server", "https://localhost:1", **environment)
    assert (refused.returncode, "sign-in-needed" in refused.stderr) == (1, True)


def test_what_lies_where_somebody_works_is_not_imported(release: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "xzf", release / "ostiary-krew.tar.gz", "-C", tmp_path], check=True, timeout=100)
    (tmp_path / "work").mkdir()
    for name in ("os", "ostiary", "yaml", "json"):
        (tmp_path / "work" / f"{name}.py").write_text("raise SystemExit('not ours')")
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run(
        [tmp_path / "kubectl-ostiary", "exec", "explain", "--help"],
        cwd=tmp_path / "work",
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, "not ours" in done.stdout + done.stderr) == (0, False)
