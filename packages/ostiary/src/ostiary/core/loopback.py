"""Detects loopback hosts and addresses.

Used where something is allowed on this machine only: plain HTTP for a token, a gateway without TLS, a connection that
must not use a proxy, a user without password. A false positive would send a secret over the network, so a host counts
as loopback only if that is certain without a DNS lookup.
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_loopback(host: str) -> bool:
    """Return whether *host* is ``localhost`` or a loopback address.

    *host* is as returned by `urllib.parse`: in lower case, without brackets and port. ``localhost.`` and
    ``x.localhost`` do not count: a resolver may query DNS for them. ``127.1`` does not count: it is not an IP address,
    and programs disagree about its meaning.
    """
    return host == "localhost" or is_loopback_address(host)


def is_loopback_address(text: str) -> bool:
    """Return whether *text* is a loopback IP address. For peer addresses, which are never names."""
    address = parse_address(text)
    return address is not None and address.is_loopback


def parse_address(text: str) -> Address | None:
    """Parse an IP address without its zone; an IPv4-mapped IPv6 address becomes the IPv4 address.

    A dual-stack socket reports an IPv4 peer in the mapped form.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or ipaddress.IPv6Address(int(address))
