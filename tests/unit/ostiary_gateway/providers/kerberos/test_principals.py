"""Principals and usernames: no two principals have one username, and each username leads back to its principal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.errors import LoginRefused
from ostiary_gateway.providers.kerberos.principals import Principal, PrincipalNames, Realm, parse_principal

REALMS = (
    Realm("EXAMPLE.COM"),
    Realm("PARTNER.COM", suffix="@PARTNER.COM"),
    Realm("OTHER.COM", prefix="other:"),
    Realm("BOTH.COM", prefix="other:", suffix="@PARTNER.COM"),
)
NAMES = PrincipalNames(REALMS, instances=("admin",))
# Characters with a meaning, and a few without, so that collisions would be found.
component = st.text(st.sampled_from("ab:@/\\ \t\0ÄéA"), max_size=4) | st.sampled_from(["admin", "other", "PARTNER.COM"])
principals = st.builds(
    Principal,
    st.lists(component, max_size=3).map(tuple),
    st.sampled_from([realm.name for realm in REALMS]) | component,
)


def username(principal: Principal) -> str | None:
    try:
        return NAMES.username(principal)
    except LoginRefused:
        return None


@given(principals, principals)
def test_two_principals_never_have_one_username(one: Principal, other: Principal) -> None:
    if one != other and username(one) is not None:
        assert username(one) != username(other)


@given(principals)
def test_a_username_leads_back_to_its_principal(principal: Principal) -> None:
    name = username(principal)
    if name is not None:
        assert NAMES.principal(name) == principal


@given(st.text(max_size=12))
def test_a_name_that_nobody_has_leads_nowhere_else(text: str) -> None:
    principal = NAMES.principal(text)
    assert principal is None or NAMES.username(principal) == text


@given(st.lists(component, min_size=1, max_size=3).map(tuple), component.filter(bool))
def test_a_principal_is_read_as_it_was_written(components: tuple[str, ...], realm: str) -> None:
    principal = Principal(components, realm)
    assert parse_principal(str(principal)) == principal


def test_what_is_no_principal_is_none(subtests: pytest.Subtests) -> None:
    for text in ["", "alice", "alice@", "@", "alice@A@B", "alice\\", "alice@A/B", "al\0ice@A"]:
        with subtests.test(text=text):
            assert parse_principal(text) is None or str(parse_principal(text)) != "alice@A"


def test_who_is_called_how(subtests: pytest.Subtests) -> None:
    cases = [
        ("alice@EXAMPLE.COM", "alice"),
        ("alice@PARTNER.COM", "alice@PARTNER.COM"),
        ("alice@OTHER.COM", "other:alice"),
        ("alice/admin@EXAMPLE.COM", "alice/admin"),
        ("alice/root@EXAMPLE.COM", None),
        ("HTTP/web.example.com@EXAMPLE.COM", None),
        ("alice/admin/admin@EXAMPLE.COM", None),
        ("alice@EVIL.COM", None),
        ("WORKSTATION7$@EXAMPLE.COM", None),
        ("alice@example.com", None),
        ("other:alice@EXAMPLE.COM", None),
        ("alice\\@PARTNER.COM@EXAMPLE.COM", None),
        (" alice@EXAMPLE.COM", None),
        ("WELLKNOWN/ANONYMOUS@WELLKNOWN:ANONYMOUS", None),
    ]
    for principal, name in cases:
        with subtests.test(principal=principal, name=name):
            parsed = parse_principal(principal)
            assert parsed is not None
            assert username(parsed) == name


def test_active_directory_does_not_tell_capitals_apart() -> None:
    names = PrincipalNames([Realm("CORP", lowercase=True)], instances=("Admin",))
    assert names.username(Principal(("ALICE",), "CORP")) == "alice"
    assert names.username(Principal(("Alice", "Admin"), "CORP")) == "alice/Admin"
    assert names.principal("alice/Admin") == Principal(("alice", "Admin"), "CORP")
    assert names.principal("Alice") is None


def test_a_refusal_names_the_principal_for_the_operator_alone() -> None:
    with pytest.raises(LoginRefused) as refused:
        NAMES.username(Principal(("mal\nlory",), "EVIL"))
    assert "mal" not in refused.value.summary
    assert "mal" in str(refused.value.cause)
    assert "\n" not in str(refused.value.cause)
