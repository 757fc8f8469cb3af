"""Authorities that a server's certificate is trusted by, from a file: read, and looked at before anybody is asked.

Whoever named the wrong file is told which one it is; later, when a connection is made, nobody knows its name.
"""

from __future__ import annotations

from ostiary.errors import ConfigurationError, TransportError
from ostiary.model import Place


def authorities(path: str | None) -> str | None:
    """The content of ``--ca``, in PEM; raises `ConfigurationError` with the name of the file."""
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
    """*content* as text, if a server can be trusted by it."""
    # Imported here: for --help it would be the slowest part.
    from ostiary.core.tls import TlsSettings, build_context

    # The comments of a bundle may be in any language; a certificate is ASCII, and OpenSSL takes nothing else.
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
