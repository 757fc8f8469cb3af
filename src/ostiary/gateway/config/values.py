"""Single values of the gateway's configuration: addresses, URLs, host names, and what is wrong with a file.

Called by `gateway.config` for its settings, and for the rules that several of them must keep. Pure, except that files
are looked at.
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from ostiary.core.settings.kinds import unreadable

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_HOST = re.compile(r"(?=.{1,253}$)([a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?")
_BAD_PORT = "a port is a number, at most 65535"


# --- texts ---


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen: an IP address or ``localhost``, and a port (0: any free one)."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """``host:port``, the host an IP address or ``localhost``; raises `ValueError` with what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]+", port):
        raise ValueError("it does not end in a colon and a port")
    # Five digits first: Python refuses to make a number of thousands of them.
    if len(port) > 5 or int(port) > 65535:
        raise ValueError(_BAD_PORT)
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


def parse_origin(text: str) -> SplitResult:
    """``https://host:port`` and nothing more; raises `ValueError` with what is wrong."""
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise ValueError("it contains characters that are not allowed in a URL")
    try:
        url = urlsplit(text)
    except ValueError:
        raise ValueError("it is not a URL") from None
    try:
        port = url.port
    except ValueError:
        raise ValueError(_BAD_PORT) from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0:
        raise ValueError("it does not begin with http:// or https:// and a host")
    if "@" in url.netloc:
        raise ValueError("it must not contain a user name or password")
    if url.path not in ("", "/") or "?" in text or "#" in text:
        raise ValueError("it must not contain a path, query or fragment")
    if not is_host(url.hostname) and not is_ip(url.hostname):
        raise ValueError("the host is not a valid host name")
    return url._replace(path="")


def is_host(text: str) -> bool:
    return _HOST.fullmatch(text) is not None


def is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def collapse(networks: Sequence[Network]) -> list[Network]:
    v4 = [network for network in networks if isinstance(network, ipaddress.IPv4Network)]
    v6 = [network for network in networks if isinstance(network, ipaddress.IPv6Network)]
    return [*ipaddress.collapse_addresses(v4), *ipaddress.collapse_addresses(v6)]


# --- files ---


def bad_pair(certificate: Path, key: Path) -> str | None:
    if unreadable(certificate) or unreadable(key):
        return None  # it has been noted
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With an empty password openssl does not ask for one at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError):
        return "it is not a certificate (PEM) that fits the key, or the key has a password"
    return None


def bad_authorities(path: Path) -> str | None:
    if unreadable(path):
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, OSError, ValueError):
        return "there is no certificate (PEM) in the file"
    return None
