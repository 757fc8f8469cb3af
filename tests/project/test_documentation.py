"""What can be met by a user is documented: error codes, metrics, links that lead somewhere."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ostiary.cli import COMMANDS as CLIENT_COMMANDS
from ostiary.cli.completion import levels, whole_parser
from ostiary.errors import CODES
from ostiary.model import Secret
from ostiary.wire.client_authentication import (
    V1,
    ClusterInfo,
    ExecAnswer,
    ExecCredentialSpec,
    encode_answer,
    encode_info,
)
from ostiary_gateway.cli import COMMANDS as GATEWAY_COMMANDS
from ostiary_gateway.observability.metrics import NAMESPACE, Metrics

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = {"ostiary": CLIENT_COMMANDS, "ostiary-gateway": GATEWAY_COMMANDS}


def test_every_error_code_has_its_paragraph_and_no_other_has() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    assert set(re.findall(r"^### (\S+)$", page, re.MULTILINE)) == set(CODES)


def test_every_metric_of_the_gateway_is_documented_with_its_labels_and_no_other_is() -> None:
    page = (ROOT / "docs/how-to/audit-and-metrics.md").read_text()
    table = page.partition(f"| `{NAMESPACE}...` | labels |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[2:]]
    documented = {
        NAMESPACE + name: re.findall(r"`(\w+)`", labels)
        for names, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    assert documented == {name: family["labels"] for name, family in Metrics().snapshot().items()}


def test_the_reference_of_the_exec_protocol_names_every_field() -> None:
    """E70."""
    page = (ROOT / "docs/reference/exec-plugin-protocol.md").read_text()
    cluster = ClusterInfo("https://c", "name", True, b"pem", "http://proxy", True, {"a": 1})
    told = json.loads(encode_info(ExecCredentialSpec(V1, True, cluster)))["spec"]
    expiry = datetime(2030, 1, 1, tzinfo=UTC)
    # A key is given, or it is said where it is.
    answers = (
        ExecAnswer(Secret("t"), "certificate", Secret("key"), expiry),
        ExecAnswer(None, "certificate", None, expiry, "pkcs11:object=key"),
    )
    status = {name for each in answers for name in json.loads(encode_answer(each, api_version=V1))["status"]}
    assert len(status) == len(fields(ExecAnswer))
    for name in (*told, *told["cluster"], *status):
        assert re.search(rf"\b{re.escape(name)}\b", page), name


def test_pages_that_the_design_documents_ask_for_are_there_and_can_be_found() -> None:
    """E71, I37."""
    readme = (ROOT / "README.md").read_text()
    asked_for = {
        "docs/how-to/best-practices-for-credentials.md": ["Do not change the kubeconfig"],
        "docs/how-to/roll-back-credential-providers.md": ["## Upgrade", "## Downgrade", "## Versions that differ"],
    }
    for name, texts in asked_for.items():
        assert name in readme
        for text in texts:
            assert text in (ROOT / name).read_text()


def test_links_lead_somewhere() -> None:
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)#]+)", page.read_text())]
    inside = [(page, target) for page, target in links if not target.startswith("http")]
    broken = [f"{page}: {target}" for page, target in inside if not (page.parent / target).exists()]
    assert not broken, "\n".join(broken)


def test_the_tables_of_settings_are_what_the_declarations_say() -> None:
    script = runpy.run_path(str(ROOT / "scripts/reference"))
    for name, file in script["PAGES"].items():
        page = (ROOT / "docs/reference" / name).read_text()
        assert script["written"](page, file) == page, f"{name} is stale: run make reference"


def test_decisions_are_numbered_without_gaps() -> None:
    names = sorted(path.name for path in (ROOT / "docs/decisions").glob("*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))


def test_a_change_file_says_which_kind_of_change_it_is() -> None:
    kinds = {"security", "removed", "deprecated", "added", "changed", "fixed"}
    for path in (ROOT / "changelog.d").glob("*.md"):
        assert path.suffixes[0].removeprefix(".") in kinds, path.name


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_and_every_option_is_in_the_reference(program: str) -> None:
    page = (ROOT / "docs/reference/commands.md").read_text()
    for level in levels(whole_parser(program, PROGRAMS[program])):
        if level.path:
            assert f"{program} {' '.join(level.path)}" in page, level.path
        for option in level.options:
            assert (
                any(name in page for name in option.names if name not in ("-h", "--help")) or "--help" in option.names
            )


@pytest.mark.parametrize("program", PROGRAMS)
def test_pages_name_the_program_that_has_the_command(program: str) -> None:
    others = {name for commands in PROGRAMS.values() for name in commands} - set(PROGRAMS[program])
    # Also with the path before it, as in a kubeconfig, and as a list in YAML. What is released is told as it was.
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"] + sorted((ROOT / "changelog.d").glob("*.md"))
    typed = re.compile(rf"(?<![\w.-]){program}(?:,? )({'|'.join(sorted(others, key=len, reverse=True))})(?![\w-])")
    wrong = [f"{page.relative_to(ROOT)}: {found[0]}" for page in pages for found in typed.finditer(page.read_text())]
    assert wrong == []


def test_every_extra_is_in_the_reference_of_its_package() -> None:
    page = (ROOT / "docs/reference/commands.md").read_text()
    for package in PROGRAMS:
        table = page.partition(f"| extras of `{package}` |")[2].partition("\n\n")[0]
        rows = [line.split("|")[1] for line in table.splitlines()[2:]]
        project = tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]
        assert set(re.findall(r"`([\w-]+)`", "".join(rows))) == set(project["optional-dependencies"]), package
