"""Errors of the daemon client for users. Separate from `relay`, which must not import them."""

from __future__ import annotations

from ostiary.core.text import printable
from ostiary.errors import ConfigurationError, CredentialError, OstiaryError
from ostiary.registry.daemon.client import ForeignSocket, NoAnswer
from ostiary.registry.user_config import NO_SOCKET, SOCKET_VARIABLE


def error_for(path: str, error: Exception) -> OstiaryError:
    """Return the error for an exception that `client.ask` raised."""
    if isinstance(error, ForeignSocket):
        return ConfigurationError(
            "the socket of the credential daemon belongs to somebody else",
            cause=str(error),
            where=printable(path),
            hint=f"find out who listens there; to go on without a daemon: {SOCKET_VARIABLE}={NO_SOCKET}",
            code="registry-socket-not-ours",
        )
    if isinstance(error, NoAnswer):
        return CredentialError(
            "the credential daemon cannot be asked",
            cause=error.reason or "nobody listens there",
            where=printable(path),
            hint="start it: ostiary registry serve",
            code="registry-daemon-unreachable",
        )
    return CredentialError(
        "the credential daemon has not answered in time",
        where=printable(path),
        hint=f"see what its providers wait for; to go on without a daemon: {SOCKET_VARIABLE}={NO_SOCKET}",
        code="registry-daemon-unreachable",
    )
