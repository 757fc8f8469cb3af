"""Which providers are off: who says so, how soon it counts, and what happens when it cannot be known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostiary.cli.registry import switch as switch_file
from ostiary.cli.registry.switch import disable_in_file, enable_in_file
from ostiary.core.provider_switches import ALL, LOOK_SECONDS, MACHINE_FILE, Switches, own_file, read_file, switch_files
from ostiary.errors import ConfigurationError
from ostiary.testing import FakeClock


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "conf" / "off")


def switches(*files: str, clock: FakeClock | None = None) -> Switches:
    return Switches(files, variable="", clock=clock or FakeClock())


def test_nothing_is_off_where_nobody_has_switched(file: str) -> None:
    assert switches(file).disabled("acme") is None


def test_one_provider_or_all_of_them(file: str) -> None:
    disable_in_file(file, "acme", reason="it\nfails  \x1b[31m often", clock=FakeClock())
    entry = switches(file).disabled("acme")
    assert entry is not None
    assert str(entry) == f"it is disabled by {file} since 2026-01-01T00:00:00Z: it fails U+001B[31m often"
    assert entry.remedy == "ostiary registry enable acme"
    assert switches(file).disabled("other") is None
    disable_in_file(file, ALL)
    everything = switches(file).disabled("other")
    assert everything is not None
    assert everything.remedy == "ostiary registry enable --all"
    assert enable_in_file(file, ALL)
    assert not os.path.exists(file)
    assert not enable_in_file(file, "acme")


def test_a_switch_counts_within_a_second_in_what_runs_already(file: str) -> None:
    assert LOOK_SECONDS < 1
    clock = FakeClock()
    running = switches(file, clock=clock)
    assert running.disabled("acme") is None
    disable_in_file(file, "acme")
    clock.advance(seconds=1)
    assert running.disabled("acme")
    enable_in_file(file, "acme")
    clock.advance(seconds=1)
    assert running.disabled("acme") is None


def test_everybody_can_read_the_machines_file_whatever_the_umask(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.path.dirname(MACHINE_FILE) != "/etc/ostiary", "that is closed to all but the gateway"
    monkeypatch.setattr(switch_file, "MACHINE_FILE", file)
    before = os.umask(0o077)
    try:
        disable_in_file(file, "acme")
    finally:
        os.umask(before)
    modes = [os.stat(path).st_mode & 0o777 for path in (os.path.dirname(file), file)]
    assert modes == [0o755, 0o644]


def test_it_keeps_since_when_unless_there_is_a_new_reason(file: str) -> None:
    clock = FakeClock()
    first = disable_in_file(file, "acme", clock=clock)
    clock.advance(hours=1)
    assert disable_in_file(file, "acme", clock=clock) == first
    assert disable_in_file(file, "acme", reason="still", clock=clock).since > first.since


def test_the_machines_file_and_ones_own_count_both(tmp_path: Path) -> None:
    machine, own = str(tmp_path / "machine"), str(tmp_path / "own")
    disable_in_file(machine, "acme")
    disable_in_file(own, "other")
    both = switches(machine, own)
    assert both.disabled("acme")
    assert both.disabled("other")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * 70_000], ids=["not text", "too large"])
def test_what_cannot_be_read_stops_everything(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "off"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as raised:
        switches(str(path)).disabled("acme")
    assert raised.value.code == "registry-switch-unusable"


def test_what_others_may_write_or_own_stops_everything(tmp_path: Path) -> None:
    path = tmp_path / "off"
    path.write_text("")
    path.chmod(0o664)
    with pytest.raises(ConfigurationError, match="others may write it"):
        switches(str(path)).current()
    path.chmod(0o644)
    assert switches(str(path)).current() == {}
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        with pytest.raises(ConfigurationError, match="belongs to user 65534"):
            read_file(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigurationError):
        switches(str(path)).current()


def test_a_link_to_nothing_and_a_fifo_stop_everything(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name, cause in (("link", "a link to nothing"), ("fifo", "not a regular file")):
        with pytest.raises(ConfigurationError, match=cause):
            read_file(str(tmp_path / name))


def test_after_an_error_the_next_look_is_at_once(tmp_path: Path) -> None:
    path = tmp_path / "off"
    path.mkdir()
    running = switches(str(path))
    with pytest.raises(ConfigurationError):
        running.current()
    path.rmdir()
    assert running.current() == {}


def test_the_variable(file: str) -> None:
    entry = Switches([file], variable="off").disabled("acme")
    assert entry is not None
    assert entry.remedy == "start it without $OSTIARY_REGISTRY_PROVIDERS"
    assert Switches([file], variable="on").disabled("acme") is None
    with pytest.raises(ConfigurationError, match="neither on nor off"):
        Switches([file], variable="0")


def test_whose_file_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OSTIARY_REGISTRY_SWITCHES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert (own_file(), switch_files()) == (MACHINE_FILE, (MACHINE_FILE,))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert switch_files() == (MACHINE_FILE, f"{tmp_path}/ostiary/registry-disabled")
