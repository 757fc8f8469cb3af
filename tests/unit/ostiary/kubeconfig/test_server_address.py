"""The ``server`` of a cluster, as client-go reads it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostiary.kubeconfig.server_address import AddressError, is_secure_server, parse_server, server_for_plugins


def test_an_address(subtests: pytest.Subtests) -> None:
    cases = [
        ("https://c.test:6443", "https://c.test:6443"),
        ("HTTPS://C.test", "https://C.test"),
        ("https://c.test:", "https://c.test"),
        ("https://c.test.", "https://c.test."),
        ("https://c.test/a/", "https://c.test/a"),
        ("https://c.test//a/./b/../c", "https://c.test/a/c"),
        ("https://[2001:db8::1]:6443", "https://[2001:db8::1]:6443"),
        ("https://c.test?q#f", "https://c.test"),
        # Without a scheme it is http, whatever stands beside it.
        ("c.test", "http://c.test"),
        ("10.0.0.1:6443", "http://10.0.0.1:6443"),
        ("localhost:8080/", "http://localhost:8080"),
    ]
    for server, url in cases:
        with subtests.test(server=server, url=url):
            assert str(parse_server(server)) == url
            assert is_secure_server(server) == url.startswith("https")


def test_what_is_no_address_is_refused_and_not_quoted(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        " https://c.test",
        "https://c.test:6443 ",
        "https://c .test",
        "https://c.test\n",
        "https://",
        "https:///path",
        "ftp://c.test",
        "unix:///socket",
        "//c.test",
        "/api",
        "c.test/path",
        "https://c.test:port",
        "https://c.test:0",
        "https://c.test:99999",
        "https://2001:db8::1",
        "https://[2001:db8::1",
        "https://c.test:1:2",
    ]
    for server in cases:
        with subtests.test(server=server):
            with pytest.raises(AddressError) as refused:
                parse_server(server)
            assert "c.test" not in str(refused.value)
            assert not is_secure_server(server)


def test_a_user_and_password_sign_and_stand_in_no_text() -> None:
    address = parse_server("https://u:p%20w@c.test")
    assert address.authorization is not None
    assert address.authorization.reveal() == "Basic dTpwIHc="
    assert (str(address), "p w" in repr(address)) == ("https://c.test", False)


def test_a_plugin_is_told_the_server_as_it_stands(subtests: pytest.Subtests) -> None:
    cases = [
        ("https://c.test:6443", "https://c.test:6443"),
        ("HTTPS://C.test", "HTTPS://C.test"),
        ("https://c.test:6443#f", "https://c.test:6443#f"),
        ("https://c.test?q", "https://c.test?q"),
        ("https://c.test/?q", "https://c.test/?q"),
        ("https://c.test/base/?q=1#f", "https://c.test/base/"),
    ]
    for server, told in cases:
        with subtests.test(server=server, told=told):
            assert server_for_plugins(server) == told


@given(st.text(max_size=40))
def test_whatever_stands_there_is_an_address_or_refused(server: str) -> None:
    try:
        address = parse_server(server)
    except AddressError:
        return
    assert address.scheme in ("http", "https")
    assert str(parse_server(str(address))) == str(address)
