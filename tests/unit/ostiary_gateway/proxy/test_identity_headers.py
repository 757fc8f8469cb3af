"""How an upstream is told who asks: one line per group, and no name that could be read as another."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import UserInfo
from ostiary_gateway.authorization.implied_groups import complete_impersonated
from ostiary_gateway.http1.headers import BadHeader, HeaderNames
from ostiary_gateway.proxy.identity_headers import identity_lines, impersonation
from ostiary_gateway.sessions.authentication_context import ACR, AUTH_TIME


def test_each_group_is_one_line_and_nothing_in_it_is_a_separator() -> None:
    """H6, S14."""
    groups = ("a,system:masters", "b|c", "d:e", "two words", "système", "x=y;z", '"quoted"', "日本")
    user = UserInfo("alice@example.test", "7", groups, (("Scopes/x", ("a", "b,c")),))
    lines = impersonation(user).decode().split("\r\n")
    assert lines == [
        "Impersonate-User: alice@example.test",
        "Impersonate-Uid: 7",
        *(f"Impersonate-Group: {group}" for group in groups),
        "Impersonate-Extra-%53copes%2Fx: a",
        "Impersonate-Extra-%53copes%2Fx: b,c",
        "",
    ]


def test_a_group_that_the_api_server_adds_itself_is_not_asked_for() -> None:
    """It would need a permission of its own there, which the role of a gateway does not have."""
    user = UserInfo("noxu", groups=("system:authenticated", "dev"))
    assert impersonation(user) == b"Impersonate-User: noxu\r\nImpersonate-Group: dev\r\n"
    account = UserInfo("system:serviceaccount:shop:builder")
    assert impersonation(complete_impersonated(account)) == b"Impersonate-User: system:serviceaccount:shop:builder\r\n"


def test_how_a_person_signed_in_needs_no_permission_in_the_cluster() -> None:
    """The gateway judges it. An API server would want a permission for each extra field."""
    user = UserInfo("alice", extra=(("example.com/team", ("blue",)), (ACR, ("gold",)), (AUTH_TIME, ("2030",))))
    assert impersonation(user) == b"Impersonate-User: alice\r\nImpersonate-Extra-example.com%2Fteam: blue\r\n"
    assert b"ostiary.dev%2Facr: gold" in identity_lines(user, HeaderNames()), "other upstreams may want to know"


def test_a_name_that_a_header_cannot_carry_is_refused(subtests: pytest.Subtests) -> None:
    """H6."""
    for bad in [
        "a\r\nImpersonate-Group: system:masters",
        "a\nb",
        "a\rb",
        "a\0b",
        "a\x7f",
        "\ta",
        " a",
        "a ",
        "",
        "\ud800",
    ]:
        with subtests.test(bad=bad):
            for user in (
                UserInfo(bad),
                UserInfo("alice", "", (bad,)),
                UserInfo("alice", "", (), (("k", (bad,)),)),
            ):
                with pytest.raises(BadHeader):
                    impersonation(user)
            if bad:
                with pytest.raises(BadHeader):
                    impersonation(UserInfo("alice", bad))


def test_configured_names_are_used() -> None:
    names = HeaderNames("X-Who", "X-Team", "X-Number", "X-More-")
    user = UserInfo("alice", "7", ("dev",), (("a.b_c", ("v",)),))
    assert identity_lines(user, names) == b"X-Who: alice\r\nX-Number: 7\r\nX-Team: dev\r\nX-More-a.b_c: v\r\n"


@given(st.text(min_size=1, max_size=20))
@settings(max_examples=200, deadline=None)
def test_any_key_of_an_extra_comes_out_as_kube_apiserver_reads_it(key: str) -> None:
    """H6. It lowers the name, then undoes the escapes."""
    if any(0xD800 <= ord(c) <= 0xDFFF for c in key):
        return
    line = identity_lines(UserInfo("a", "", (), ((key, ("v",)),)), HeaderNames()).split(b"\r\n")[1]
    name, _, value = line.partition(b": ")
    assert value == b"v"
    assert unquote(name.decode("ascii").lower().removeprefix("x-remote-extra-")) == key
