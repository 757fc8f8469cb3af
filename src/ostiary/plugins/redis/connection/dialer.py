"""Opens connections to one server or Sentinel, with TLS and the password as the settings say.

Called by `primary`, which knows which server, and by the listener. No connection repeats anything by itself: whether a
command whose answer was lost has been carried out, only the caller can judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from redis.asyncio.connection import Connection, SSLConnection
from redis.credentials import CredentialProvider
from redis.exceptions import ResponseError

from ostiary.plugins.redis.connection.failures import Unusable
from ostiary.plugins.redis.settings import RedisTls

MOST_PASSWORD_BYTES = 4096

# What a command is made of, and what a server may answer; `ostiary.plugins.redis.rows` knows which answer is which.
Argument = str | bytes | int
Reply = Any


class OpenConnection(Protocol):
    """What we use of redis-py's connections."""

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...

    def pack_commands(self, commands: Sequence[Sequence[Argument]]) -> list[bytes]: ...

    async def send_packed_command(self, command: list[bytes], check_health: bool = True) -> None: ...

    async def read_response(self) -> Reply: ...


@dataclass(frozen=True, slots=True)
class RedisAccount:
    """Who we are at a server. The password is read for every connection: its file is replaced in place."""

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
        # Raised outside of the handler: the decoder's exception carries the text along.
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
    tls: RedisTls | None
    database: int = 0

    async def open(self, host: str, port: int, account: RedisAccount, *, database: int | None = None) -> OpenConnection:
        """A connection that has signed in. Raises one of `failures.FAILURES`."""
        arguments: dict[str, object] = {
            "host": host,
            "port": port,
            "db": self.database if database is None else database,
            # Whole operations have a time limit; parts of them need none.
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
    """The answers to *commands*, which are sent together. An error among them is raised after all have been read."""
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
