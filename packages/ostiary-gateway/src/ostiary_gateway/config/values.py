"""Values of the configuration: addresses, networks and origins. No side effects."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import SplitResult

from ostiary_gateway.settings.outgoing import BAD_PORT

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


# --- texts ---


@dataclass(frozen=True, slots=True)
class Address:
    """Listen address: an IP address or ``localhost``, and a port (0: any free one)."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse ``host:port``; the host is an IP address or ``localhost``. Raises `ValueError` with the error message."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]+", port):
        raise ValueError("it does not end in a colon and a port")
    # Check the length first: int() raises an error for thousands of digits.
    if len(port) > 5 or int(port) > 65535:
        raise ValueError(BAD_PORT)
    if host == "localhost":
        return Address(host, int(port))
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        ip = ipaddress.ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        raise ValueError("the part before the port is neither an IP address nor localhost") from None
    if bracketed != (ip.version == 6):
        raise ValueError("an IPv6 address must be in brackets, and no other address")
    return Address(str(ip), int(port))


def origin_text(url: SplitResult) -> str:
    """Return the canonical form of an origin: lower case, without the default port of its scheme."""
    default = {"http": 80, "https": 443}[url.scheme]
    host = f"[{url.hostname}]" if ":" in (url.hostname or "") else url.hostname
    return f"{url.scheme}://{host}" + (f":{url.port}" if url.port not in (None, default) else "")


def collapse(networks: Sequence[Network]) -> list[Network]:
    v4 = [network for network in networks if isinstance(network, ipaddress.IPv4Network)]
    v6 = [network for network in networks if isinstance(network, ipaddress.IPv6Network)]
    return [*ipaddress.collapse_addresses(v4), *ipaddress.collapse_addresses(v6)]


def is_listed(path: str, entries: Sequence[str]) -> bool:
    """Report whether *path* is one of *entries*, or below one with a trailing slash."""
    return any(path == entry or (entry.endswith("/") and path.startswith(entry)) for entry in entries)
