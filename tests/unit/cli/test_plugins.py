"""``ostiary plugins``: what is installed, without running any of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ostiary.cli import main
from ostiary.cli.plugins import TYPES
from ostiary.core import catalog

Captured = pytest.CaptureFixture[str]


def test_the_types_are_those_of_the_catalog() -> None:
    assert TYPES == catalog.TYPES


def test_every_provider_is_listed_with_its_package(capsys: Captured) -> None:
    assert main(["plugins"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["TYPE", "NAME", "PACKAGE", "VERSION", "TARGET"]
    assert ["authorization", "rbac", "ostiary"] in [line.split()[:3] for line in lines]


def test_one_type_can_be_asked_for_in_json(capsys: Captured) -> None:
    assert main(["plugins", "--type", "token_store", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["plugins"]
    assert {one["type"] for one in found} == {"token_store"}
    assert {"memory", "sqlite"} <= {one["name"] for one in found}


def test_a_name_that_two_packages_claim_is_told(tmp_path: Path) -> None:
    for name in ("acme", "evil"):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[ostiary.identity]\nldap = {name}:Ldap\n")
    done = subprocess.run(
        [sys.executable, "-m", "ostiary", "plugins", "--type", "identity"],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "acme" in done.stdout
    assert 'two packages declare an identity provider "ldap"' in done.stderr
