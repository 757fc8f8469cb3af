"""Opens one connection to an upstream, and says in plain words why that failed.

Called by `client.pool`. Checks the pinned certificates of an address before anything is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable

from ostiary.errors import OstiaryError
from ostiary.gateway.http1.client.address import UpstreamAddress
from ostiary.gateway.http1.client.connection import UpstreamConnection


async def dial(
    address: UpstreamAddress, loop: asyncio.AbstractEventLoop, make_connection: Callable[[], UpstreamConnection]
) -> UpstreamConnection:
    """A new connection to *address*; raises what the event loop raises, and `OSError` for a foreign certificate."""
    if address.unix_path is not None:
        _, connection = await loop.create_unix_connection(make_connection, address.unix_path)
        return connection
    _, connection = await loop.create_connection(
        make_connection,
        address.host,
        address.port,
        ssl=address.tls,
        server_hostname=(address.server_name or address.host) if address.tls is not None else None,
    )
    if address.pins:
        _check_pin(connection, address.pins)
    return connection


def _check_pin(connection: UpstreamConnection, pins: frozenset[str]) -> None:
    certificate = connection.transport.peer_certificate()
    if certificate is None or hashlib.sha256(certificate).hexdigest() not in pins:
        connection.transport.abort()
        raise OSError(0, "its certificate does not match tls.pins")


def failure_reason(error: Exception) -> str:
    """Why a connection could not be opened, for the log."""
    if isinstance(error, OstiaryError):
        # Of our own key, which has to sign in the handshake.
        return ": ".join(filter(None, (error.summary, error.cause)))
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate cannot be verified: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS could not be established: {error.reason or 'handshake failed'}"
    if isinstance(error, TimeoutError):
        return "the connection timed out"
    return f"connection failed: {(error.strerror if isinstance(error, OSError) else None) or 'refused'}"
