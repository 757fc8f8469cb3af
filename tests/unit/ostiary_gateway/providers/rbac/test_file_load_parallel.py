"""Many files that are not plain YAML are divided among processes; the result is the same."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ostiary_gateway.providers.rbac import file_load as parallel
from ostiary_gateway.providers.rbac.file_load import FileBytes, parse_files
from ostiary_gateway.providers.rbac.file_parse import parse_fully
from ostiary_gateway.wire.rbac import Manifests
from tests.unit.ostiary_gateway.providers.rbac.policies import HEADER

FLOW = (
    HEADER
    + "kind: RoleBinding\nmetadata: {{name: b{0}, namespace: ns}}\nroleRef: {{kind: Role, name: r}}\n"
    + "subjects: [{{kind: User, name: alice}}]\n"
)


def files(*, count: int, documents: int) -> list[FileBytes]:
    texts = ("---\n".join(FLOW.format(f"-{number}-{each}") for each in range(documents)) for number in range(count))
    plain = "---\n".join(f"{HEADER}kind: Role\nmetadata:\n  name: r{each}\n  namespace: ns\n" for each in range(3))
    wrong = HEADER + "kind: Roll\n"
    all_texts = [*texts, plain, wrong]
    return [FileBytes(f"f{number}.yaml", text.encode(), b"") for number, text in enumerate(all_texts)]


def with_places(parsed: list[Manifests]) -> list[object]:
    return [parsed, [binding.place for manifests in parsed for binding in manifests.bindings]]


@pytest.fixture
def always_parallel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every file is worth a process; the number of files that each one was given."""
    shares: list[int] = []
    parse_in_child = parallel._parse_in_child

    def counted(share: list[FileBytes]) -> list[Manifests]:
        shares.append(len(share))
        return parse_in_child(share)

    monkeypatch.setattr(parallel, "BYTES_PER_PROCESS", 1)
    monkeypatch.setattr(parallel, "_processors", lambda: 2)
    monkeypatch.setattr(parallel, "parse_quickly", lambda data, file: None)
    monkeypatch.setattr(parallel, "_parse_in_child", counted)
    return shares


def test_what_processes_parse_is_the_same_with_all_mistakes_and_places(always_parallel: list[int]) -> None:
    given = files(count=4, documents=3)
    parsed = parse_files(given)
    assert with_places(parsed) == with_places([parse_fully(each.data, each.file) for each in given])
    assert [bool(manifests.problems) for manifests in parsed] == [False] * 5 + [True]
    assert len(always_parallel) == 2
    assert sum(always_parallel) == len(given)


def test_without_processes_they_are_parsed_here(
    always_parallel: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given = files(count=2, documents=2)
    expected = [parse_fully(each.data, each.file) for each in given]
    monkeypatch.setattr(parallel, "_PARSE", "raise SystemExit(3)")
    with caplog.at_level(logging.WARNING, "ostiary.rbac"):
        assert parse_files(given) == expected
    assert "parsed without it" in caplog.text
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    assert parse_files(given) == expected


def test_what_else_a_process_prints_is_never_taken_for_a_policy(
    always_parallel: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """As an interpreter whose start somebody has changed does."""
    given = files(count=2, documents=2)
    (tmp_path / "sitecustomize.py").write_text("print('hello', flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with caplog.at_level(logging.WARNING, "ostiary.rbac"):
        assert parse_files(given) == [parse_fully(each.data, each.file) for each in given]
    assert "parsed without it" in caplog.text


def test_a_small_policy_needs_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "run", None)
    given = files(count=20, documents=10)
    assert sum(len(manifests.bindings) for manifests in parse_files(given)) == 200


def test_the_shares_are_about_equal() -> None:
    sizes = [10, 1, 1, 9, 8, 1]
    shares = parallel._divide(sizes, 2)
    assert sorted(number for share in shares for number in share) == list(range(6))
    assert sorted(sum(sizes[number] for number in share) for share in shares) == [13, 17]
