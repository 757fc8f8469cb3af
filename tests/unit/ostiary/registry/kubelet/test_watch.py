"""A changed configuration comes into force whole, or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ostiary.registry.keyring import Keyring
from ostiary.registry.kubelet.config import load
from ostiary.registry.kubelet.watch import Watch, WhenMissing
from ostiary_gateway.testing import FakeClock
from tests.support.providers import ProviderScript

CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
"""
PROVIDER = """\
- name: {name}
  apiVersion: credentialprovider.kubelet.k8s.io/v1
  matchImages: ["*.registry.io"]
  defaultCacheDuration: {duration}
"""


def config(*names: str, duration: str = "1h") -> str:
    return CONFIG + "".join(PROVIDER.format(name=name, duration=duration) for name in names)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        ProviderScript(tmp_path / "bin", name).answer({"*.registry.io": (name, "x")})
    path = tmp_path / "config.yaml"
    path.write_text(config("one"))
    return path


@pytest.fixture
def keyring(file: Path, tmp_path: Path) -> Keyring:
    return Keyring(load(file), bin_dir=tmp_path / "bin")


def names(keyring: Keyring) -> list[str]:
    return [found.username for found in keyring.lookup("a.registry.io/x")]


def test_an_unchanged_file_changes_nothing(file: Path, keyring: Keyring) -> None:
    watch = Watch(file, keyring)
    before = keyring.config
    assert not watch.check_now()
    assert keyring.config is before
    assert watch.hash == before.hash


def test_a_changed_file_comes_into_force_and_unchanged_providers_keep_their_cache(file: Path, keyring: Keyring) -> None:
    """I6."""
    watch = Watch(file, keyring)
    assert names(keyring) == ["one"]
    file.write_text(config("two", "one"))
    assert watch.check_now()
    assert [(found.username, found.cached) for found in keyring.lookup("a.registry.io/x")] == [
        ("two", False),
        ("one", True),
    ]
    assert watch.hash == load(file).hash


@pytest.mark.parametrize("broken", ["providers: [", CONFIG, config("one") + "  unknown: 1\n", ""])
def test_a_broken_file_leaves_the_old_one_in_force(
    file: Path, keyring: Keyring, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    watch, before = Watch(file, keyring), keyring.config
    file.write_text(broken)
    for _ in range(3):
        assert not watch.check_now()
    assert keyring.config is before
    assert watch.last_error is not None
    assert len(caplog.records) == 1, "said once, and not at every look"
    file.write_text(config("two"))
    assert watch.check_now()
    assert watch.last_error is None


def test_a_file_that_is_gone_leaves_the_old_one_in_force(file: Path, keyring: Keyring) -> None:
    watch = Watch(file, keyring)
    file.unlink()
    assert not watch.check_now()
    assert watch.last_error is not None
    assert names(keyring) == ["one"]


@pytest.mark.parametrize("text", [CONFIG.strip() + " []\n", CONFIG + "  []\n"])
def test_an_empty_list_that_is_written_out_switches_the_providers_off(
    file: Path, keyring: Keyring, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """I6."""
    watch = Watch(file, keyring)
    file.write_text(text)
    assert watch.check_now()
    assert watch.last_error is None
    assert names(keyring) == []
    assert keyring.providers == ()
    assert "switched off" in caplog.text
    assert not watch.check_now()
    file.write_text(config("two"))
    assert watch.check_now()
    assert names(keyring) == ["two"]


def test_an_empty_list_disables_only_if_no_file_of_the_directory_has_a_provider(tmp_path: Path, file: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "1.yaml").write_text(config("one"))
    keyring = Keyring(load(folder), bin_dir=tmp_path / "bin")
    watch = Watch(folder, keyring)
    (folder / "2.yaml").write_text(CONFIG.strip() + " []\n")
    assert watch.check_now()
    assert names(keyring) == ["one"]
    (folder / "1.yaml").write_text(CONFIG)
    assert not watch.check_now(), "an absent list is not an empty one"
    assert names(keyring) == ["one"]
    (folder / "1.yaml").unlink()
    assert watch.check_now()
    assert names(keyring) == []


@pytest.mark.parametrize("when", WhenMissing)
@pytest.mark.parametrize("where", ["file", "directory"])
def test_what_a_removed_file_means_is_a_setting_and_it_is_told(
    file: Path, keyring: Keyring, when: WhenMissing, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = file.parent / "conf.d"
    folder.mkdir()
    removed = file if where == "file" else folder / "1.yaml"
    removed.write_text(config("one"))
    watch = Watch(file if where == "file" else folder, keyring, when_missing=when)
    watch.check_now()
    removed.unlink()
    assert watch.check_now() is (when is WhenMissing.DISABLE)
    assert not watch.check_now()
    assert watch.last_error is not None
    assert [record.levelname for record in caplog.records].count("ERROR") == 1, "said once, and not at every look"
    assert names(keyring) == ([] if when is WhenMissing.DISABLE else ["one"])
    removed.write_text(config("two"))
    assert watch.check_now()
    assert names(keyring) == ["two"]


def test_a_broken_file_is_not_a_missing_one(file: Path, keyring: Keyring) -> None:
    watch = Watch(file, keyring, when_missing=WhenMissing.DISABLE)
    file.write_text("providers: [")
    assert not watch.check_now()
    assert names(keyring) == ["one"]


def test_what_was_wrong_outside_of_the_file_is_tried_again(file: Path, keyring: Keyring, tmp_path: Path) -> None:
    watch = Watch(file, keyring, reload=lambda path: load(path, bin_dir=tmp_path / "bin"))
    file.write_text(config("late"))
    # Long ago, so that it is not read again for being new.
    os.utime(file, (1, 1))
    assert not watch.check_now()
    ProviderScript(tmp_path / "bin", "late").answer({"*.registry.io": ("late", "x")})
    assert watch.check_now()
    assert names(keyring) == ["late"]


def test_a_file_that_has_settled_is_not_read_again_and_again(file: Path, keyring: Keyring, clock: FakeClock) -> None:
    reads: list[str] = []

    def reading(path: str) -> object:
        reads.append(path)
        return load(path)

    watch = Watch(file, keyring, reload=reading, clock=clock)  # type: ignore[arg-type]
    now = clock.now().timestamp()
    for age, expected in ((1, [1, 2]), (3, [3, 3])):
        # Just written, it may be written again without looking different, so it is read again.
        os.utime(file, (now - age, now - age))
        for reads_so_far in expected:
            watch.check_now()
            assert len(reads) == reads_so_far
    # Another file of the same size and the same age is another file.
    twin = file.with_suffix(".new")
    twin.write_text(file.read_text().replace("one", "two"))
    os.utime(twin, (now - 3, now - 3))
    twin.rename(file)
    assert watch.check_now()


def test_a_directory_is_watched_for_files_that_come_and_go(tmp_path: Path, file: Path) -> None:
    folder = tmp_path / "conf.d"
    folder.mkdir()
    (folder / "1.yaml").write_text(config("one"))
    keyring = Keyring(load(folder), bin_dir=tmp_path / "bin")
    watch = Watch(folder, keyring)
    assert not watch.check_now()
    (folder / "2.yml").write_text(config("two"))
    assert watch.check_now()
    assert names(keyring) == ["one", "two"]
    (folder / "notes.txt").write_text("not one of them")
    assert not watch.check_now()
    (folder / "1.yaml").unlink()
    assert watch.check_now()
    assert names(keyring) == ["two"]


def test_links_whose_target_is_exchanged_are_seen(tmp_path: Path, file: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(config(name))
    (tmp_path / "data").symlink_to("one")
    (tmp_path / "link.yaml").symlink_to("data/config.yaml")
    keyring = Keyring(load(tmp_path / "link.yaml"), bin_dir=tmp_path / "bin")
    watch = Watch(tmp_path / "link.yaml", keyring)
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(tmp_path / "data")
    assert watch.check_now()
    assert names(keyring) == ["two"]


def test_the_thread_looks_at_every_turn_until_it_is_closed(file: Path, keyring: Keyring) -> None:
    turns, looked = threading.Semaphore(0), threading.Semaphore(0)
    closing = threading.Event()

    def pause(seconds: float) -> bool:
        assert seconds == 5
        looked.release()
        turns.acquire()
        return closing.is_set()

    watch = Watch(file, keyring)
    watch.start(every=5, pause=pause)
    watch.start(every=5, pause=pause)
    looked.acquire()
    file.write_text(config("two"))
    turns.release()
    looked.acquire()
    assert names(keyring) == ["two"]
    closing.set()
    turns.release()
    watch.close()
    watch.close()


def test_closing_wakes_a_thread_that_waits(file: Path, keyring: Keyring) -> None:
    watch = Watch(file, keyring)
    watch.start(every=100_000)
    watch.close()
