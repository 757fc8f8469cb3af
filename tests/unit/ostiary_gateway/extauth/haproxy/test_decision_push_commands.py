"""Commands of HAProxy's runtime socket: what is sent in which order, and that no name can be a command."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.errors import OstiaryError
from ostiary.model import UserInfo
from ostiary_gateway.extauth.haproxy.decision_push import (
    LINE_BYTES,
    USELESS_AT_ONCE,
    PendingCommands,
    RuntimeRefusal,
    check_output,
    line,
)
from ostiary_gateway.extauth.haproxy.handler import packed_identity
from ostiary_gateway.http1.headers import BadHeader


def pending() -> PendingCommands:
    return PendingCommands("/d", "/l")


def test_what_is_taken_out_goes_before_what_is_put_in() -> None:
    commands = pending()
    commands.add("A", "x", replaces=False)
    commands.add("B", "y", replaces=True)
    commands.delete(["C"])
    commands.end_lease("old")
    assert commands.take(with_useless=False) == ["del map /l old"]
    commands.add("B", "y", replaces=True)
    commands.delete(["C"])
    assert commands.take(with_useless=False) == ["del map /d B", "del map /d C", "add map /d B y"]
    assert not commands.urgent


def test_a_decision_that_was_revoked_before_it_was_sent_is_not_sent() -> None:
    commands = pending()
    commands.add("A", "x", replaces=False)
    commands.delete(["A"])
    assert commands.take(with_useless=False) == ["del map /d A"]
    commands.add("A", "x", replaces=False)
    commands.sweep(["A"])
    assert commands.take(with_useless=True) == []


def test_a_key_that_waits_to_be_swept_is_taken_out_before_it_is_put_in_again() -> None:
    commands = pending()
    commands.sweep(["A"])
    commands.add("A", "x", replaces=False)
    assert commands.take(with_useless=True) == ["del map /d A", "add map /d A x"]


def test_what_is_useless_leaves_a_few_at_a_time() -> None:
    commands = pending()
    commands.sweep([str(number) for number in range(50)])
    assert not commands.urgent
    assert commands.take(with_useless=False) == []
    assert len(commands.take(with_useless=True)) == USELESS_AT_ONCE
    assert commands.useless == 50 - USELESS_AT_ONCE


def test_a_line_fits_into_the_buffer_of_haproxy_and_nothing_is_lost() -> None:
    commands = pending()
    for number in range(500):
        commands.add(f"K{number}", "x" * 100, replaces=number % 2 == 0)
    sent = []
    while commands.urgent:
        taken = commands.take(with_useless=False)
        assert taken
        assert len(line(taken)) < LINE_BYTES + 2000
        sent += taken
    assert len(sent) == 750


def test_a_word_that_could_mean_something_else_is_never_sent(subtests: pytest.Subtests) -> None:
    for word in ["a;b", "a b\nc", "a\\b", "a\tb", '"', "<<", "é", "a\x00"]:
        with subtests.test(word=word), pytest.raises(ValueError, match="could mean"):
            line([f"add map /d KEY {word}"])


@given(st.text(min_size=1, max_size=30), st.text(max_size=10), st.lists(st.text(max_size=20), max_size=5))
def test_no_name_of_a_user_or_a_group_is_more_than_a_name(username: str, uid: str, groups: list[str]) -> None:
    user = UserInfo(username, uid, tuple(groups), (("scope", tuple(groups)),))
    try:
        packed = packed_identity(user, ["scope"]).decode("ascii")
    except (BadHeader, OstiaryError, UnicodeEncodeError):
        return
    assert packed.count("|") == 3
    sent = line([f"add map /d KEY 1|lease|{packed}"])
    assert sent.count(b"\n") == 1
    assert b";" not in sent


def test_what_haproxy_says_is_understood() -> None:
    assert check_output(b"\n\n\n")
    assert check_output(b"\nKey not found.\n\n")
    assert not check_output(b"entry not found.\n\n\n")
    for refusal in (b"Unknown map identifier. Please use #<id> or <file>.\n\n", b"Permission denied\n", b"???"):
        with pytest.raises(RuntimeRefusal):
            check_output(refusal)
