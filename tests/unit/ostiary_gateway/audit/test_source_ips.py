"""Where a request came from, and who is believed about it."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from ostiary_gateway.audit.source_ips import source_ips

PROXIES = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]


def test_an_address_counts_only_if_a_trusted_proxy_vouches_for_it(subtests: pytest.Subtests) -> None:
    """2.7, H3, H7."""
    cases: list[tuple[str, list[str], str, list[str]]] = [
        ("192.0.2.1", [], "", ["192.0.2.1"]),
        ("192.0.2.1", ["198.51.100.1"], "198.51.100.2", ["192.0.2.1"]),
        ("10.0.0.1", [], "", ["10.0.0.1"]),
        ("10.0.0.1", ["198.51.100.1"], "", ["198.51.100.1", "10.0.0.1"]),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1"], "", ["198.51.100.1", "10.0.0.1"]),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.1, 10.0.0.2"], "", ["198.51.100.1", "10.0.0.2", "10.0.0.1"]),
        ("10.0.0.1", ["198.51.100.1, nonsense"], "", ["10.0.0.1"]),
        ("10.0.0.1", ["198.51.100.1, 10.0.0.1"], "", ["198.51.100.1", "10.0.0.1"]),
        ("10.0.0.1", [], "198.51.100.1", ["198.51.100.1", "10.0.0.1"]),
        ("10.0.0.1", [], "10.0.0.1", ["10.0.0.1"]),
        ("10.0.0.1", ["198.51.100.1:4711"], "", ["198.51.100.1", "10.0.0.1"]),
        ("fd00::1", ["[2001:db8::1]:443"], "", ["2001:db8::1", "fd00::1"]),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "", ["198.51.100.1", "::ffff:10.0.0.1"]),
        ("", ["198.51.100.1"], "", [""]),
    ]
    for remote, forwarded, real_ip, expected in cases:
        with subtests.test(remote=remote, forwarded=forwarded, real_ip=real_ip, expected=expected):
            assert source_ips(remote, forwarded_for=forwarded, real_ip=real_ip, trusted=PROXIES) == tuple(expected)


def test_without_trusted_proxies_nothing_that_a_client_says_is_believed() -> None:
    """H3, H7."""
    assert source_ips("10.0.0.1", forwarded_for=["198.51.100.1"], real_ip="198.51.100.1") == ("10.0.0.1",)


def test_a_long_chain_of_hops_is_cut() -> None:
    """T2."""
    assert len(source_ips("10.0.0.1", forwarded_for=["10.0.0.2, 10.0.0.3, " * 10_000], trusted=PROXIES)) <= 33
