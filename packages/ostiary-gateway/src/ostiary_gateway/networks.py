"""The network that an IP address belongs to, as rate limits and fair queuing count sources."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def network(address: str) -> str:
    """An IPv4 address, or the network that one subscriber has all the IPv6 addresses of."""
    if ":" not in address:
        return address
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return parsed.packed[:8].hex()
