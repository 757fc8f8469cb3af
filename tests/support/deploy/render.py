"""Renders ``deploy/kustomize`` with the real kubectl, and the chart with the real Helm, into objects."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.kubectl import find_kubectl
from tests.support.tiers import missing

ROOT = Path(__file__).parents[3]
KUSTOMIZE = ROOT / "deploy" / "kustomize"
CHART = ROOT / "deploy" / "helm" / "ostiary-gateway"

Object = dict[str, Any]


def render_kustomize(folder: Path, scratch: Path, *, kubectl: str | Path | None = None) -> list[Object]:
    """The objects of *folder*, which is below `KUSTOMIZE`."""
    program = kubectl or find_kubectl()
    if program is None:
        missing("kubectl")
    if not _knows_folders_as_resources(program):
        folder = _for_an_old_kubectl(folder, scratch)
    return objects(_output([program, "kustomize", folder]))


def objects(text: str) -> list[Object]:
    return [document for document in yaml.safe_load_all(text) if document]


def _output(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    # A warning is about something that a later version refuses.
    assert not done.stderr, done.stderr
    return done.stdout


def _knows_folders_as_resources(program: str | Path) -> bool:
    """Since 1.21. The kubectl of Debian 12 is older, and calls folders among the resources "bases"."""
    shown = _output([program, "version", "--client", "-o", "json"])
    minor = yaml.safe_load(shown)["clientVersion"]["minor"]
    return int("".join(filter(str.isdigit, minor))) >= 21


def _for_an_old_kubectl(folder: Path, scratch: Path) -> Path:
    copy = scratch / "kustomize"
    shutil.copytree(KUSTOMIZE, copy, dirs_exist_ok=True)
    for path in copy.rglob("kustomization.yaml"):
        kustomization = yaml.safe_load(path.read_text())
        resources = kustomization.pop("resources", [])
        kustomization["bases"] = [each for each in resources if (path.parent / each).is_dir()]
        kustomization["resources"] = [each for each in resources if (path.parent / each).is_file()]
        path.write_text(yaml.safe_dump(kustomization))
    return copy / folder.relative_to(KUSTOMIZE)


def render_chart(
    *, values: Mapping[str, str] = {}, files: Mapping[str, Path] = {}, value_files: Sequence[Path] = ()
) -> list[Object]:
    """The objects of the chart, for the release ``ostiary-gateway`` in the namespace ``ostiary``."""
    return objects(_output(helm_template(values=values, files=files, value_files=value_files)))


def helm_template(
    *, values: Mapping[str, str] = {}, files: Mapping[str, Path] = {}, value_files: Sequence[Path] = ()
) -> list[str | Path]:
    command: list[str | Path] = [helm(), "template", "ostiary-gateway", CHART, "--namespace", "ostiary"]
    for name, text in values.items():
        command += ["--set", f"{name}={text}"]
    for name, path in files.items():
        command += ["--set-file", f"{name}={path}"]
    for path in value_files:
        command += ["--values", path]
    return command


def helm() -> str:
    """Helm as PyPI has it, beside this Python, or the one of this machine."""
    beside = Path(sys.executable).with_name("helm")
    program = str(beside) if beside.exists() else shutil.which("helm")
    if program is None:
        missing("helm")
    return program
