"""Single values of the gateway's configuration: read, checked, and a mistake noted where it stands.

Called by `gateway.config.sections`. A mistaken value gives the default, so that reading goes on and every mistake of
a file is told at once; what only follows from a mistake is not told (`Values.right`).
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Sequence
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from ostiary.core.config import Fields
from ostiary.gateway.config.settings import Address, ClientTls, Network
from ostiary.model import Problem

E = TypeVar("E", bound=Enum)
_HOST = re.compile(r"(?=.{1,253}$)([a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?")
_BAD_PORT = "a port is a number, at most 65535"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Values:
    """One section, the directory that its relative paths are meant from, and the mistakes noted in the whole file."""

    def __init__(self, fields: Fields, directory: Path, noted: Sequence[Problem]) -> None:
        self.fields = fields
        self._directory = directory
        self._noted = noted

    def section(self, key: str) -> Values:
        return self._of(self.fields.section(key))

    def optional_section(self, key: str) -> Values | None:
        fields = self.fields.optional_section(key)
        return None if fields is None else self._of(fields)

    def sections(self, key: str) -> list[Values]:
        return [self._of(fields) for fields in self.fields.sections(key)]

    def _of(self, fields: Fields) -> Values:
        return Values(fields, self._directory, self._noted)

    def right(self, *keys: str) -> bool:
        """Whether no mistake was noted about *keys*, in what stands below them, or in what they stand in.

        Asked before something is concluded from them: a person who mistyped one thing would look for two.
        """
        return all(self.right_at(self.fields.place(key).path) for key in keys)

    def right_at(self, path: str) -> bool:
        """The same for a place anywhere in the file."""
        return not any(_is_within(path, one.place.path) or _is_within(one.place.path, path) for one in self._noted)

    def missing(self, key: str, message: str = "it is missing", hint: str | None = None) -> None:
        """Note that nothing stands under *key*, unless something mistaken does."""
        if self.right(key):
            self.fields.problem(message, key, hint)

    def text(self, key: str, default: str = "") -> str:
        """Never empty: an empty setting means something else to everybody who reads it."""
        found = self.fields.optional_string(key)
        if found == "":
            self.fields.problem("it must not be empty", key)
        return found or default

    def flag(self, key: str, default: bool = False) -> bool:
        found = self.fields.optional_boolean(key)
        return default if found is None else found

    def integer(self, key: str, default: int, *, least: int = 1) -> int:
        found = self.optional_integer(key, least=least)
        return default if found is None else found

    def optional_integer(self, key: str, *, least: int = 1) -> int | None:
        found = self.fields.optional_integer(key)
        if found is not None and found < least:
            self.fields.problem(f"it must be at least {least}", key)
            return None
        return found

    def rate(self, key: str, default: float, *, zero: bool = False) -> float:
        found = self.fields.optional_number(key)
        if found is not None and (found < 0 or (found == 0 and not zero)):
            self.fields.problem("it must not be negative" if zero else "it must be greater than zero", key)
            return default
        return default if found is None else found

    def duration(self, key: str, default: timedelta, *, zero: bool = False) -> timedelta:
        bare = self.fields.plain(key)
        if isinstance(bare, (int, float)) and not isinstance(bare, bool):
            self.fields.problem("it has no unit", key, f"write {bare}s, {bare}m or {bare}h")
            return default
        found = self.fields.optional_duration(key)
        if found is not None and (found < timedelta(0) or (found == timedelta(0) and not zero)):
            self.fields.problem("it must not be negative" if zero else "it must be greater than zero", key)
            return default
        return default if found is None else found

    def choice(self, key: str, default: E) -> E:
        found = self.fields.optional_string(key)
        options = {str(option.value): option for option in type(default)}
        if found is not None and found not in options:
            self.fields.problem("unknown value", key, f"use one of {', '.join(options)}")
        return options.get(found or "", default)

    def names(self, key: str) -> tuple[str, ...]:
        """A list without empty and repeated texts: a filter with an empty one would let through who knows what."""
        found = self.fields.strings(key)
        if "" in found:
            self.fields.problem("empty entry in the list", key, "remove it, or fill it in")
        if len(set(found)) < len(found):
            self.fields.problem("duplicate entry in the list", key)
        return found

    def path(self, key: str) -> Path | None:
        text = self.text(key)
        return self._directory / Path(text).expanduser() if text else None

    def file(self, key: str) -> Path | None:
        """A file that can be read at this moment."""
        path = self.path(key)
        if path is not None and (mistake := unreadable(path)):
            self.fields.problem(f"the file cannot be read: {mistake}", key)
        return path

    def socket(self, key: str) -> Path:
        """The path in ``unix:/path``. Whoever listens there may start later."""
        return self._directory / self.text(key).removeprefix("unix:")

    def writable(self, key: str) -> Path | None:
        """A file that may not exist yet, in a directory that does."""
        path = self.path(key)
        if path is not None and not path.parent.is_dir():
            self.fields.problem("the directory of the file does not exist", key)
        return path

    def address(self, key: str, default: Address) -> Address:
        text = self.text(key)
        if not text:
            return default
        try:
            return parse_address(text)
        except ValueError as mistake:
            self.fields.problem(str(mistake), key, "write it as in 127.0.0.1:8443, [::1]:8443 or localhost:8443")
            return default

    def networks(self, key: str) -> tuple[Network, ...]:
        found: list[Network] = []
        for text in self.names(key):
            try:
                found.append(ipaddress.ip_network(text))
            except ValueError:
                hint = "write it as in 10.0.0.7 or 10.1.0.0/16"
                self.fields.problem("an entry is neither an address nor a network", key, hint)
        # Together they may be everything where none of them is alone: 0.0.0.0/1 and 128.0.0.0/1.
        if any(network.prefixlen == 0 for network in merged(found)):
            hint = "list only your proxies: a trusted proxy sets the client address"
            self.fields.problem("every address would be trusted", key, hint)
        return tuple(found)

    def client_tls(self, key: str) -> ClientTls:
        section = self.optional_section(key)
        if section is None:
            return ClientTls()
        tls = ClientTls(
            ca=section.file("ca"),
            certificate=section.file("certificate"),
            key=section.file("key"),
            server_name=section.text("serverName").lower() or None,
            pins=section.pins("pins"),
        )
        if (tls.certificate is None) != (tls.key is None):
            section.fields.problem("set both the certificate and its key", "certificate" if tls.key is None else "key")
        if tls.server_name is not None and not is_host(tls.server_name):
            section.fields.problem("it is not the name of a host", "serverName")
        if tls.ca is not None and (mistake := bad_authorities(tls.ca)):
            section.fields.problem(mistake, "ca")
        section.check_pair(tls.certificate, tls.key)
        return tls

    def check_pair(self, certificate: Path | None, key: Path | None) -> None:
        if certificate is not None and key is not None and (mistake := bad_pair(certificate, key)):
            self.fields.problem(mistake, "certificate")

    def pins(self, key: str) -> frozenset[str]:
        found = set()
        for text in self.names(key):
            # openssl prints capitals and colons.
            pin = text.lower().removeprefix("sha256:").replace(":", "")
            if not _SHA256.fullmatch(pin):
                hint = "openssl x509 -in FILE -noout -fingerprint -sha256 prints it"
                self.fields.problem("an entry is not the SHA-256 of a certificate, in 64 hex digits", key, hint)
            else:
                found.add(pin)
        return frozenset(found)

    def header_name(self, key: str, default: str) -> str:
        name = self.text(key, default)
        if not re.fullmatch(r"[A-Za-z0-9-]+", name):
            self.fields.problem("it is not a header name of letters, digits and dashes", key)
            return default
        return name


def _is_within(path: str, outer: str) -> bool:
    return outer == "" or path == outer or path.startswith((f"{outer}.", f"{outer}["))


# --- texts ---


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


def merged(networks: Sequence[Network]) -> list[Network]:
    v4 = [network for network in networks if isinstance(network, ipaddress.IPv4Network)]
    v6 = [network for network in networks if isinstance(network, ipaddress.IPv6Network)]
    return [*ipaddress.collapse_addresses(v4), *ipaddress.collapse_addresses(v6)]


# --- files ---


def unreadable(path: Path) -> str | None:
    """Why a file cannot be read; None if it can."""
    try:
        if path.is_dir():
            return "it is a directory"
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except (OSError, ValueError) as error:
        return (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
    return None


def bad_pair(certificate: Path, key: Path) -> str | None:
    if unreadable(certificate) or unreadable(key):
        return None  # it has been told
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
