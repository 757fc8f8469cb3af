"""Policy in files: when it is read again, and what stays in force when it cannot be."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem
from ostiary_gateway.providers.common.policy_files import PolicyFiles, PolicyText, invalid_policy
from ostiary_gateway.testing import FakeClock
from tests.support.descriptors import few_descriptors


def upper(texts: Sequence[PolicyText]) -> str:
    if any("bad" in text.text for text in texts):
        raise invalid_policy([Problem("it is bad", Place("f", line=1))])
    return "|".join(text.text for text in texts).upper()


def files(*paths: Path, clock: FakeClock) -> PolicyFiles[str]:
    return PolicyFiles(paths, ending=".policy", parse=upper, clock=clock)


def test_a_change_is_seen_after_a_second_and_not_before(tmp_path: Path, clock: FakeClock) -> None:
    """S44."""
    file = tmp_path / "a.policy"
    file.write_text("one")
    found = files(file, clock=clock)
    before = found.revision
    file.write_text("two")
    clock.advance(0.99)
    assert (found.current, found.revision) == ("ONE", before)
    clock.advance(0.01)
    assert (found.current, found.revision) == ("TWO", before + 1)


def test_a_change_that_looks_the_same_from_outside_is_seen_while_it_is_fresh(tmp_path: Path, clock: FakeClock) -> None:
    """The same size, and the same time to the nanosecond."""
    file = tmp_path / "a.policy"
    file.write_text("one")
    found = files(file, clock=clock)
    seen = file.stat()
    file.write_text("two")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    clock.advance(1)
    assert found.current == "TWO"


def test_a_file_written_anew_with_the_same_content_is_no_new_policy(tmp_path: Path, clock: FakeClock) -> None:
    file = tmp_path / "a.policy"
    file.write_text("one")
    found = files(file, clock=clock)
    file.unlink()
    file.write_text("one")
    clock.advance(1)
    assert found.revision == 1


def test_a_directory_stands_for_its_files(tmp_path: Path, clock: FakeClock) -> None:
    for name in ("b.policy", "a.policy", ".hidden.policy", "a.policy.swp", "readme"):
        (tmp_path / name).write_text(name[:1])
    found = files(tmp_path, clock=clock)
    assert found.current == "A|B"
    (tmp_path / "c.policy").write_text("c")
    clock.advance(1)
    assert found.current == "A|B|C"
    (tmp_path / "a.policy").unlink()
    clock.advance(1)
    assert found.current == "B|C"


def test_a_mounted_directory_that_is_exchanged_whole_is_seen(tmp_path: Path, clock: FakeClock) -> None:
    """As a ConfigMap is updated: the link is turned to another directory."""
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.policy").write_text(version)
    link = tmp_path / "current"
    link.symlink_to("v1")
    found = files(link, clock=clock)
    assert found.current == "V1"
    (tmp_path / "new").symlink_to("v2")
    (tmp_path / "new").rename(link)
    clock.advance(1)
    assert found.current == "V2"


@pytest.mark.parametrize("how", ["mistaken", "gone", "not text"])
def test_a_policy_that_cannot_be_read_leaves_the_old_one_in_force(
    how: str, tmp_path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a.policy"
    file.write_text("one")
    found = files(file, clock=clock)
    if how == "gone":
        file.unlink()
    else:
        file.write_bytes(b"bad" if how == "mistaken" else b"\xff")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            clock.advance(1)
            assert (found.current, found.revision) == ("ONE", 1)
    assert found.error is not None
    assert len(caplog.records) == 1
    assert "stays in force" in caplog.text
    file.write_text("two")
    clock.advance(1)
    assert (found.current, found.revision) == ("TWO", 2)
    assert not found.error


def test_a_changed_file_that_could_not_be_read_is_read_as_soon_as_it_can(tmp_path: Path, clock: FakeClock) -> None:
    file = tmp_path / "a.policy"
    long_ago = clock.now().timestamp() - 60
    file.write_text("one")
    os.utime(file, (long_ago, long_ago))
    policy = files(file, clock=clock)
    file.write_text("three")
    os.utime(file, (long_ago, long_ago))
    clock.advance(1)
    with few_descriptors():
        assert policy.current == "ONE"
    assert policy.error is not None
    # It looks as it did when it could not be read.
    clock.advance(1)
    assert policy.current == "THREE"
    assert policy.error is None


def test_a_mistake_that_was_undone_is_no_longer_told(tmp_path: Path, clock: FakeClock) -> None:
    file = tmp_path / "a.policy"
    file.write_text("one")
    policy = files(file, clock=clock)
    for text, is_wrong in (("bad", True), ("one", False)):
        file.write_text(text)
        clock.advance(1)
        assert policy.current == "ONE"
        assert bool(policy.error) is is_wrong


@pytest.mark.parametrize("name", ["absent.policy", "bad.policy", "a\0b"])
def test_the_first_reading_must_succeed(name: str, tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "bad.policy").write_text("bad")
    with pytest.raises(ConfigurationError):
        files(Path(f"{tmp_path}/{name}"), clock=clock)
