"""Files that change: what is in force is what they say, or what they said before somebody made a mistake."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ostiary_gateway.providers.rbac import file_load as load
from ostiary_gateway.providers.rbac import policy as policy_module
from ostiary_gateway.providers.rbac.file_follow import FollowedFiles
from ostiary_gateway.providers.rbac.file_load import FileBytes, parse_files
from ostiary_gateway.providers.rbac.index import ObjectKey
from ostiary_gateway.wire.rbac import Binding, Manifests
from tests.unit.ostiary_gateway.providers.rbac.followed import BINDING, follow, in_force, write


def binding_of(files: FollowedFiles, name: str) -> Binding:
    binding = files.policy.get(ObjectKey("ClusterRoleBinding", "", name))
    assert isinstance(binding, Binding)
    return binding


def test_only_files_that_changed_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.yaml", a="alice")
    write(tmp_path / "b.yaml", b="bob")
    files = follow(tmp_path)
    parsed: list[str] = []

    def counted(given: list[FileBytes]) -> list[Manifests]:
        parsed.extend(Path(each.file).name for each in given)
        return parse_files(given)

    monkeypatch.setattr(load, "parse_files", counted)
    write(tmp_path / "b.yaml", b="bert")
    assert files.check_now()
    assert parsed == ["b.yaml"]
    # Written again with the same bytes: its digest is known.
    (tmp_path / "a.yaml").write_bytes((tmp_path / "a.yaml").read_bytes())
    assert not files.check_now()
    assert parsed == ["b.yaml"]
    assert in_force(files) == {"a": "alice", "b": "bert"}


def test_of_a_changed_file_only_what_changed_is_exchanged(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", a="alice", b="bob", c="carol")
    files = follow(tmp_path)
    before = binding_of(files, "a"), binding_of(files, "c")
    write(tmp_path / "a.yaml", a="alice", b="bert", c="carol")
    assert files.check_now()
    assert binding_of(files, "a") is before[0]
    assert binding_of(files, "c") is before[1]
    write(tmp_path / "a.yaml", b="bert", c="carol")
    assert files.check_now()
    assert in_force(files) == {"b": "bert", "c": "carol"}
    # It stands elsewhere now, and that is what an operator must be told.
    assert binding_of(files, "c").place.line == 12


def test_an_object_in_two_files_leaves_the_old_policy_in_force_until_it_is_mended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "a.yaml", a="alice")
    files = follow(tmp_path)
    write(tmp_path / "b.yaml", a="mallory", b="bob")
    assert not files.check_now()
    assert [problem.place.file for problem in files.problems] == [str(tmp_path / "b.yaml")]
    assert "stands here a second time" in caplog.text
    assert in_force(files) == {"a": "alice"}
    # The first one goes, so that the second is the only one: an object has moved.
    write(tmp_path / "a.yaml", c="carol")
    assert files.check_now()
    assert not files.problems
    assert in_force(files) == {"a": "mallory", "b": "bob", "c": "carol"}


def test_an_object_twice_in_one_file_is_a_mistake(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", a="alice")
    files = follow(tmp_path)
    (tmp_path / "a.yaml").write_text("---\n".join((BINDING.format("a", "alice"), BINDING.format("a", "bob"))))
    assert not files.check_now()
    assert len(files.problems) == 1
    write(tmp_path / "a.yaml", a="alice")
    assert not files.check_now()
    assert not files.problems


def test_a_policy_that_grows_too_large_leaves_the_old_one_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(policy_module, "MAX_OBJECTS", 2)
    write(tmp_path / "a.yaml", a="alice")
    files = follow(tmp_path)
    write(tmp_path / "b.yaml", b="bob", c="carol")
    with caplog.at_level(logging.ERROR, "ostiary.rbac"):
        assert not files.check_now()
    assert "more than 2 objects" in caplog.text
    assert [problem.message for problem in files.problems] == ["the RBAC policy holds more than 2 objects"]
    assert in_force(files) == {"a": "alice"}
    write(tmp_path / "b.yaml", b="bob")
    assert files.check_now()
    assert in_force(files) == {"a": "alice", "b": "bob"}
