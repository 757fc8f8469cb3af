"""The quick way of ``get-token``, in its parts; that it imports nothing is tried with real processes in tests/e2e."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.cli import get_token
from ostiary.cli.get_token import file_content, file_name, state_folder, usable_answer

ANSWER, OLD = b'{"v":1}\n', b'{"v":"beta"}\n'


def content(obtained: int = 1000, renew_at: int = 2000) -> bytes:
    return file_content(obtained=obtained, renew_at=renew_at, v1=ANSWER, v1beta1=OLD)


def test_each_version_has_its_own_bytes() -> None:
    assert usable_answer(content(), b"v1", 1500) == ANSWER
    assert usable_answer(content(), b"v1beta1", 1500) == OLD
    assert usable_answer(content(), b"v1alpha1", 1500) is None


@pytest.mark.parametrize(
    ("now", "usable"), [(939.9, False), (940, True), (1000, True), (1999.9, True), (2000, False), (9e9, False)]
)
def test_it_is_good_from_when_it_was_had_until_it_should_be_renewed(now: float, usable: bool) -> None:
    """A clock that was set back does not make an old one good; one that was corrected by a little does no harm."""
    assert (usable_answer(content(), b"v1", now) == ANSWER) == usable


@settings(max_examples=200)
@given(data=st.binary(max_size=80), version=st.sampled_from([b"v1", b"v1beta1", b""]))
def test_nothing_is_made_of_what_is_no_such_file(data: bytes, version: bytes) -> None:
    assert usable_answer(data, version, 1500) is None


@settings(max_examples=100)
@given(cut=st.integers(0, len(content()) - 1))
def test_half_a_file_is_no_answer(cut: int) -> None:
    assert usable_answer(content()[:cut], b"v1", 1500) is None


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


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({b"HOME": b"/home/ann"}, "/home/ann/.local/state/ostiary-"),
        ({b"HOME": b"/home/ann", b"XDG_STATE_HOME": b"/var/state"}, "/var/state/ostiary-"),
        ({b"HOME": b"/home/ann", b"XDG_STATE_HOME": b"relative"}, "/home/ann/.local/state/ostiary-"),
        ({b"HOME": b"relative"}, None),
        ({}, None),
        ({b"HOME": b"/home/\xff"}, None),
    ],
)
def test_the_folder_is_the_account_s_own(environ: dict[bytes, bytes], folder: str | None) -> None:
    found = state_folder(environ)
    assert found == (None if folder is None else f"{folder}{os.geteuid()}")


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["--server", "https://g"], {"--server": "https://g"}),
        (["--server=https://g", "--device"], {"--server": "https://g"}),
        (["--account", "a", "--server", "https://g"], {"--server": "https://g", "--account": "a"}),
        (["--server"], None),
        (["--server", ""], None),
        (["--server", "https://g", "--account", ""], None),
        (["--server", "https://g", "--help"], None),
        (["--server", "https://g", "more"], None),
        ([], None),
    ],
)
def test_options_that_are_not_understood_at_once_are_left_to_the_slow_way(
    argv: list[str], found: dict[str, str] | None
) -> None:
    assert get_token._options(argv) == found
