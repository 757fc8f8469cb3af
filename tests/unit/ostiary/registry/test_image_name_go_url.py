"""Addresses are taken apart, and refused, as Go 1.26 does it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.registry.image_name import ImageAddress, UnparsableAddress, parse_address, split_port


def test_addresses_are_decoded_as_go_decodes_them(subtests: pytest.Subtests) -> None:
    """Userinfo, query and fragment are dropped, paths are decoded, hosts only beyond ASCII."""
    cases = [
        ("", b"", b""),
        ("registry.io", b"registry.io", b""),
        ("registry.io/", b"registry.io", b"/"),
        ("/path", b"", b"/path"),
        ("registry.io//a", b"registry.io", b"//a"),
        ("registry.io:5000/a/b", b"registry.io:5000", b"/a/b"),
        ("registry.io:", b"registry.io:", b""),
        ("https://registry.io", b"https:", b"//registry.io"),
        ("user@registry.io/x", b"registry.io", b"/x"),
        ("user:p%40ss@registry.io/x", b"registry.io", b"/x"),
        ("a@b@registry.io", b"registry.io", b""),
        ("registry.io?query", b"registry.io", b""),
        ("registry.io/a?b#c", b"registry.io", b"/a"),
        ("registry.io/a#b?c", b"registry.io", b"/a"),
        ("registry.io?a/b", b"registry.io", b""),
        ("registry.io/foo%20bar", b"registry.io", b"/foo bar"),
        ("registry.io/foo bar", b"registry.io", b"/foo bar"),
        ("registry.io/%2F", b"registry.io", b"//"),
        ("registry.io/%ff", b"registry.io", b"/\xff"),
        ("registry.io/\u00e9", b"registry.io", b"/\xc3\xa9"),
        ("caf\u00e9.io", b"caf\xc3\xa9.io", b""),
        ("caf%C3%A9.io", b"caf\xc3\xa9.io", b""),
        ("a%25b.io", b"a%b.io", b""),
        ("re]gistry.io", b"re]gistry.io", b""),
        ("[::1]/x", b"[::1]", b"/x"),
        ("[::1]:5000", b"[::1]:5000", b""),
        ("[fe80::1%25en0]:80", b"[fe80::1%en0]:80", b""),
        ("[fe80::1%25%65%6e%301-._~]", b"[fe80::1%en01-._~]", b""),
        ("[fe80::1%25a%20b]", b"[fe80::1%a b]", b""),
        ("[::ffff:1.2.3.4]", b"[::ffff:1.2.3.4]", b""),
    ]
    for text, host, path in cases:
        with subtests.test(text=text, host=host, path=path):
            address = parse_address(text)
            assert (address.host, address.path) == (host, path)


def test_what_go_refuses_is_refused_in_its_words(subtests: pytest.Subtests) -> None:
    """Colons and brackets are strict."""
    cases = [
        ("%invalid%", 'invalid URL escape "%in"'),
        ("registry.io/%", 'invalid URL escape "%"'),
        ("registry.io/%a", 'invalid URL escape "%a"'),
        ("registry.io/%zz1", 'invalid URL escape "%zz"'),
        ("registry.io#%zz", 'invalid URL escape "%zz"'),
        ("us%zzer@registry.io", 'invalid URL escape "%zz"'),
        ("192.168.0.%31", 'invalid URL escape "%31"'),
        ("a%2fb.io", 'invalid URL escape "%2f"'),
        ("nginx:latest", 'invalid port ":latest" after host'),
        ("registry.io:*", 'invalid port ":*" after host'),
        ("a:1:5000", 'invalid port ":1:5000" after host'),
        ("::1", 'invalid port "::1" after host'),
        ("[::1]5000", 'invalid port "5000" after host'),
        ("[::1]:*", 'invalid port ":*" after host'),
        ("foo bar", 'invalid character " " in host name'),
        ("reg\\*.io", 'invalid character "\\" in host name'),
        ("{a,b}.io", 'invalid character "{" in host name'),
        ("a^b", 'invalid character "^" in host name'),
        ("us er@registry.io", "invalid userinfo"),
        ("us\u00e9r@registry.io", "invalid userinfo"),
        ("registry.io\n", "invalid control character in URL"),
        ("registry.io/\x7f", "invalid control character in URL"),
        ("reg[a-z]stry.io", "invalid IP-literal"),
        ("reg[istry].io", "invalid IP-literal"),
        ("[::1", "missing ']' in host"),
        ("[]", "invalid IP-literal"),
        ("[registry.io]", "invalid IP-literal"),
        ("[1.2.3.4]", "invalid IP-literal"),
        ("[::1%25]", "invalid IP-literal"),
        ("[::1%en0]", 'invalid URL escape "%en"'),
        ("[fe80::%31]", 'invalid URL escape "%31"'),
        ("[fe80::1%25%2F]", 'invalid URL escape "%2F"'),
        ("[1:2:3:4:5:6:7:8:9]", "invalid IP-literal"),
        ("[::1::]", "invalid IP-literal"),
        ("[12345::]", "invalid IP-literal"),
        ("[::01.2.3.4]", "invalid IP-literal"),
    ]
    for text, message in cases:
        with subtests.test(text=text, message=message):
            with pytest.raises(UnparsableAddress) as caught:
                parse_address(text)
            assert message in str(caught.value)


def test_a_control_character_in_a_fragment_is_dropped_with_it() -> None:
    assert parse_address("registry.io#\n") == parse_address("registry.io")


def test_a_port_that_cannot_be_split_off_stays_with_the_host(subtests: pytest.Subtests) -> None:
    cases = [
        (b"", b"", b""),
        (b"registry.io", b"registry.io", b""),
        (b"registry.io:", b"registry.io", b""),
        (b"registry.io:05000", b"registry.io", b"05000"),
        (b":5000", b"", b"5000"),
        (b"[::1]:5000", b"::1", b"5000"),
        (b"[::1]:", b"::1", b""),
        (b"[::1]", b"[::1]", b""),
        (b"[fe80::1%a]b]:80", b"[fe80::1%a]b]:80", b""),
        (b"[fe80::1%a[b]:80", b"[fe80::1%a[b]:80", b""),
        (b"a]b:80", b"a]b:80", b""),
    ]
    for host, name, port in cases:
        with subtests.test(host=host, name=name, port=port):
            assert split_port(host) == (name, port)


def test_the_host_is_cut_at_its_dots() -> None:
    assert parse_address("a..b.:1/p") == ImageAddress(b"a..b.:1", b"/p", (b"a", b"", b"b", b""), b"1")


def test_an_address_may_be_given_as_bytes() -> None:
    assert parse_address(b"registry.io/\xff").path == b"/\xff"


@settings(deadline=None)
@given(st.text(alphabet="ab.:/@[]%25#?*\\ \x00é") | st.text() | st.binary())
def test_any_text_is_an_address_or_unparsable(text: str | bytes) -> None:
    with suppress(UnparsableAddress):
        parse_address(text)


@pytest.mark.parametrize("text", ["\ud800.io", "registry.io/\udcff"])
def test_half_a_character_does_no_harm(text: str) -> None:
    assert parse_address(text) == parse_address(text)


@pytest.mark.parametrize("host", ["[::1%25%41]:44]", "[::1%25]:44]", "[::1%25a]:1]"])
def test_a_zone_that_ends_like_a_port_is_no_port(host: str) -> None:
    """The last bracket closes the address, and then Go finds no port behind the first one."""
    address = parse_address(host)
    assert address.port == b""
    assert b".".join(address.labels) == address.host
