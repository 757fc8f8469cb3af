"""Parse the ``server`` of a cluster like client-go: scheme, host, port and path."""

from __future__ import annotations

import posixpath
import re
from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from ostiary.model import Secret

DEFAULT_PORTS = {"https": 443, "http": 80}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# ASCII characters that Go rejects in a host.
_NO_HOST = re.compile(r"[ \"#%/<>?@\\^`{|}]")


class AddressError(ValueError):
    """The server is not a valid address. The message does not quote it, because it may contain a password."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The parsed address. `host` has no brackets and is otherwise as written, for example with a trailing dot."""

    scheme: str
    host: str
    port: int | None = None
    path: str = ""
    authorization: Secret | None = field(default=None)
    """The ``Authorization`` header for ``user:password@`` in the address, as in Go."""

    @property
    def is_secure(self) -> bool:
        return self.scheme == "https"

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host.lower(), self.port or DEFAULT_PORTS[self.scheme]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def parse_server(server: str) -> ServerAddress:
    """Parse *server*. Without a scheme it is http, whatever else is configured."""
    scheme, rest = _split_scheme(server)
    has_host = rest.startswith("//") and not rest.startswith("///")
    if not (scheme and has_host):
        # client-go decides this before it looks at the certificate authority: docs/decisions/0021.
        scheme, rest = "http", "//" + server
    if _CONTROL.search(server) or " " in server[:1]:
        raise AddressError("it holds a space or a control character")
    if scheme not in DEFAULT_PORTS:
        raise AddressError("it begins neither with https:// nor with http://")
    address = _parse_rest(scheme, rest)
    if not has_host and address.path:
        raise AddressError("it has a path and no scheme")
    return address


def is_secure_server(server: str) -> bool:
    """Whether requests to *server* use TLS. False for an invalid address."""
    try:
        return parse_server(server).is_secure
    except AddressError:
        return False


def has_scheme(server: str) -> bool:
    scheme, rest = _split_scheme(server)
    return bool(scheme) and rest.startswith("//")


def server_for_plugins(server: str) -> str:
    """Return the server for an exec plugin: as written, but without query and fragment if it has a path."""
    if "#" in server and _path_of(server.partition("#")[0]) in ("", "/"):
        return server
    base = re.split(r"[?#]", server, maxsplit=1)[0]
    if len(_path_of(base)) <= 1:
        return server
    scheme, rest = _split_scheme(base)
    return f"{scheme}:{rest}" if scheme else base


def _path_of(server: str) -> str:
    scheme, rest = _split_scheme(server)
    return "/" + rest[2:].partition("/")[2] if scheme and "/" in rest[2:] else ""


def _split_scheme(server: str) -> tuple[str, str]:
    match = _SCHEME.fullmatch(server)
    return (match[1].lower(), match[2]) if match else ("", server)


def _parse_rest(scheme: str, rest: str) -> ServerAddress:
    try:
        parts = urlsplit(f"{scheme}:{rest}")
        userinfo, _, netloc = parts.netloc.rpartition("@")
        # Not parts.hostname, which is in lower case; but accessing it validates the brackets.
        host, port = _host(netloc) if parts.hostname else "", _port(netloc)
    except ValueError:
        raise AddressError("its host or port is invalid") from None
    if not host or _NO_HOST.search(host.partition("%")[0]) or (":" in host and not netloc.startswith("[")):
        raise AddressError("it names no host")
    path = _clean(parts.path)
    return ServerAddress(scheme, host, port, path, _authorization(userinfo))


def _host(netloc: str) -> str:
    return netloc[1:].partition("]")[0] if netloc.startswith("[") else netloc.partition(":")[0]


def _port(netloc: str) -> int | None:
    digits = netloc.rpartition("]")[2].partition(":")[2]
    if digits and not (digits.isascii() and digits.isdigit() and 0 < int(digits[:9]) <= 65535):
        raise ValueError("port")
    return int(digits) if digits else None


def _clean(path: str) -> str:
    """Normalize like Go joins paths: no double slashes, no dots, no trailing slash."""
    if not path:
        return ""
    clean = posixpath.normpath("/" + path.lstrip("/"))
    return "" if clean == "/" else clean


def _authorization(userinfo: str) -> Secret | None:
    if not userinfo:
        return None
    username, _, password = userinfo.partition(":")
    pair = f"{unquote(username)}:{unquote(password)}"
    return Secret("Basic " + b64encode(pair.encode()).decode("ascii"))
