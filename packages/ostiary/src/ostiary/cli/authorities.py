"""Read CA certificates from a file and validate them before anything is sent.

An error here names the file; an error of the TLS handshake later could not.
"""

from __future__ import annotations

from ostiary.errors import ConfigurationError, TransportError
from ostiary.model import Place


def authorities(path: str | None) -> str | None:
    """Return the content of ``--ca``, in PEM. Raises `ConfigurationError` with the name of the file."""
    if path is None:
        return None
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise ConfigurationError(
            "the CA certificate cannot be read", cause=error.strerror, where=path, code="config-unreadable"
        ) from None
    return checked_authorities(content, where=path)


def checked_authorities(content: bytes, *, where: str | Place) -> str:
    """Return *content* as text if it contains a usable certificate."""
    # Lazy import: it would dominate the time of --help.
    from ostiary.core.tls import TlsSettings, build_context

    # Comments in a bundle may be in any language. Certificates are ASCII, and OpenSSL accepts nothing else.
    pem = content.decode("ascii", "replace").replace("\ufffd", "?")
    try:
        build_context(TlsSettings(pem))
    except TransportError:
        raise ConfigurationError(
            "the CA certificate cannot be used",
            cause="it holds no PEM certificate",
            where=where,
            hint="a PEM certificate begins with -----BEGIN CERTIFICATE-----",
            code="tls-invalid",
        ) from None
    return pem
