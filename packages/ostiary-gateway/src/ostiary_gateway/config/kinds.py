"""Kinds of settings that only the gateway has: addresses, networks, pins, and entries that become providers.

The general kinds are in `settings.kinds`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ostiary.core.loopback import is_loopback
from ostiary.core.yaml import ConfigSection, Json
from ostiary_gateway.config.values import Address, Network, collapse, origin_text, parse_address
from ostiary_gateway.settings.kinds import Names, Parsed, SettingKind, Text
from ostiary_gateway.settings.outgoing import is_host, is_ip, parse_origin
from ostiary_gateway.settings.sections import OptionalSection, Sections

S = TypeVar("S")
# Instead of a list of upstreams: a policy for all of them.
ALL_UPSTREAMS = "all"
# Path prefix of external authorization.
DOORS_PREFIX = "/doors"
# Path prefixes of built-in endpoints.
RESERVED_PREFIXES = ("/auth", "/webhooks", DOORS_PREFIX, "/apis/ostiary.dev")
PLAIN_PATH = r"/|(/(?!\.\.?(/|$))[A-Za-z0-9._~-]+)+"
NAME = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"

_SHA256 = re.compile(r"[0-9a-f]{64}")


def parse_pin(text: str) -> str | None:
    """Normalize the SHA-256 of a certificate to lower-case hex. None if invalid. openssl prints capitals and colons."""
    pin = text.lower().removeprefix("sha256:").replace(":", "")
    return pin if _SHA256.fullmatch(pin) else None


def listen_address(doc: str) -> Parsed[Address]:
    return Parsed(
        doc,
        parse_address,
        pattern=r"^(localhost|[0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}$",
        hint="write it as in 127.0.0.1:8443, [::1]:8443 or localhost:8443",
        kind="`host:port`",
        reload=False,
    )


@dataclass(frozen=True)
class Networks(SettingKind[tuple[Network, ...]]):
    """List of addresses and networks, which together must not cover every address."""

    @property
    def label(self) -> str:
        return "list of networks"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> tuple[Network, ...] | None:
        networks: list[Network] = []
        for text in Names(self.doc).read(fields, key, directory) or ():
            try:
                networks.append(ipaddress.ip_network(text))
            except ValueError:
                hint = "write it as in 10.0.0.7 or 10.1.0.0/16"
                fields.problem("an entry is neither an address nor a network", key, hint)
        # Networks can cover everything together but not alone: 0.0.0.0/1 and 128.0.0.0/1.
        if any(network.prefixlen == 0 for network in collapse(networks)):
            hint = "list only your proxies: a trusted proxy sets the client address"
            fields.problem("every address would be trusted", key, hint)
        return tuple(networks)

    def schema(self) -> dict[str, Json]:
        return Names(self.doc).schema()

    def blank(self) -> tuple[Network, ...]:
        return ()

    def write(self, value: tuple[Network, ...]) -> Json:
        return [str(network) for network in value]


@dataclass(frozen=True)
class Hosts(Names):
    """Host names or addresses without a port, converted to lower case."""

    def read(self, fields: ConfigSection, key: str, directory: Path) -> tuple[str, ...] | None:
        hosts = tuple(host.lower().rstrip(".") for host in super().read(fields, key, directory) or ())
        for host in hosts:
            if host and not is_host(host) and not is_ip(host):
                fields.problem("an entry is not the name of a host", key, "write it without scheme and port")
        return hosts


@dataclass(frozen=True)
class Pins(SettingKind[frozenset[str]]):
    """SHA-256 digests of certificates, in hex."""

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> frozenset[str] | None:
        pins = set()
        for text in Names(self.doc).read(fields, key, directory) or ():
            pin = parse_pin(text)
            if pin is None:
                hint = "openssl x509 -in FILE -noout -fingerprint -sha256 prints it"
                fields.problem("an entry is not the SHA-256 of a certificate, in 64 hex digits", key, hint)
            else:
                pins.add(pin)
        return frozenset(pins)

    def schema(self) -> dict[str, Json]:
        item: Json = {"type": "string", "pattern": "^(sha256:)?([0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}$"}
        return {"type": "array", "items": item, "uniqueItems": True}

    def blank(self) -> frozenset[str]:
        return frozenset()

    def write(self, value: frozenset[str]) -> Json:
        return list[Json](sorted(value))


@dataclass(frozen=True)
class Prefix(Text):
    """Path prefix without a trailing slash."""

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | None:
        text = super().read(fields, key, directory) or "/"
        prefix = text.rstrip("/") or "/"
        if not re.fullmatch(PLAIN_PATH, prefix):
            fields.problem("it is not a plain path", key, "write it as in /clusters/east")
            return None
        if any(prefix == ours or prefix.startswith(f"{ours}/") for ours in RESERVED_PREFIXES):
            fields.problem("this path is reserved for the gateway", key)
        return prefix

    def schema(self) -> dict[str, Json]:
        return {"type": "string", "pattern": "^/"}


@dataclass(frozen=True)
class PathsAndBelow(Names):
    """List of paths; one with a trailing slash includes everything below it."""

    def read(self, fields: ConfigSection, key: str, directory: Path) -> tuple[str, ...] | None:
        paths = super().read(fields, key, directory)
        if not all(path == "/" or re.fullmatch(PLAIN_PATH, path.removesuffix("/")) for path in paths or ()):
            fields.problem("an entry is not a plain path", key, "write it as in /healthz or /static/")
        return paths


@dataclass(frozen=True)
class PublicPaths(PathsAndBelow):
    def read(self, fields: ConfigSection, key: str, directory: Path) -> tuple[str, ...] | None:
        paths = super().read(fields, key, directory)
        if "/" in (paths or ()):
            fields.problem("everything would be public", key, "list the paths that need no sign-in")
        return paths


@dataclass(frozen=True)
class PublicOrigin(Text):
    """Origin in the form that browsers send. Clients present credentials there."""

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | None:
        text = super().read(fields, key, directory)
        if not text:
            return text
        try:
            url = parse_origin(text)
        except ValueError as mistake:
            fields.problem(str(mistake), key, "write it as in https://files.example.com")
            return None
        if url.scheme == "http" and not is_loopback(url.hostname or ""):
            fields.problem("what proves who asks would cross the network in plain text", key, "begin it with https://")
        return origin_text(url)


# --- entries that become providers ---


@dataclass(frozen=True)
class EntryName(Text):
    """Name of an entry. An invalid name is still returned: references to it must not cause a second error."""

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | None:
        name = fields.optional_string(key)
        if name and not re.fullmatch(NAME, name):
            fields.problem("it is not a name of lower-case letters, digits and dashes", key)
        return name or None

    def schema(self) -> dict[str, Json]:
        return {"type": "string", "pattern": f"^{NAME}$"}


@dataclass(frozen=True)
class TypeName(Text):
    """Type of a provider. `config.providers` reads and requires it when it builds the provider."""

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | None:
        return ""


@dataclass(frozen=True)
class ProviderEntries(Sections[S]):
    """List of providers. The other fields of an entry depend on its type."""

    plugin_type: str = ""

    def schema(self) -> dict[str, Json]:
        least: dict[str, Json] = {"minItems": self.least} if self.least else {}
        return {"type": "array", **least, "items": {"$ref": f"#/$defs/{self.plugin_type}"}}


@dataclass(frozen=True)
class ProviderEntry(OptionalSection[S]):
    """One provider. Its other fields depend on its type."""

    plugin_type: str = ""

    def schema(self) -> dict[str, Json]:
        return {"$ref": f"#/$defs/{self.plugin_type}"}


@dataclass(frozen=True)
class TypeOrEntry(SettingKind["str | ConfigSection"]):
    """Type of a provider, or an object with the type and its settings."""

    plugin_type: str

    @property
    def label(self) -> str:
        return "type, or `{type: ..., settings}`"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | ConfigSection | None:
        if isinstance(fields.plain(key), dict):
            return fields.section(key)
        return Text(self.doc).read(fields, key, directory)

    def schema(self) -> dict[str, Json]:
        return {"anyOf": [{"type": "string", "minLength": 1}, {"$ref": f"#/$defs/{self.plugin_type}"}]}

    def blank(self) -> str | ConfigSection:
        return ""


@dataclass(frozen=True)
class PolicyUpstreams(SettingKind["frozenset[str] | str"]):
    """Upstreams that a policy applies to: a list of names, or the keyword for all."""

    @property
    def label(self) -> str:
        return f"list, or `{ALL_UPSTREAMS}`"

    def read(self, fields: ConfigSection, key: str, directory: Path) -> frozenset[str] | str | None:
        value = fields.plain(key)
        if value is None:
            return None
        if isinstance(value, str):
            if Text(self.doc).read(fields, key, directory) != ALL_UPSTREAMS:
                hint = f"write a list, as in [dev], or {ALL_UPSTREAMS}"
                fields.problem("it is neither a list of upstreams nor the keyword for all", key, hint)
            return ALL_UPSTREAMS
        names = Names(self.doc).read(fields, key, directory)
        if not names and fields.is_right(key):
            fields.problem("a policy for no upstream never applies", key, "remove the provider")
        return frozenset(names or ())

    def schema(self) -> dict[str, Json]:
        items: Json = {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}
        return {"oneOf": [{"const": ALL_UPSTREAMS}, items]}

    def blank(self) -> frozenset[str] | str:
        return ALL_UPSTREAMS
