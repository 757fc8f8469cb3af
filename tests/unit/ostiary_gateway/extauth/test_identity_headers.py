"""The headers of an allowing answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.model import UserInfo
from ostiary_gateway.config.extauth import ProxyKind
from ostiary_gateway.extauth.dialects import DIALECTS
from ostiary_gateway.extauth.identity_headers import (
    NOBODY,
    answer_names,
    cookies_answer,
    identity_answer,
    join_values,
    split_values,
)
from ostiary_gateway.http1.headers import BadHeader

JOINED, REPEATED, RETURNED = DIALECTS[ProxyKind.NGINX], DIALECTS[ProxyKind.TRAEFIK], DIALECTS[ProxyKind.GATEWAY_API]
# What means something in the encoding comes up often: any text alone would hardly ever have a comma, or "%2C".
PIECES = st.sampled_from([",", "%", "%2C", "%25", " ", "ä"]) | st.text(st.characters(codec="utf-8"), min_size=1)
NAMES = st.lists(PIECES, min_size=1, max_size=4).map("".join)


@given(st.lists(NAMES, max_size=8))
def test_joined_values_are_one_visible_line_and_come_apart_as_they_were(values: list[str]) -> None:
    joined = join_values(values)
    assert split_values(joined) == tuple(values)
    assert joined.isascii()
    assert " " not in joined
    assert joined.isprintable()


@given(st.lists(NAMES, max_size=4), st.lists(NAMES, max_size=4))
def test_no_two_lists_are_joined_alike(one: list[str], other: list[str]) -> None:
    assert (join_values(one) == join_values(other)) is (one == other)


def test_each_header_is_always_there() -> None:
    lines = identity_answer(UserInfo("nobody"), JOINED, ["scope"])
    assert lines == b"X-Remote-User: nobody\r\nX-Remote-Uid: \r\nX-Remote-Group: \r\nX-Remote-Extra-scope: \r\n"
    assert answer_names(["scope"]) == ["X-Remote-User", "X-Remote-Uid", "X-Remote-Group", "X-Remote-Extra-scope"]


def test_of_nobody_each_header_is_there_without_a_value() -> None:
    assert identity_answer(NOBODY, JOINED, []) == b"X-Remote-User: \r\nX-Remote-Uid: \r\nX-Remote-Group: \r\n"
    assert answer_names([], assertion=True)[-1] == "X-Ostiary-Assertion"


def test_without_cookies_there_is_a_line_only_where_the_clients_would_stay() -> None:
    assert cookies_answer(b"a=1; b=2", JOINED) == b"X-Ostiary-Cookie: a=1; b=2\r\n"
    assert cookies_answer(b"a=1", REPEATED) == b"Cookie: a=1\r\n"
    assert (cookies_answer(b"", JOINED), cookies_answer(b"", REPEATED)) == (b"", b"")
    assert cookies_answer(b"", RETURNED) == b"Cookie: \r\n"


def test_groups_are_joined_where_a_proxy_keeps_one_line_and_repeated_where_it_keeps_all() -> None:
    user = UserInfo("alice", "7", ("a,b", "50%"), (("scope", ("x", "y")), ("other", ("z",))))
    assert b"X-Remote-Group: a%2Cb,50%25\r\nX-Remote-Extra-scope: x,y\r\n" in identity_answer(user, JOINED, ["scope"])
    repeated = identity_answer(user, REPEATED, ["scope"])
    assert b"X-Remote-Group: a,b\r\nX-Remote-Group: 50%\r\n" in repeated
    assert b"X-Remote-Extra-scope: x\r\nX-Remote-Extra-scope: y\r\n" in repeated
    assert b"other" not in repeated
    assert b"X-Remote-Group: \r\n" in identity_answer(UserInfo("nobody"), REPEATED, [])


def test_the_secret_is_overwritten_where_the_request_itself_carries_it() -> None:
    assert identity_answer(UserInfo("a"), RETURNED, []).endswith(b"x-ostiary-door: \r\n")
    assert b"ostiary" not in identity_answer(UserInfo("a"), JOINED, [])


@pytest.mark.parametrize("name", ["a\r\nX-Remote-User: root", " a", "a ", "\0", "\ud800"])
def test_a_name_that_no_header_can_carry_is_never_told(name: str) -> None:
    for dialect in (JOINED, REPEATED):
        with pytest.raises(BadHeader):
            identity_answer(UserInfo(name), dialect, [])
        with pytest.raises(BadHeader):
            identity_answer(UserInfo("alice", groups=(name,)), dialect, [])
