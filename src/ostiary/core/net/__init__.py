"""The network as all doors see it: what is this machine, and one request to a server outside."""

from ostiary.core.net.loopback import Address, is_loopback, is_loopback_address, parse_address

__all__ = ["Address", "is_loopback", "is_loopback_address", "parse_address"]
