"""The quick way of ``get-token``, in its parts; that it imports nothing is tried with real processes in tests/e2e."""

from __future__ import annotations

import os
import posix
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.cli import cached_token
from ostiary.cli.cached_token import (
    BELIEVED_SECONDS,
    LARGEST_LIST,
    asks_again,
    believe,
    file_content,
    file_name,
    is_private,
    private_content,
    state_folder,
    usable_answer,
)

ANSWER, OLD = b'{"v":1}\n', b'{"v":"beta"}\n'


def content(obtained: int = 1000, renew_at: int = 2000) -> bytes:
    return file_content(obtained=obtained, renew_at=renew_at, v1=ANSWER, v1beta1=OLD)


def test_each_version_has_its_own_bytes() -> None:
    assert usable_answer(content(), b"v1", 1500) == ANSWER
    assert usable_answer(content(), b"v1beta1", 1500) == OLD
    assert usable_answer(content(), b"v1alpha1", 1500) is None


def test_it_is_good_from_when_it_was_had_until_it_should_be_renewed(subtests: pytest.Subtests) -> None:
    """A clock that was set back does not make an old one good; one that was corrected by a little does no harm."""
    for now, usable in [(939.9, False), (940, True), (1000, True), (1999.9, True), (2000, False), (9e9, False)]:
        with subtests.test(now=now, usable=usable):
            assert (usable_answer(content(), b"v1", now) == ANSWER) == usable


@settings(max_examples=200)
@given(data=st.binary(max_size=80), version=st.sampled_from([b"v1", b"v1beta1", b""]))
def test_nothing_is_made_of_what_is_no_such_file(data: bytes, version: bytes) -> None:
    assert usable_answer(data, version, 1500) is None


@settings(max_examples=100)
@given(cut=st.integers(0, len(content()) - 1))
def test_half_a_file_is_no_answer(cut: int) -> None:
    assert usable_answer(content()[:cut], b"v1", 1500) is None


@pytest.mark.parametrize(("mode", "is_read"), [(0o600, True), (0o400, True), (0o640, False), (0o604, False)])
def test_only_a_file_that_nobody_else_can_read_is_read(tmp_path: Path, mode: int, is_read: bool) -> None:
    file = tmp_path / "kept"
    file.write_bytes(ANSWER)
    file.chmod(mode)
    assert private_content(str(file)) == (ANSWER if is_read else None)


@pytest.mark.parametrize("how", ["a link", "a folder", "a pipe", "nothing"])
def test_what_is_no_file_is_not_read(tmp_path: Path, how: str) -> None:
    path, other = tmp_path / "kept", tmp_path / "other"
    other.write_bytes(ANSWER)
    other.chmod(0o600)
    if how == "a link":
        path.symlink_to(other)
    elif how == "a folder":
        path.mkdir(0o700)
    elif how == "a pipe":
        os.mkfifo(path, 0o600)
    assert private_content(str(path)) is None


def test_a_file_of_another_user_is_not_private(tmp_path: Path) -> None:
    file = tmp_path / "kept"
    file.touch(0o600)
    status = file.stat()
    for uid, private in ((status.st_uid, True), (status.st_uid + 1, False)):
        assert is_private(os.stat_result((*status[:4], uid, *status[5:]))) is private


@settings(max_examples=300)
@given(st.tuples(st.text(max_size=12), st.text(max_size=12)), st.tuples(st.text(max_size=12), st.text(max_size=12)))
def test_two_accounts_never_share_a_file_even_where_case_is_ignored(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    names = [file_name(*pair) for pair in (first, second)]
    same = [(server.rstrip("/"), account) for server, account in (first, second)]
    assert None not in names
    assert (str(names[0]).lower() == str(names[1]).lower()) == (same[0] == same[1])
    assert all(name is not None and "/" not in name and name.isascii() and name.isprintable() for name in names)


def test_a_name_that_no_file_can_have_is_not_made() -> None:
    assert file_name("https://" + "a" * 300, "default") is None


def test_the_folder_is_the_account_s_own(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[bytes, bytes], str | None]] = [
        ({b"HOME": b"/home/ann"}, "/home/ann/.local/state/ostiary-"),
        ({b"HOME": b"/home/ann", b"XDG_STATE_HOME": b"/var/state"}, "/var/state/ostiary-"),
        ({b"HOME": b"/home/ann", b"XDG_STATE_HOME": b"relative"}, "/home/ann/.local/state/ostiary-"),
        ({b"HOME": b"relative"}, None),
        ({}, None),
        ({b"HOME": b"/home/\xff"}, None),
    ]
    for environ, folder in cases:
        with subtests.test(environ=environ, folder=folder):
            found = state_folder(environ)
            assert found == (None if folder is None else f"{folder}{os.geteuid()}")


LIBRARY = "/Users/ann/Library/Application Support/ostiary-"


def test_each_system_has_its_place_for_it(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[bytes, bytes], str, str | None]] = [
        ({b"HOME": b"/Users/ann"}, "darwin", f"{LIBRARY}{os.geteuid()}"),
        ({b"HOME": b"/Users/ann", b"XDG_STATE_HOME": b"/state"}, "darwin", f"/state/ostiary-{os.geteuid()}"),
        ({b"LOCALAPPDATA": rb"C:\Users\ann\AppData\Local"}, "win32", r"C:\Users\ann\AppData\Local/ostiary"),
        ({b"LOCALAPPDATA": rb"\\files\ann\Local"}, "win32", r"\\files\ann\Local/ostiary"),
        ({b"LOCALAPPDATA": b"relative"}, "win32", None),
        ({b"LOCALAPPDATA": b"C:relative"}, "win32", None),
        ({b"HOME": b"/home/ann", b"XDG_STATE_HOME": b"/state"}, "win32", None),
        ({b"LOCALAPPDATA": b"C:\\\xff"}, "win32", None),
    ]
    for environ, platform, folder in cases:
        with subtests.test(environ=environ, platform=platform, folder=folder):
            assert state_folder(environ, platform) == folder


def test_options_that_are_not_understood_at_once_are_left_to_the_slow_way(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], dict[str, str] | None]] = [
        (["--server", "https://g"], {"--server": "https://g"}),
        (["--server=https://g", "--device"], {"--server": "https://g"}),
        (["--account", "a", "--server", "https://g"], {"--server": "https://g", "--account": "a"}),
        (["--server"], None),
        (["--server", ""], None),
        (["--server", "https://g", "--account", ""], None),
        (["--server", "https://g", "--help"], None),
        (["--server", "https://g", "more"], None),
        ([], None),
    ]
    for argv, found in cases:
        with subtests.test(argv=argv, found=found):
            assert cached_token._options(argv) == found


# --- who asked ---


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file; and we are run by a client that says so."""
    monkeypatch.setitem(posix.environ, b"KUBERNETES_EXEC_INFO", b"{}")
    return tmp_path / "asked"


def test_a_program_asks_again_the_second_time(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for process in (11, 12, 11, 11, 12, 13):
        monkeypatch.setattr(posix, "getppid", lambda process=process: process)
        seen.append(asks_again(str(asked), 1000))
    assert seen == [False, False, True, True, True, False]
    assert asked.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("later", "again"), [(0, False), (BELIEVED_SECONDS - 1, False), (BELIEVED_SECONDS, True), (-1, True)]
)
def test_what_the_gateway_said_is_believed_for_a_while(asked: Path, later: int, again: bool) -> None:
    asks_again(str(asked), 1000)
    believe(str(asked), 1000)
    assert asks_again(str(asked), 1000 + later) == again


def test_a_client_that_tells_us_nothing_never_counts(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(posix.environ, b"KUBERNETES_EXEC_INFO")
    assert [asks_again(str(asked), 1000) for _ in range(3)] == [False] * 3
    assert not asked.exists()


def test_the_list_does_not_grow_without_end(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for process in range(1000, 1500):
        monkeypatch.setattr(posix, "getppid", lambda process=process: process)
        assert not asks_again(str(asked), 1000)
        assert asked.stat().st_size <= LARGEST_LIST + len("1000:1000\n")
    assert asks_again(str(asked), 1000)


@pytest.mark.parametrize("content", [b"", b"x", b"1:2:3", b":", b"\xff:1", b"1:1 2", b"\0" * 99])
def test_a_broken_list_keeps_nobody_from_a_credential(asked: Path, content: bytes) -> None:
    asked.write_bytes(content)
    asked.chmod(0o600)
    assert asks_again(str(asked), 1000) is False


@pytest.mark.parametrize("how", ["a link", "a second name", "others may read it", "a pipe", "no folder"])
def test_what_is_not_a_file_of_ours_is_left_alone(asked: Path, how: str) -> None:
    other = asked.with_name("other")
    other.write_bytes(b"somebody's")
    other.chmod(0o644 if how == "others may read it" else 0o600)
    if how == "a link":
        asked.symlink_to(other)
    elif how == "a pipe":
        os.mkfifo(asked, 0o600)
    elif how == "no folder":
        asked = asked / "asked"
    else:
        asked.hardlink_to(other)
    assert [asks_again(str(asked), 1000) for _ in range(2)] == [False] * 2
    believe(str(asked), 1000)
    assert other.read_bytes() == b"somebody's"
