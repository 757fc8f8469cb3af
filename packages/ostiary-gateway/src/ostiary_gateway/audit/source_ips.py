"""The ``sourceIPs`` of an audit event, also used to count failed sign-ins by address. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

LONGEST_FORWARDED = 32

Network = IPv4Network | IPv6Network


def source_ips(
    remote: str, *, forwarded_for: Sequence[str] = (), real_ip: str = "", trusted: Sequence[Network] = ()
) -> tuple[str, ...]:
    """Return the addresses of the client and each proxy. The last one is that of the connection.

    *forwarded_for* is every ``X-Forwarded-For`` line. A hop counts only if a trusted proxy reported it, so a client
    cannot forge an address in the audit log.
    """
    hops = [remote]
    if not is_trusted(remote, trusted):
        return (remote,)
    claimed = [part.strip() for line in forwarded_for for part in line.split(",")][-LONGEST_FORWARDED:]
    for hop in reversed(claimed or [real_ip.strip()]):
        address = _address(hop)
        if address is None:
            break
        hops.append(str(address))
        if not is_trusted(str(address), trusted):
            break
    hops.reverse()
    return tuple(hop for index, hop in enumerate(hops) if index == 0 or hop != hops[index - 1])


def is_trusted(text: str, trusted: Sequence[Network]) -> bool:
    """Report whether the address *text* is in *trusted*."""
    address = _address(text) if trusted else None
    return address is not None and any(address in network for network in trusted)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse ``192.0.2.1``, ``192.0.2.1:8080``, ``2001:db8::1`` or ``[2001:db8::1]:8080``."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
