"""The files of the agent: replaced whole, with the mode that was asked for, as Kubernetes clients read them."""

from __future__ import annotations

import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ostiary.cli.agent.files import TokenFolder
from ostiary.cli.agent.keeper import HeldToken
from ostiary.errors import ConfigurationError
from ostiary.model import Secret


def held(text: str) -> HeldToken:
    return HeldToken(Secret(text), datetime(2030, 1, 1, tzinfo=UTC))


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_pods_clients_find_token_authority_and_namespace(tmp_path: Path) -> None:
    folder = TokenFolder(str(tmp_path / "new"), 0o640, "a certificate", "shop")
    folder.prepare()
    folder.write(held("first"))
    path = tmp_path / "new"
    assert {each.name: each.read_text() for each in path.iterdir()} == {
        "token": "first",
        "ca.crt": "a certificate",
        "namespace": "shop",
    }
    assert (mode_of(path), mode_of(path / "token"), mode_of(path / "ca.crt")) == (0o700, 0o640, 0o644)


def test_the_mode_does_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        TokenFolder(str(tmp_path), 0o644).write(held("x"))
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "token") == 0o644


def test_who_has_the_old_file_open_reads_the_old_token_to_its_end(tmp_path: Path) -> None:
    folder = TokenFolder(str(tmp_path))
    folder.write(held("first"))
    with (tmp_path / "token").open() as opened:
        folder.write(held("the second, which is longer"))
        assert opened.read() == "first"
    assert (tmp_path / "token").read_text() == "the second, which is longer"
    assert [each.name for each in tmp_path.iterdir()] == ["token"]


def test_what_an_agent_left_that_was_killed_does_not_matter(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not ours")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".token.new").symlink_to(elsewhere)
    TokenFolder(str(folder)).write(held("x"))
    assert elsewhere.read_text() == "not ours"
    assert (folder / "token").read_text() == "x"


def test_a_folder_that_cannot_be_written_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for act in (TokenFolder(str(tmp_path / "file/x")).prepare, lambda: TokenFolder("/proc/x").write(held("secret"))):
        with pytest.raises(ConfigurationError) as raised:
            act()
        assert raised.value.code == "token-file-unwritable"
        assert "secret" not in str(raised.value)
