"""What is kept of an answer that lets a request pass."""

from __future__ import annotations

import pytest

from ostiary_gateway.extauth.ext_authz import may_be_kept

ALICE = b"X-Remote-User: alice\r\nX-Remote-Uid: \r\nX-Remote-Group: dev\r\n"


def test_who_a_user_is_may_be_kept() -> None:
    assert may_be_kept(ALICE)


@pytest.mark.parametrize("line", [b"X-Ostiary-Cookie: a=b\r\n", b"X-Ostiary-Assertion: e30.e30.x\r\n"])
def test_what_is_for_one_request_is_not(line: bytes) -> None:
    assert not may_be_kept(ALICE + line)


def test_what_one_user_could_fill_the_memory_with_is_not() -> None:
    assert not may_be_kept(b"X-Remote-Group: " + b"x" * 5000 + b"\r\n")
