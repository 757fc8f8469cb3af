"""The vectors are all replayed, and every accepted difference has its reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import vectors

TESTS = Path(__file__).parents[1]


def test_every_file_of_vectors_is_replayed_by_a_test(subtests: pytest.Subtests) -> None:
    for path in sorted(vectors.VECTORS.glob("*.jsonl.gz")):
        with subtests.test(path.name):
            name = path.name.removesuffix(".jsonl.gz")
            users = [test for test in TESTS.rglob("test_*.py") if f'"{name}"' in test.read_text("utf-8")]
            assert users, f"no test names {name}"


def test_compressed_vectors_hold_neither_name_nor_time(subtests: pytest.Subtests) -> None:
    """So that the same content is the same file."""
    for path in sorted(vectors.VECTORS.glob("*.jsonl.gz")):
        with subtests.test(path.name):
            header = path.read_bytes()[:10]
            assert header[3] & 0x08 == 0
            assert header[4:8] == bytes(4)


def test_every_accepted_difference_has_a_reason_and_a_decision_record() -> None:
    decisions = {path.name[:4] for path in (TESTS.parent / "docs" / "decisions").glob("*.md")}
    for name, listed in json.loads(vectors.ACCEPTED.read_text("utf-8")).items():
        assert (vectors.VECTORS / f"{name}.jsonl.gz").exists(), name
        for line, entry in listed.items():
            assert entry.keys() == {"reason", "decision"}, (name, line)
            assert entry["decision"] in decisions, (name, line)
