"""Image names, normalized like the kubelet does before it looks for a credential.

    nginx  ->  docker.io / library/nginx : latest

Patterns are matched against `ImageName.repository`, which has a domain and a path and neither tag nor digest. The
grammar is that of the distribution project's references.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address

from ostiary.core.redaction import redact
from ostiary.core.text import printable
from ostiary.errors import ImageNameError

DOCKER_HUB = "docker.io"
OLD_DOCKER_HUB = "index.docker.io"
LOCALHOST = "localhost"
DEFAULT_TAG = "latest"
LONGEST_PATH = 255

_COMPONENT = r"[a-z0-9]+(?:(?:__|[._]|-+)[a-z0-9]+)*"
_DOMAIN_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN = rf"(?:{_DOMAIN_LABEL}(?:\.{_DOMAIN_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_REFERENCE = re.compile(
    rf"(?:(?P<domain>{_DOMAIN})/)?(?P<path>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
    r"(?:@(?P<digest>[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}))?"
)
_IMAGE_ID = re.compile(r"[a-f0-9]{64}")
_HEX_DIGITS = {"sha256": 64, "sha384": 96, "sha512": 128}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class ImageName:
    """A normalized name; `tag` and `digest` are empty when absent.

    `domain` is empty in one case: an invalid host (``my_host.io/app``) counts as path.
    """

    domain: str
    path: str
    tag: str = ""
    digest: str = ""

    @property
    def repository(self) -> str:
        """Return the name that patterns are matched against, and that credential providers receive."""
        return f"{self.domain}/{self.path}" if self.domain else self.path

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return self.repository + tag + (f"@{self.digest}" if self.digest else "")


def parse_image_name(text: str) -> ImageName:
    """Parse *text*; raises `ImageNameError`.

    An image with neither tag nor digest gets the tag ``latest``.
    """
    if _IMAGE_ID.fullmatch(text):
        cause = "invalid repository name: cannot specify 64-byte hexadecimal strings"
        raise _unusable(text, cause, "this is the id of an image; name its repository")
    domain, rest = _split_domain(text)
    _check_lower_case(text, rest.partition(":")[0])
    match = _REFERENCE.fullmatch(f"{domain}/{rest}")
    if match is None:
        raise _unusable(text, "invalid reference format", _format_hint(text))
    if len(match["path"]) > LONGEST_PATH:
        raise _unusable(text, f"repository name must not be more than {LONGEST_PATH} characters")
    digest = match["digest"] or ""
    if digest:
        _check_digest(text, digest)
    tag = match["tag"] or ("" if digest else DEFAULT_TAG)
    return ImageName(match["domain"] or "", match["path"], tag, digest)


def _split_domain(text: str) -> tuple[str, str]:
    first, slash, rest = text.partition("/")
    if not slash or not _looks_like_domain(first):
        domain, rest = DOCKER_HUB, text
    else:
        domain = DOCKER_HUB if first == OLD_DOCKER_HUB else first
    # Only Docker Hub has images without a namespace, and stores them in this one.
    return domain, f"library/{rest}" if domain == DOCKER_HUB and "/" not in rest else rest


def _looks_like_domain(text: str) -> bool:
    return text == LOCALHOST or "." in text or ":" in text or text.lower() != text


def _check_lower_case(text: str, repository: str) -> None:
    if repository.lower() != repository:
        hint = "write the repository in lower case; only the host and the tag may have capitals"
        raise _unusable(text, "invalid reference format: repository name must be lowercase", hint)


def _check_digest(text: str, digest: str) -> None:
    algorithm, _, encoded = digest.partition(":")
    algorithms = ", ".join(_HEX_DIGITS)
    if algorithm not in _HEX_DIGITS:
        raise _unusable(text, "unsupported digest algorithm", f"the algorithms are {algorithms}")
    if len(encoded) != _HEX_DIGITS[algorithm]:
        raise _unusable(text, "invalid checksum digest length", f"{algorithm} has {_HEX_DIGITS[algorithm]} hex digits")
    if encoded.lower() != encoded:
        raise _unusable(text, "invalid checksum digest format", "write the digest in lower case")


def _format_hint(text: str) -> str:
    if _SCHEME.match(text):
        return "an image name has no scheme: leave out what stands before and with ://"
    if not text:
        return "name an image, such as registry.example.com/team/app:1.0"
    return "an image name looks like registry.example.com:5000/team/app:1.0"


def _unusable(text: str, cause: str, hint: str | None = None) -> ImageNameError:
    # A pasted URL may hold a password before its host.
    displayed = redact(text) if _SCHEME.match(text) else printable(text)
    return ImageNameError(f'"{displayed}" is not the name of an image', cause=cause, hint=hint)


# Addresses without a scheme, parsed like Go's ``url.Parse`` and ``net.SplitHostPort``. Go's parser determines whether a
# pattern matches, so this follows Go 1.26 where it differs from the RFCs in what it rejects, decodes and drops. Go's
# strings are bytes, and so are the parts here.

_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})?")
_OPTIONAL_PORT = re.compile(rb"(?::[0-9]*)?")
_USERINFO = re.compile(rb"[A-Za-z0-9\-._:~!$&'()*+,;=%@]*")
_HOST_BYTES = rb"A-Za-z0-9\-_.~!$&'()*+,;=:\[\]<>\""
_NOT_IN_HOST = re.compile(rb"[^%\x80-\xff" + _HOST_BYTES + rb"]")
_IN_ZONE = re.compile(rb"[ " + _HOST_BYTES + rb"]")
_PERCENT = b"%25"


class UnparsableAddress(ValueError):
    """The address is invalid in Go. The text is Go's error, and may quote a part of the address."""


@dataclass(frozen=True, slots=True)
class ImageAddress:
    """`host` is Go's ``URL.Host``, including port and brackets; `labels` and `port` are used for matching."""

    host: bytes
    path: bytes
    labels: tuple[bytes, ...]
    port: bytes


def parse_address(text: str | bytes) -> ImageAddress:
    """Parse ``https://`` + *text* like Go; raises `UnparsableAddress`. Userinfo, query and fragment are dropped."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    rest, _, fragment = data.partition(b"#")
    if _CONTROL.search(rest):
        raise UnparsableAddress("net/url: invalid control character in URL")
    rest = rest.partition(b"?")[0]
    authority, slash, path = rest.partition(b"/")
    host = _host_of(authority)
    path = _decode(slash + path)
    _decode(fragment)
    name, port = split_port(host)
    return ImageAddress(host, path, tuple(name.split(b".")), port)


def split_port(host: bytes) -> tuple[bytes, bytes]:
    """Return host and port. Text that ``SplitHostPort`` rejects is a host without a port, including brackets."""
    name, colon, port = host.rpartition(b":")
    if not colon:
        return host, b""
    if name.startswith(b"["):
        inner = name[1:-1]
        # A zone may contain brackets and colons, so that a part of it looks like a port.
        whole = name.endswith(b"]") and not any(bracket in part for part in (inner, port) for bracket in (b"[", b"]"))
        return (inner, port) if whole else (host, b"")
    return (host, b"") if b"]" in name else (name, port)


def _host_of(authority: bytes) -> bytes:
    userinfo, at, host = authority.rpartition(b"@")
    host = _host(host)
    if at:
        if not _USERINFO.fullmatch(userinfo):
            raise UnparsableAddress("net/url: invalid userinfo")
        _decode(userinfo)
    return host


def _host(host: bytes) -> bytes:
    if (bracket := host.rfind(b"[")) > 0:
        raise UnparsableAddress("invalid IP-literal")
    if bracket == 0:
        return _ip_literal(host)
    # Since Go 1.26 the first colon starts the port, so only digits may follow.
    colon = host.find(b":")
    if colon >= 0:
        _check_port(host[colon:])
    return _decoded_host(host)


def _ip_literal(host: bytes) -> bytes:
    inner, bracket, port = host[1:].rpartition(b"]")
    if not bracket:
        raise UnparsableAddress("missing ']' in host")
    _check_port(port)
    address, percent, zone = inner.partition(_PERCENT)
    literal = _decoded_host(address) + (_decode_zone(percent + zone) if percent else b"")
    if not _is_ipv6(literal):
        raise UnparsableAddress("invalid IP-literal")
    return b"[" + literal + b"]" + port


def _is_ipv6(literal: bytes) -> bool:
    address, percent, zone = literal.partition(b"%")
    if percent and not zone:
        return False
    try:
        IPv6Address(address.decode("ascii"))
    except ValueError:
        return False
    return True


def _check_port(port: bytes) -> None:
    if not _OPTIONAL_PORT.fullmatch(port):
        raise UnparsableAddress(f"invalid port {_quote(port)} after host")


def _decoded_host(text: bytes) -> bytes:
    """Percent-decode a host. Of the ASCII bytes only the percent sign may be escaped, as in Go."""
    _check_host_bytes(text)
    for escape in _ESCAPE.finditer(text):
        if escape[1] and escape[1] < b"8" and escape[0] != _PERCENT:
            raise _bad_escape(escape[0])
    return _decode(text)


def _decode_zone(text: bytes) -> bytes:
    """Percent-decode a zone. An escape must stand for a byte that is valid unescaped, or for a space."""
    _check_host_bytes(text)
    for escape in _ESCAPE.finditer(text):
        if escape[1] and escape[0] != _PERCENT and not _IN_ZONE.match(bytes.fromhex(escape[1].decode())):
            raise _bad_escape(escape[0])
    return _decode(text)


def _check_host_bytes(text: bytes) -> None:
    if invalid := _NOT_IN_HOST.search(text):
        raise UnparsableAddress(f"invalid character {_quote(invalid[0])} in host name")


def _decode(text: bytes) -> bytes:
    if b"%" not in text:
        return text
    for escape in _ESCAPE.finditer(text):
        if escape[1] is None:
            raise _bad_escape(text[escape.start() : escape.start() + 3])
    return _ESCAPE.sub(lambda escape: bytes.fromhex(escape[1].decode()), text)


def _bad_escape(text: bytes) -> UnparsableAddress:
    return UnparsableAddress(f"invalid URL escape {_quote(text)}")


def _quote(text: bytes) -> str:
    return '"' + printable(text.decode("utf-8", "replace")) + '"'
