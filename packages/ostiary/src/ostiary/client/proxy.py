"""Choose the proxy for a server: the kubeconfig's, else the environment's.

The rules for the environment are Go's (golang.org/x/net/http/httpproxy), which differ from urllib's: loopback is never
proxied, and NO_PROXY may contain networks. One deviation: where Go ignores a malformed proxy address and dials
directly, we raise an error (docs/decisions/0023).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from ostiary.core.loopback import Address, is_loopback, parse_address
from ostiary.errors import TransportError

SCHEMES = ("http", "https", "socks5", "socks5h")
DEFAULT_PORTS = {"http": "80", "https": "443"}
_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#]")
_CIDR = re.compile(r"([0-9a-f:.]+)/([0-9]{1,3})")
_UNREADABLE = re.compile(r"[\x00-\x20\x7f]|%(?![0-9A-Fa-f]{2})")


def proxy_for(server: SplitResult, *, configured: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the proxy's URL for *server*, or None to dial it directly.

    ``proxy-url`` of the kubeconfig takes precedence.
    """
    if configured:
        _check(configured)
        return configured
    proxy = _variable(environ, f"{server.scheme.lower()}_proxy")
    if not proxy:
        return None
    if server.scheme.lower() == "http" and environ.get("REQUEST_METHOD"):
        # In a CGI program the variable may come from a request header ("httpoxy").
        raise _unusable("HTTP_PROXY is not used in a CGI program, where a request can set it")
    if not _uses_proxy(server, _variable(environ, "no_proxy") or ""):
        return None
    url = proxy if _HAS_SCHEME.match(proxy) else f"http://{proxy}"
    _check(url)
    scheme, _, rest = url.partition("://")
    return f"{scheme.lower()}://{rest}"


def _variable(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name.upper()) or environ.get(name)


# --- address of a proxy ---


def _check(url: str) -> None:
    mistake = _mistake(url)
    if mistake is not None:
        raise _unusable(mistake)


def _unusable(cause: str) -> TransportError:
    return TransportError(
        "the proxy for this server cannot be used",
        cause=cause,
        hint=f"use one of {', '.join(scheme + '://' for scheme in SCHEMES)}, a host, and perhaps a port",
        code="proxy-invalid",
    )


def _mistake(url: str) -> str | None:
    """Return what is wrong with a proxy's address. No part of it is quoted, because any may be a misplaced password."""
    if _UNREADABLE.search(url):
        return "its address holds a space, a control character or half a percent-encoding"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its host or port is invalid; a user or password in it must be percent-encoded"
    if parts.scheme not in SCHEMES:
        return "its address begins with another scheme, or with none"
    if not parts.hostname or port == 0:
        return "its address has no host, or port 0"
    if "[" in parts.netloc and parse_address(parts.hostname.partition("%")[0]) is None:
        return "its host is not an IPv6 address"
    return None


# --- NO_PROXY ---


def _uses_proxy(server: SplitResult, exceptions: str) -> bool:
    host = _ascii(_host(server))
    if is_loopback(host):
        return False
    address = parse_address(host)
    port = _port(server)
    rules = [rule for text in exceptions.split(",") if (rule := text.strip().lower())]
    return not any(_matches(rule, host.strip().lower(), port, address) for rule in rules)


def _host(server: SplitResult) -> str:
    """Return the host as it is written.

    `SplitResult.hostname` is in lower case, but Go does not treat LOCALHOST as loopback.
    """
    netloc = server.netloc.rpartition("@")[2]
    return netloc[1:].partition("]")[0] if netloc.startswith("[") else netloc.partition(":")[0]


def _port(server: SplitResult) -> str:
    digits = server.netloc.rpartition("@")[2].rpartition("]")[2].partition(":")[2]
    return digits or DEFAULT_PORTS[server.scheme.lower()]


def _matches(rule: str, host: str, port: str, address: Address | None) -> bool:
    if rule == "*":
        return True
    if network := _network(rule):
        return address is not None and address in network
    name, rule_port = _split_host_port(rule)
    if name.startswith("[") and name.endswith("]") and rule_port is not None:
        name = name[1:-1]
    if not name:
        # Probably a typing error. As in Go, it exempts nothing.
        return False
    if "%" not in name and (exempt := parse_address(name)) is not None:
        return exempt == address and rule_port in (None, "", port)
    return address is None and _matches_domain(name, host) and rule_port in (None, "", port)


def _matches_domain(name: str, host: str) -> bool:
    if name.startswith("*."):
        name = name[1:]
    if name.startswith("."):
        return host.endswith(_ascii(name))
    name = _ascii(name)
    return host == name or host.endswith("." + name)


def _split_host_port(text: str) -> tuple[str, str | None]:
    """Split like Go's net.SplitHostPort. Returns (*text*, None) if there is no port or there are too many colons."""
    whole = text, None
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not rest.startswith(":") or ":" in rest[1:] or "[" in host + rest or "]" in rest:
            return whole
        return host, rest[1:]
    host, colon, port = text.rpartition(":")
    return whole if not colon or ":" in host or set("[]") & set(text) else (host, port)


def _network(rule: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    match = _CIDR.fullmatch(rule)
    address = _plain_address(match[1]) if match else None
    if match is None or address is None or int(match[2]) > address.max_prefixlen:
        return None
    prefix = int(match[2])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None and prefix >= 96:
        return ipaddress.ip_network((address.ipv4_mapped, prefix - 96), strict=False)
    return ipaddress.ip_network((address, prefix), strict=False)


def _plain_address(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _ascii(name: str) -> str:
    """Return an internationalized name in its ASCII form, and any other name unchanged."""
    if name.isascii():
        return name
    try:
        return ".".join(label if label.isascii() else label.encode("idna").decode("ascii") for label in name.split("."))
    except UnicodeError:
        return name
