"""Whatever an application may understand of a path is among its readings, and nothing is that nobody could."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.cli.doctor.path_readings import MOST_READINGS, may_mean, path_readings

SEGMENT = st.text("abcdefghij0123456789-_", min_size=1, max_size=6)
PATH = st.lists(SEGMENT, min_size=1, max_size=4).map(lambda parts: "/" + "/".join(parts))
# Each hides a path in another, so that some application reads the first one.
DISGUISES: tuple[Callable[[str], str], ...] = (
    lambda path: "/x/.." + path,
    lambda path: "/x/%2e%2e" + path,
    lambda path: "/x/.%2E" + path,
    lambda path: "/x%2f.." + path,
    lambda path: "/" + path,
    lambda path: "/." + path,
    lambda path: path.replace("/", "\\"),
    lambda path: path.replace("/", "%2f"),
    lambda path: path.replace("/", "%5C"),
    lambda path: path.replace("/", "/;a=b/"),
    lambda path: path + ";jsession=1",
    lambda path: path + "%00.png",
    lambda path: path + "#fragment",
    lambda path: path + "?query=/other",
    lambda path: "".join(f"%{ord(char):02x}" if char != "/" else char for char in path),
    lambda path: quote("".join(f"%{ord(char):02x}" if char != "/" else char for char in path)),
    lambda path: "http://other.example" + path,
    lambda path: path.removeprefix("/"),
    lambda path: "/x/..;" + path,
    lambda path: "/x/%c0%ae%c0%ae" + path,
)


@given(PATH, st.sampled_from(DISGUISES))
def test_a_path_is_known_in_every_disguise(path: str, disguise: Callable[[str], str]) -> None:
    assert may_mean(disguise(path).encode(), path.encode())


@given(PATH, st.sampled_from(DISGUISES), SEGMENT)
def test_what_is_below_a_path_is_known_too(path: str, disguise: Callable[[str], str], below: str) -> None:
    assert may_mean(disguise(f"{path}/{below}").encode(), path.encode())


@given(PATH)
def test_a_plain_path_has_one_reading(path: str) -> None:
    assert path_readings(path.encode()) == {path.encode()}


@given(PATH, SEGMENT)
def test_a_path_that_only_begins_alike_is_another_one(path: str, more: str) -> None:
    assert not may_mean(f"{path}{more}".encode(), path.encode())


@given(st.binary(max_size=200))
def test_the_readings_of_anything_are_bounded(target: bytes) -> None:
    assert len(path_readings(target)) <= MOST_READINGS * 10


@pytest.mark.parametrize("target", [b"/admin/../x", b"/admin/%2e%2e/x", b"/admin%2f..%2fx", b"/admin/..;/x"])
def test_a_path_that_leads_out_of_the_denied_one_is_below_it_to_whoever_does_not_resolve_it(target: bytes) -> None:
    assert may_mean(target, b"/admin")


@pytest.mark.parametrize("target", [b"/x?to=/admin", b"/administrator", b"/x/admin", b"/"])
def test_another_path_is_not_the_denied_one(target: bytes) -> None:
    assert not may_mean(target, b"/admin")
