"""``kubectl --as``: what the headers ask for, and what must be allowed for it."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.model import RequestInfo, UserInfo
from ostiary_gateway.authorization.impersonation import MOST_VALUES, requested_user, required_permissions
from ostiary_gateway.http1.headers import BadHeader, HeaderFilter
from ostiary_gateway.proxy.identity_headers import impersonation


def asked(*headers: tuple[str, str]) -> UserInfo:
    scanned = HeaderFilter().scan([(name.encode(), value.encode()) for name, value in headers])
    assert scanned.lines == b""
    return requested_user(list(scanned.impersonate))


def test_user_uid_groups_and_extras_are_read() -> None:
    """H5."""
    user = asked(
        ("Impersonate-User", "bob"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a,system:masters"),
        ("impersonate-group", "b"),
        ("Impersonate-Extra-Scopes", "x"),
        ("Impersonate-Extra-scopes", "y"),
        ("Impersonate-Extra-Acme.com%2FProject_id", "z"),
    )
    extra = (("acme.com/project_id", ("z",)), ("scopes", ("x", "y")))
    assert user == UserInfo("bob", "7", ("a,system:masters", "b"), extra)


def test_however_it_is_spelled_it_is_impersonation() -> None:
    """H1, H5."""
    assert asked(("IMPERSONATE_USER", "root"), ("impersonate_group", "g")) == UserInfo("root", "", ("g",))


def test_what_is_contradictory_unknown_or_too_much_is_refused(subtests: pytest.Subtests) -> None:
    """H5."""
    cases: list[list[tuple[str, str]]] = [
        [("Impersonate-Group", "system:masters")],
        [("Impersonate-Uid", "1")],
        [("Impersonate-Extra-A", "1")],
        [("Impersonate-User", "a"), ("Impersonate-User", "b")],
        [("Impersonate-User", "a"), ("Impersonate_User", "b")],
        [("Impersonate-User", "")],
        [("Impersonate-User", "a"), ("Impersonate-Uid", "1"), ("Impersonate-Uid", "1")],
        [("Impersonate-User", "a"), ("Impersonate-Group", "")],
        [("Impersonate-User", "a"), ("Impersonate-Extra-", "x")],
        [("Impersonate-User", "a"), ("Impersonate-Extra-%ff", "x")],
        [("Impersonate-User", "a"), ("Impersonate-Role", "x")],
        [("Impersonate-User", "a"), ("Impersonate", "x")],
        [("Impersonate-User", "a"), *[("Impersonate-Group", "g")] * MOST_VALUES],
    ]
    for headers in cases:
        with subtests.test(headers=headers), pytest.raises(BadHeader):
            asked(*headers)


def test_as_many_values_as_are_allowed_are_read() -> None:
    user = asked(("Impersonate-User", "a"), *[("Impersonate-Group", "g")] * 63)
    assert len(user.groups) == 63
    with pytest.raises(BadHeader, match="too many Impersonate headers"):
        asked(("Impersonate-User", "a"), *[("Impersonate-Group", "g")] * 64)


@pytest.mark.parametrize("value", [b"\xff", b"a\xc3", b"\xed\xa0\x80"])
def test_a_name_that_is_not_text_is_refused(value: bytes) -> None:
    with pytest.raises(BadHeader, match="an Impersonate header is not text"):
        requested_user([(b"impersonate-user", value)])


def test_what_must_be_allowed_is_asked_as_kube_apiserver_does() -> None:
    (question,) = required_permissions(UserInfo("bob"), upstream="prod")
    assert question == RequestInfo(
        "impersonate", "", "", True, api_version="v1", resource="users", name="bob", upstream="prod"
    )


def test_every_part_of_another_identity_is_a_question_of_its_own() -> None:
    user = UserInfo("bob", "7", ("dev", "ops"), (("scopes", ("x", "y")),))
    assert [(q.verb, q.api_group, q.resource, q.subresource, q.name) for q in required_permissions(user)] == [
        ("impersonate", "", "users", "", "bob"),
        ("impersonate", "", "groups", "", "dev"),
        ("impersonate", "", "groups", "", "ops"),
        ("impersonate", "authentication.k8s.io", "uids", "", "7"),
        ("impersonate", "authentication.k8s.io", "userextras", "scopes", "x"),
        ("impersonate", "authentication.k8s.io", "userextras", "scopes", "y"),
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("system:serviceaccount:team:bot", ("serviceaccounts", "team", "bot")),
        ("system:serviceaccount:team", ("users", "", "system:serviceaccount:team")),
        ("system:serviceaccount::bot", ("users", "", "system:serviceaccount::bot")),
        ("system:serviceaccount:a:b:c", ("users", "", "system:serviceaccount:a:b:c")),
    ],
)
def test_a_service_account_is_asked_about_in_its_namespace(name: str, expected: tuple[str, str, str]) -> None:
    (question,) = required_permissions(UserInfo(name))
    assert (question.resource, question.namespace, question.name) == expected


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_the_key_that_is_decided_on_is_the_key_that_is_forwarded(key: str) -> None:
    user = asked(("Impersonate-User", "a"), (f"Impersonate-Extra-{quote(key, safe='')}", "v"))
    line = impersonation(user).split(b"\r\n")[1].decode()
    again = asked(("Impersonate-User", "a"), (line.partition(": ")[0], "v"))
    assert again == user
