"""Networks of client addresses, as rate limits and fair queuing count them."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def network(address: str) -> str:
    """Return an IPv4 address itself, and for IPv6 the /64 network, which belongs to one subscriber."""
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return parsed.packed[:8].hex()
