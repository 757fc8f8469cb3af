"""Whatever text comes from outside, a filter and a name keep the structure that the settings gave them."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ostiary_gateway.providers.ldap.escape import dn_template_mistake, escape, fill, filter_mistake, widen

dn = pytest.importorskip("ldap.dn", reason="missing: python-ldap")

TEMPLATE = "(&(objectClass=person)(|(uid={username})(mail={username}))(!(locked=yes)))"


def structure(text: str) -> tuple[str, ...]:
    """The characters of a filter that mean something; an escaped one is none of them."""
    return tuple(char for char in text if char in "()&|!*=<>~:")


def unescape(text: str) -> str:
    """As RFC 4515 reads a value."""
    out, position = bytearray(), 0
    while position < len(text):
        if text[position] == "\\":
            out.append(int(text[position + 1 : position + 3], 16))
            position += 3
        else:
            out += text[position].encode()
            position += 1
    return out.decode()


@given(st.text())
@example("*")
@example(")(uid=*")
@example("\\00")
@example("\0")
@settings(max_examples=200)
def test_a_name_never_changes_the_structure_of_a_filter(name: str) -> None:
    """L8."""
    assert structure(fill(TEMPLATE, name)) == structure(fill(TEMPLATE, "alice"))
    assert filter_mistake(fill(TEMPLATE, name), placeholder=False) is None


@given(st.text())
@settings(max_examples=200)
def test_what_is_escaped_is_read_as_what_it_was(text: str) -> None:
    """L8."""
    assert unescape(escape(text)) == text


@given(st.text(min_size=1))
@example("alice,ou=admins")
@example("alice+cn=root")
@example(" #alice ")
@settings(max_examples=200)
def test_a_name_is_one_value_of_a_distinguished_name(name: str) -> None:
    """L8: OpenLDAP's own parser finds the name, whole, where the template has it."""
    parsed = dn.str2dn(fill("uid={username},ou=people,dc=example", name))
    assert [[part[0] for part in row] for row in parsed] == [["uid"], ["ou"], ["dc"]]
    if "\0" not in name:
        assert parsed[0][0][1] == name


def test_what_is_no_text_is_not_escaped_but_refused() -> None:
    """L8."""
    with pytest.raises(UnicodeEncodeError):
        escape("\ud800")


def test_a_widened_filter_keeps_its_other_conditions() -> None:
    assert widen(TEMPLATE) == "(&(objectClass=person)(|(uid=*)(mail=*))(!(locked=yes)))"


@pytest.mark.parametrize("text", ["(uid={username})", TEMPLATE, "(mail={username}@example.com)"])
def test_filters_that_can_be_used(text: str) -> None:
    assert filter_mistake(text, placeholder=True) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "uid={username}",
        "(uid=alice)",
        "({username}=alice)",
        "(&{username})",
        "(uid={username}",
        "(uid={username}))",
        "(a=b)(uid={username})",
        "(uid={username})x",
    ],
)
def test_filters_in_which_a_name_could_be_more_than_a_value(text: str) -> None:
    """L8."""
    assert filter_mistake(text, placeholder=True)


def test_a_filter_for_groups_has_no_placeholder() -> None:
    assert filter_mistake("(cn={username})", placeholder=False)
    assert filter_mistake("(objectClass=group)", placeholder=False) is None


@pytest.mark.parametrize("text", ["uid={username},ou=people", "cn={username}+o=x,dc=example", "dc=x,uid={username}"])
def test_templates_of_names_that_can_be_used(text: str) -> None:
    assert dn_template_mistake(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "uid=alice",
        "{username}",
        "{username}=x",
        "uid=a{username}",
        "uid={username}x",
        "uid={username},cn={username}",
    ],
)
def test_templates_in_which_a_name_could_be_more_than_a_value(text: str) -> None:
    """L8."""
    assert dn_template_mistake(text)
