"""What counts as this machine, in every form in which a host can be written."""

from __future__ import annotations

import ipaddress

import pytest

from ostiary.core.loopback import is_loopback, is_loopback_address, parse_address

ADDRESSES_OF_THE_LOOPBACK = (
    "127.0.0.1",
    "127.0.0.2",
    "127.255.255.254",
    "::1",
    "0:0:0:0:0:0:0:1",
    "::0001",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "::FFFF:127.8.8.8",
    "::1%lo",
    "::1%1",
)
NOT_THE_LOOPBACK = (
    "",
    " ",
    "0.0.0.0",  # every address of this machine, the outer ones too
    "::",
    "10.0.0.1",
    "128.0.0.1",
    "126.255.255.255",
    "192.0.2.1",
    "fe80::1",
    "fe80::1%lo",
    "::2",
    "::ffff:192.0.2.1",
    "::127.0.0.1",  # the deprecated IPv4-compatible form, which is routed like any other
    "64:ff9b::7f00:1",  # through a NAT64 it leaves the machine
    # Read by some programs as 127.0.0.1 and by others as a name.
    "127.1",
    "127.0.1",
    "127",
    "2130706433",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "127.0.0.01",
    "127.0.0.1.",
    # Not a host, but a host with something around it.
    "[::1]",
    "127.0.0.1:80",
    " 127.0.0.1",
    "127.0.0.1\n",
    "127.0.0.1/8",
    # Only an IPv6 address has a zone; a resolver takes these for names.
    "127.0.0.1%lo",
    "127.0.0.1%example.com",
    "::1%",
    "::1%a%b",
    # Another host's name.
    "127.0.0.1.example.com",
    "localhost.example.com",
    "notlocalhost",
    "loopback",
    "ip6-localhost",
    # A resolver may ask a name server for these.
    "localhost.",
    "x.localhost",
    "localhost.localdomain",
    # Callers lower the case, as `urllib.parse` does. Go's rules for proxies tell the two apart.
    "LOCALHOST",
    "１２７.0.0.1",
    "127。0。0。1",
)


def test_a_host_on_this_machine_is_the_loopback(subtests: pytest.Subtests) -> None:
    for host in ["localhost", *ADDRESSES_OF_THE_LOOPBACK]:
        with subtests.test(host=host):
            assert is_loopback(host)


def test_any_other_host_is_not(subtests: pytest.Subtests) -> None:
    for host in NOT_THE_LOOPBACK:
        with subtests.test(host=host):
            assert not is_loopback(host)
            assert not is_loopback_address(host)


def test_an_address_of_the_loopback_is_one(subtests: pytest.Subtests) -> None:
    for address in ADDRESSES_OF_THE_LOOPBACK:
        with subtests.test(address=address):
            assert is_loopback_address(address)


def test_the_name_localhost_is_no_address() -> None:
    assert not is_loopback_address("localhost")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("2001:DB8::1", "2001:db8::1"),
    ],
)
def test_an_address_is_parsed_without_its_zone_and_unmapped(text: str, address: str) -> None:
    assert parse_address(text) == ipaddress.ip_address(address)


def test_what_is_no_address_is_none(subtests: pytest.Subtests) -> None:
    for text in ["", "%eth0", "[::1]", "host", "1.2.3", "1.2.3.4.5"]:
        with subtests.test(text=text):
            assert parse_address(text) is None
