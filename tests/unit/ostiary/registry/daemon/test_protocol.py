"""What is said on the daemon's socket: whatever was made is read back, and nothing else is taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.registry.daemon import protocol

TEXTS = st.lists(st.binary(max_size=200), max_size=3)


@given(verb=st.sampled_from(protocol.VERBS), texts=TEXTS)
def test_a_question_is_read_as_it_was_asked(verb: bytes, texts: list[bytes]) -> None:
    data = protocol.question(verb, *texts)
    line, _, rest = data.partition(b"\n")
    head = protocol.question_head(line + b"\n")
    assert head is not None
    assert head[0] == verb
    read = []
    for length in head[1]:
        read.append(rest[:length])
        rest = rest[length:]
    assert (read, rest) == ([*texts, b"", b"", b""][:3], b"")


@given(code=st.integers(0, 255), stdout=st.binary(max_size=200), stderr=st.binary(max_size=200))
def test_an_answer_is_whole_or_none(code: int, stdout: bytes, stderr: bytes) -> None:
    data = protocol.answer(code, stdout, stderr)
    assert protocol.read_answer(data) == (code, stdout, stderr)
    assert protocol.read_answer(data[:-1]) is None
    assert protocol.read_answer(data + b"x") is None


@given(st.binary(max_size=100))
def test_anything_else_is_nothing(data: bytes) -> None:
    assert protocol.question_head(data) is None
    assert protocol.read_answer(data) is None


def test_another_version_or_too_much_is_no_question(subtests: pytest.Subtests) -> None:
    cases = [
        b"ostiary-registry 2 status 0 0 0\n",
        b"ostiary-registry 1 steal 0 0 0\n",
        b"ostiary-registry 1 status 0 0\n",
        b"ostiary-registry 1 status 0 0 -1\n",
        b"ostiary-registry 1 status 0 0 99999999\n",
        b"ostiary-registry 1 status 0 0 " + b"9" * 5000 + b"\n",
        "ostiary-registry 1 status 0 0 ²\n".encode(),
    ]
    for line in cases:
        with subtests.test(line=line):
            assert protocol.question_head(line) is None
