"""Settings for a server that we call: its URL, its name, and how TLS is spoken with it.

Used by the declarations of the gateway and of providers. Pure, except that files are looked at.
"""

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
    """The name of one host."""

    def read(self, fields: ConfigSection, key: str, directory: Path) -> str | None:
        name = (super().read(fields, key, directory) or "").lower()
        if name and not is_host(name):
            fields.problem("it is not the name of a host", key)
        return name or None


# --- TLS ---


# An address can have us run a command, so whoever only reads a configuration opens no key.
_opens_keys: ContextVar[bool] = ContextVar("opens_keys", default=False)


@contextmanager
def opening_keys() -> Iterator[None]:
    """Within it, keys that are kept elsewhere are opened to check them: for who is about to use the configuration."""
    before = _opens_keys.set(True)
    try:
        yield
    finally:
        _opens_keys.reset(before)


def opens_keys() -> bool:
    """Whether a check of settings may open a key that is kept elsewhere; see `opening_keys`."""
    return _opens_keys.get()


def bad_pair(certificate: Path, key: KeyPlace) -> str | None:
    """What is wrong with the two. A key that is kept elsewhere is opened only within `opening_keys`."""
    if unreadable(certificate) or (isinstance(key, Path) and unreadable(key)):
        return None  # it has been noted
    if isinstance(key, KeyAddress):
        return _bad_device_key(certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # With an empty password openssl does not ask for one at the terminal.
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
    """The two, with the key open. Raises `KeyUnusable`, `ConfigurationError`; for the file `OSError`, `ValueError`."""
    # Imported here: only those need it whose key is kept elsewhere.
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
    """How to trust a server, and what to present to it."""

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
    """The context for a server that we call; raises `TransportError` if a file cannot be used.

    *authorities_pem* is in the place of the file ``ca``, for a server that no configuration names.
    """
    return client_context_of(SealedContext, tls, authorities_pem)


def client_context_of(kind: type[ContextT], tls: OutgoingTls, authorities_pem: str | None = None) -> ContextT:
    """The same, of a class of the caller's."""
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
        # Certificate and key are replaced one after the other: for a moment they are not a pair.
        raise TransportError("a TLS file cannot be used", cause=str(error), where=str(tls.certificate)) from None


def _certificate(certificate: Path, key: KeyPlace) -> ClientCertificate:
    if isinstance(key, KeyAddress):
        return device_certificate(certificate, key)
    return ClientCertificate(certificate.read_text(), Secret(key.read_text()))
