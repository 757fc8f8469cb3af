"""Decides whether a host or an address is this machine's loopback.

Called wherever something is allowed on this machine alone: plain HTTP for a token, a gateway without TLS, a connection
that no proxy may carry, a user who needs no password. A wrong yes would send a secret over the network, so a host is
the loopback only where that is certain without asking a name server.
"""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def is_loopback(host: str) -> bool:
    """Whether *host* is ``localhost`` or an address of the loopback.

    *host* is as `urllib.parse` returns it: in lower case, without brackets and port. ``localhost.`` and
    ``x.localhost`` are no: a resolver may ask a name server for them. ``127.1`` is no: it is not an IP address, and
    programs disagree about what it means.
    """
    return host == "localhost" or is_loopback_address(host)


def is_loopback_address(text: str) -> bool:
    """Whether *text* is an IP address of the loopback. For the address of a peer, which is never a name."""
    address = parse_address(text)
    return address is not None and address.is_loopback


def parse_address(text: str) -> Address | None:
    """The IP address that *text* is, without its zone; an IPv4-mapped IPv6 address as the IPv4 address it stands for.

    A socket that accepts both families reports an IPv4 peer in the mapped form.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return address
    return address.ipv4_mapped or ipaddress.IPv6Address(int(address))
