"""Connections to one Redis server or Sentinel, and their errors.

Connections never repeat a command: only the caller knows whether that is safe when the response was lost.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from redis import exceptions
from redis.asyncio.connection import Connection, SSLConnection
from redis.credentials import CredentialProvider
from redis.exceptions import ResponseError

from ostiary.errors import ProviderError
from ostiary_gateway.stores.redis.settings import RedisTls

# Errors.


class Unusable(Exception):
    """The server responds, but must not be used: the text says why."""

    def __init__(self, cause: str, hint: str | None = None) -> None:
        super().__init__(cause)
        self.hint = hint


# After these errors, the connections are closed and the primary is looked up again.
MOVED_AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.MovedError,
    exceptions.AskError,
    exceptions.ClusterDownError,
    exceptions.InvalidResponse,
    OSError,
    TimeoutError,
    Unusable,
)
# What any call may raise.
FAILURES = (*MOVED_AWAY, exceptions.RedisError)
# A primary without its replicas may have been replaced by one of them.
_WITHOUT_REPLICAS = "NOREPLICAS"


def has_moved_away(error: BaseException) -> bool:
    return isinstance(error, MOVED_AWAY) or str(error).startswith(_WITHOUT_REPLICAS)


def unavailable(error: BaseException, where: str) -> ProviderError:
    cause, hint = _cause_of(error)
    return ProviderError(
        "the token store cannot be used", cause=cause, where=where, hint=hint, code="token-store-unavailable"
    )


def _cause_of(error: BaseException) -> tuple[str, str | None]:
    """Describe *error*. Its own text is quoted only where a server cannot have put our data into it."""
    if isinstance(error, Unusable):
        return str(error), error.hint
    for kind, cause, hint in _CAUSES:
        if isinstance(error, kind):
            return cause, hint
    text = str(error)
    for code, cause, hint in _CODES:
        if text.startswith(code):
            return cause, hint
    if isinstance(error, exceptions.NoPermissionError):
        return f"the user of the token store lacks a right: {_first_line(text)}", "the how-to lists the rights it needs"
    return _connection_cause(error)


_CAUSES: tuple[tuple[type[BaseException], str, str | None], ...] = (
    (
        exceptions.AuthenticationError,
        "Redis refuses the user or the password",
        "compare username and passwordFile with the server's ACL",
    ),
    (exceptions.BusyLoadingError, "Redis is loading its data", None),
    (
        exceptions.ReadOnlyError,
        "the server is a read-only replica",
        "name the primary, or the Sentinels, which know it",
    ),
    (exceptions.OutOfMemoryError, "Redis is full: its maxmemory is used up", "give it more memory"),
    (exceptions.MasterDownError, "the replica has lost its primary", None),
    (exceptions.ClusterDownError, "the cluster is down", None),
    (exceptions.MovedError, "the slot of the keys has moved to another node", None),
    (exceptions.AskError, "the slot of the keys is moving to another node", None),
)
_CODES = (
    (
        _WITHOUT_REPLICAS,
        "the primary has fewer replicas than min-replicas-to-write asks for",
        "bring its replicas back",
    ),
    (
        "MISCONF",
        "Redis cannot write to its disk, and therefore takes no writes",
        "free disk space on the server; its log says more",
    ),
    ("BUSY", "a script keeps the server busy", None),
)


def _connection_cause(error: BaseException) -> tuple[str, str | None]:
    if isinstance(error, (TimeoutError, exceptions.TimeoutError)):
        return "Redis does not answer in time", None
    certificate = _certificate_error(error)
    if certificate is not None:
        return f"the certificate of the server is not accepted: {certificate.verify_message}", None
    if isinstance(error, (exceptions.ConnectionError, OSError)):
        return f"no connection to Redis: {_first_line(str(error))}", None
    return f"Redis answers with an error: {_first_line(str(error))}", None


def _certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _first_line(text: str) -> str:
    return text.splitlines()[0][:200].rstrip(".") if text else "no reason given"


MOST_PASSWORD_BYTES = 4096

# Arguments of a command, and responses of a server; `ostiary_gateway.stores.redis.rows` decodes them.
Argument = str | bytes | int
Reply = Any


class OpenConnection(Protocol):
    """The methods of redis-py's connections that are used here."""

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...

    def pack_commands(self, commands: Sequence[Sequence[Argument]]) -> list[bytes]: ...

    async def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...

    async def read_response(self) -> Reply: ...


@dataclass(frozen=True, slots=True)
class RedisAccount:
    """Credentials at a server. The password is read for every connection: its file is replaced in place."""

    username: str = ""
    password_file: Path | None = None

    def credentials(self) -> tuple[str, ...]:
        if self.password_file is None:
            return ()
        try:
            with open(self.password_file, "rb") as file:
                text = file.read(MOST_PASSWORD_BYTES).decode().rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        else:
            if text:
                return (self.username, text) if self.username else (text,)
            reason = "it is empty"
        # Raised outside of the handler: the decoder's exception would contain the password.
        raise Unusable(f"the password file {self.password_file} cannot be read: {reason}")


class _AccountCredentials(CredentialProvider):
    def __init__(self, account: RedisAccount) -> None:
        self._account = account

    def get_credentials(self) -> tuple[str, ...]:  # type: ignore[override]  # redis-py takes one or two texts
        return self._account.credentials()

    async def get_credentials_async(self) -> tuple[str, ...]:  # type: ignore[override]
        # Without it redis-py calls the other one, and logs a warning for each connection.
        return self.get_credentials()


@dataclass(frozen=True, slots=True)
class Dialer:
    """Open authenticated connections to Redis servers and Sentinels."""

    tls: RedisTls | None
    database: int = 0

    async def open(self, host: str, port: int, account: RedisAccount, *, database: int | None = None) -> OpenConnection:
        """Return an authenticated connection. Raises one of `FAILURES`."""
        arguments: dict[str, object] = {
            "host": host,
            "port": port,
            "db": self.database if database is None else database,
            # Whole operations have a timeout; parts of them need none.
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "protocol": 2,
        }
        if account.password_file is not None:
            arguments["credential_provider"] = _AccountCredentials(account)
        kind: Any = Connection
        if self.tls is not None:
            kind = SSLConnection
            arguments["ssl_ca_certs"] = _text(self.tls.ca)
            arguments["ssl_certfile"] = _text(self.tls.certificate)
            arguments["ssl_keyfile"] = _text(self.tls.key)
        connection = cast("OpenConnection", kind(**arguments))
        await connection.connect()
        return connection


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


async def ask(connection: OpenConnection, *commands: Sequence[Argument]) -> list[Reply]:
    """Send *commands* together; return the responses. An error among them is raised after all have been read."""
    await connection.send_packed_command(connection.pack_commands(commands), check_health=False)
    replies: list[Reply] = []
    failure: Exception | None = None
    for _ in commands:
        try:
            replies.append(await connection.read_response())
        except ResponseError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return replies
