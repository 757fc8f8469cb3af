"""The registry door from an installed wheel: nothing of it needs a clone, and no environment is activated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wheel import ROOT, SECONDS, build, install_with_extras

IMAGE = "a.registry.example.com/app"
CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: ostiary-demo-credential-provider
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["*.registry.example.com"]
  defaultCacheDuration: 10m
  env: [{name: DEMO_USER, value: robot}]
"""
# What a shell has that knows nothing of the environment.
BARE = {"PATH": os.defpath, "HOME": "/nonexistent"}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    return install_with_extras(folder / "venv", build(folder))


def run(*command: Path | str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, env=BARE, capture_output=True, text=True, timeout=SECONDS)


def test_the_demo_provider_can_be_looked_up_linted_and_checked(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "providers.yaml").write_text(CONFIG)
    options = ("--config", "providers.yaml", "--bin-dir", programs)
    found = run(programs / "ostiary", "registry", "get", *options, IMAGE, folder=tmp_path)
    assert (found.returncode, "robot" in found.stdout) == (0, True), found.stderr
    linted = run(programs / "ostiary", "registry", "lint", *options, folder=tmp_path)
    assert linted.returncode == 0, linted.stdout
    provider = programs / "ostiary-demo-credential-provider"
    checked = run(programs / "ostiary", "registry", "check", "--image", IMAGE, provider, folder=tmp_path)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("cloud", ["ecr", "google", "azure"])
def test_the_providers_of_the_clouds_tell_what_they_are(programs: Path, tmp_path: Path, cloud: str) -> None:
    done = run(programs / f"ostiary-{cloud}-credential-provider", "--help", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: ostiary-{cloud}-credential-provider" in done.stdout


def test_the_example_of_the_clone_runs_without_its_environment(tmp_path: Path) -> None:
    example = ROOT / "examples" / "image_credentials"
    options = ("--config", example / "providers.yaml", "--bin-dir", example / "bin")
    done = run(sys.executable, "-m", "ostiary", "registry", "get", *options, IMAGE, folder=tmp_path)
    assert (done.returncode, "robot" in done.stdout) == (0, True), done.stderr
