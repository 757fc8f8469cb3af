"""Which proxy, if any, stands between us and a server: the kubeconfig's, else the environment's."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from ostiary.errors import TransportError

SCHEMES = ("http", "https", "socks5")


def proxy_for(server: SplitResult, *, configured: str | None, environ: Mapping[str, str]) -> str | None:
    """The proxy's URL for *server*; None to dial it directly.

    A ``proxy-url`` in the kubeconfig always wins. The environment's rules are Go's, which are stricter
    than urllib's: loopback is never proxied, and NO_PROXY may hold networks.
    """
    if configured:
        return _checked(configured)
    found = _variable(environ, f"{server.scheme}_proxy")
    if not found or _is_loopback(server.hostname or ""):
        return None
    if _exempt(server, _variable(environ, "no_proxy") or ""):
        return None
    return _checked(found if "://" in found else f"http://{found}")


def _variable(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name.upper()) or environ.get(name)


def _checked(url: str) -> str:
    mistake = _mistake(url)
    if mistake is not None:
        raise TransportError(
            "the proxy for this server cannot be used",
            cause=mistake,
            hint=f"use one of {', '.join(scheme + '://' for scheme in SCHEMES)}, a host, and perhaps a port",
            code="proxy-invalid",
        )
    return url


def _mistake(url: str) -> str | None:
    """What is wrong with a proxy's address. Nothing of it is quoted: any part may be a misplaced password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its host or port is not one; a user or password in it must be percent-encoded"
    if parts.scheme not in SCHEMES:
        return "its address begins with another scheme, or with none"
    if not parts.hostname or port == 0:
        return "its address has no host, or port 0"
    if "[" in parts.netloc and _address(parts.hostname.partition("%")[0]) is None:
        return "its host is not an IPv6 address"
    return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _exempt(server: SplitResult, rules: str) -> bool:
    host = (server.hostname or "").rstrip(".")
    port = server.port or (443 if server.scheme == "https" else 80)
    return any(_matches(rule.strip().lower(), host, port) for rule in rules.split(",") if rule.strip())


def _matches(rule: str, host: str, port: int) -> bool:
    if rule == "*":
        return True
    address = _address(host)
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    if _address(rule.strip("[]")) is None and ":" in rule:
        rule, _, wanted = rule.rpartition(":")
        if wanted != str(port):
            return False
    if address is not None:
        return _address(rule.strip("[]")) == address
    if rule.startswith("*."):
        rule = rule[1:]
    if rule.startswith("."):
        return host.endswith(rule)
    return host == rule or host.endswith("." + rule)
