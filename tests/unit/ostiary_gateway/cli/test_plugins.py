"""``ostiary-gateway plugins``: what is installed, without running any of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ostiary_gateway import catalog
from ostiary_gateway.cli import main
from ostiary_gateway.cli.plugins import TYPES

FOREIGN = """
print("never loaded in serve")

class Foreign:
    @classmethod
    def from_config(cls, fields, context): ...
    async def handle_client(self, request): ...
    async def handle_provider(self, request): ...
    async def revalidates(self, user): ...
"""
Captured = pytest.CaptureFixture[str]


def test_the_types_are_those_of_the_catalog() -> None:
    assert TYPES == catalog.TYPES


def test_every_provider_is_listed_with_its_package(capsys: Captured) -> None:
    assert main(["plugins"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["TYPE", "NAME", "PACKAGE", "VERSION", "TARGET"]
    assert ["authorization", "rbac", "ostiary-gateway"] in [line.split()[:3] for line in lines]


def test_one_type_can_be_asked_for_in_json(capsys: Captured) -> None:
    assert main(["plugins", "--type", "token_store", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["plugins"]
    assert {one["type"] for one in found} == {"token_store"}
    assert {"memory", "sqlite"} <= {one["name"] for one in found}


def test_the_list_loads_no_provider(tmp_path: Path) -> None:
    assert "never loaded" not in _plugins_beside_a_foreign_one(tmp_path, "text").stdout


@pytest.mark.parametrize("output", ["wide", "json"])
def test_abilities_and_traits_are_shown_on_request(output: str, capsys: Captured) -> None:
    assert main(["plugins", "--type", "token_store", "-o", output]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("put_record", "shared_between_processes", "survives_restart"))


def test_json_tells_every_declared_trait(capsys: Captured) -> None:
    assert main(["plugins", "--type", "token_store", "-o", "json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["plugins"]}
    assert found["sqlite"]["traits"] == {"shared_between_processes": True, "survives_restart": True}
    assert found["memory"]["traits"] == {"shared_between_processes": False, "survives_restart": False}
    moving = ["export_log", "export_sessions", "import_log", "import_sessions", "examine", "others_using"]
    objects = ["put_object", "find_object", "list_objects", "delete_object", "object_kinds"]
    records = ["put_record", "find_record", "take_record"]
    listing = ["sessions_from", "page_sessions", "count_objects"]
    assert found["sqlite"]["abilities"] == [*records, "path", *objects, *moving, *listing]
    assert found["sqlite"]["problems"] == []


def test_audit_providers_are_listed_with_what_they_can_do(capsys: Captured) -> None:
    """S70: the bundled ones are declared as those of other packages are."""
    assert main(["plugins", "--type", "audit", "-o", "json"]) == 0
    listed = {one["name"]: one for one in json.loads(capsys.readouterr().out)["plugins"]}
    assert listed.keys() >= {"file", "stdout", "webhook"}
    assert listed["file"]["abilities"] == ["begin", "accept", "flush", "dropped", "events_file", "close"]
    assert "accept" not in listed["webhook"]["abilities"]
    assert [(one["name"], one["problems"]) for one in listed.values() if one["problems"]] == []


def test_a_provider_with_flaws_is_told_with_them(tmp_path: Path) -> None:
    done = _plugins_beside_a_foreign_one(tmp_path, "wide")
    assert done.returncode == 0
    assert 'identity "foreign": Foreign.revalidates is not an ability of the gateway\'s providers' in done.stderr
    assert 'identity "missing": the identity provider "missing" cannot be loaded' in done.stderr


def _plugins_beside_a_foreign_one(site: Path, output: str) -> subprocess.CompletedProcess[str]:
    folder = site / "foreign-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    points = "[ostiary.identity]\nforeign = foreign:Foreign\nmissing = nowhere:Missing\n"
    (folder / "entry_points.txt").write_text(points)
    (site / "foreign.py").write_text(FOREIGN)
    return subprocess.run(
        [sys.executable, "-m", "ostiary_gateway", "plugins", "--type", "identity", "-o", output],
        env={"PYTHONPATH": str(site), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_name_that_two_packages_claim_is_told(tmp_path: Path) -> None:
    for name in ("acme", "evil"):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[ostiary.identity]\nldap = {name}:Ldap\n")
    done = subprocess.run(
        [sys.executable, "-m", "ostiary_gateway", "plugins", "--type", "identity"],
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1
    assert "acme" in done.stdout
    assert 'two packages declare an identity provider "ldap"' in done.stderr
