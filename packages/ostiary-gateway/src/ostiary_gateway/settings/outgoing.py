"""Settings of a server that the gateway calls: URL, host name and TLS. Files are checked while reading."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import SplitResult, urlsplit

from ostiary.core.tls import ContextT, SealedContext, TlsSettings, build_context_of, read_chain
from ostiary.core.yaml.fields import ConfigSection
from ostiary.errors import OstiaryError, TransportError
from ostiary.keys.address import KeyAddress
from ostiary.model import ClientCertificate, Secret
from ostiary_gateway.settings.kinds import FilePath, Holds, KeyPlace, PrivateKey, Text, unreadable

_HOST = re.compile(r"(?=.{1,253}$)([a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?")
BAD_PORT = "a port is a number, at most 65535"


# --- names ---


def parse_origin(text: str) -> SplitResult:
    """Parse ``https://host:port`` without path or query. Raises `ValueError` with the error message."""
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise ValueError("it contains characters that are not allowed in a URL")
    try:
        url = urlsplit(text)
    except ValueError:
        raise ValueError("it is not a URL") from None
    try:
        port = url.port
    except ValueError:
        raise ValueError(BAD_PORT) from None
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


@dataclass(frozen=True)
class HostName(Text):
    """Name of one host."""

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | None:
        name = (super().read(fields, key, directory) or "").lower()
        if name and not is_host(name):
            fields.problem("it is not the name of a host", key)
        return name or None


# --- TLS ---


# A key address can run a command, so code that only reads a configuration must not open keys.
_opens_keys: ContextVar[bool] = ContextVar("opens_keys", default=False)


@contextmanager
def opening_keys() -> Iterator[None]:
    """Open external keys during checks, until the block ends. For code that is about to use them."""
    before = _opens_keys.set(True)
    try:
        yield
    finally:
        _opens_keys.reset(before)


def opens_keys() -> bool:
    """Report whether a check of settings may open an external key; see `opening_keys`."""
    return _opens_keys.get()


def bad_pair(certificate: Path, key: KeyPlace) -> str | None:
    """Return the error of the pair, or None. An external key is opened only within `opening_keys`."""
    if unreadable(certificate) or (isinstance(key, Path) and unreadable(key)):
        return None  # the unreadable file was already reported
    if isinstance(key, KeyAddress):
        return _bad_device_key(certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With an empty password OpenSSL does not prompt at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError):
        return "it is not a certificate (PEM) that fits the key, or the key has a password"
    return None


def _bad_device_key(certificate: Path, key: KeyAddress) -> str | None:
    from ostiary.keys.opening import check_address

    try:
        if opens_keys():
            device_certificate(certificate, key)
        else:
            check_address(key)
            read_chain(certificate.read_text())
    except OstiaryError as error:
        return ": ".join(filter(None, (error.summary, error.cause)))
    except (OSError, ValueError):
        return "it is not a certificate (PEM)"
    return None


def device_certificate(certificate: Path, key: KeyAddress) -> ClientCertificate:
    """Return the certificate with its key opened.

    Raises `KeyUnusable` or `ConfigurationError`, and `OSError` or `ValueError` for the file.
    """
    # Imported here: needed only for external keys (PKCS#11, TPM).
    from ostiary.keys.opening import open_configured_key
    from ostiary.keys.pairing import pair_with_key

    return pair_with_key(certificate.read_text(), open_configured_key(key), where=key)


def bad_authorities(path: Path) -> str | None:
    if unreadable(path):
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, OSError, ValueError):
        return "there is no certificate (PEM) in the file"
    return None


@dataclass(frozen=True, slots=True)
class OutgoingTls:
    """Trust in a server, and the client certificate presented to it."""

    SCHEMA: ClassVar[Mapping[str, object]] = {"dependentRequired": {"certificate": ["key"], "key": ["certificate"]}}

    ca: Annotated[
        Path | None, FilePath("authorities (PEM) of the server", unset="the system's", holds=Holds.CERTIFICATES)
    ] = None
    certificate: Annotated[
        Path | None, FilePath("what is presented to it (PEM)", holds=Holds.CERTIFICATES, unset="none")
    ] = None
    key: Annotated[KeyPlace | None, PrivateKey("its key", unset="none")] = None
    server_name: Annotated[str | None, HostName("the name to check", unset="the host")] = None

    def check(self, fields: ConfigSection) -> None:
        if (self.certificate is None) != (self.key is None):
            fields.problem("set both the certificate and its key", "certificate" if self.key is None else "key")
        if self.ca is not None and (mistake := bad_authorities(self.ca)):
            fields.problem(mistake, "ca")
        mistake = None if self.certificate is None or self.key is None else bad_pair(self.certificate, self.key)
        if mistake:
            fields.problem(mistake, "certificate")


def client_context(tls: OutgoingTls, authorities_pem: str | None = None) -> ssl.SSLContext:
    """Return the TLS context for a server that the gateway calls. Raises `TransportError` if a file cannot be used.

    *authorities_pem* replaces the file ``ca``, for a server that is not in the configuration.
    """
    return client_context_of(SealedContext, tls, authorities_pem)


def client_context_of(kind: type[ContextT], tls: OutgoingTls, authorities_pem: str | None = None) -> ContextT:
    """Like `client_context`, but with a context class of the caller."""
    try:
        authorities = tls.ca.read_text() if tls.ca is not None else authorities_pem
        certificate = None
        if tls.certificate is not None and tls.key is not None:
            certificate = _certificate(tls.certificate, tls.key)
    except (OSError, ValueError) as error:
        where = getattr(error, "filename", None)
        raise TransportError("a TLS file cannot be read", cause=str(error), where=where) from None
    try:
        return build_context_of(kind, TlsSettings(authorities, server_name=tls.server_name), certificate)
    except ValueError as error:
        # Certificate and key are replaced one after the other: for a moment they do not match.
        raise TransportError("a TLS file cannot be used", cause=str(error), where=str(tls.certificate)) from None


def _certificate(certificate: Path, key: KeyPlace) -> ClientCertificate:
    if isinstance(key, KeyAddress):
        return device_certificate(certificate, key)
    return ClientCertificate(certificate.read_text(), Secret(key.read_text()))
