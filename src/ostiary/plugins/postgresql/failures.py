"""What the database or the way to it has answered, as a cause that an operator understands, and what follows from it.

Called by `database` and `connections`. Nothing of it quotes a statement, a value or a password.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, replace

import asyncpg

from ostiary.errors import OstiaryError


class StoreFailure(Exception):
    """A cause of our own making, with a hint."""

    def __init__(self, cause: str, hint: str | None = None) -> None:
        super().__init__(cause)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class FailureExplanation:
    """What is wrong, and what follows from it for the call that failed.

    `undone`: it has certainly changed nothing. `elsewhere`: another connection may be of more use. `slow`: it took so
    long that there is no time for another attempt. `conflict`: the same call is likely to pass at once.
    """

    cause: str
    hint: str | None = None
    undone: bool = False
    elsewhere: bool = False
    slow: bool = False
    conflict: bool = False


_READ_ONLY = "the server takes no writes: it is a standby, or read-only"
# By SQLSTATE, or its class of two characters: what it means, and what to do about it.
_BY_STATE: dict[str, FailureExplanation] = {
    "25006": FailureExplanation(_READ_ONLY, undone=True, elsewhere=True),
    # What a standby says to BEGIN READ WRITE.
    "0A000": FailureExplanation(_READ_ONLY, undone=True, elsewhere=True),
    "28P01": FailureExplanation("the password is wrong", "correct the file of store.passwordFile"),
    "28": FailureExplanation("the server refuses this role", "look at pg_hba.conf of the server"),
    "3D000": FailureExplanation("the database does not exist", "create it, or correct store.database"),
    "40": FailureExplanation("two calls were in each other's way", undone=True, conflict=True),
    "42501": FailureExplanation("the role lacks a privilege", "grant what the guide of this store lists", undone=True),
    "42P01": FailureExplanation("the schema is damaged: a table is missing", undone=True),
    "42": FailureExplanation(
        "the schema is damaged: a table, a column or a function is missing or changed", undone=True
    ),
    "XX001": FailureExplanation("the schema is damaged: the row of the table state is missing", undone=True),
    "53100": FailureExplanation(
        "the disk of the database is full", "free disk space on the database server", undone=True
    ),
    "53300": FailureExplanation(
        "the server has no connection left", "raise max_connections, or lower store.connections"
    ),
    "53": FailureExplanation("the server lacks resources", undone=True),
    "57014": FailureExplanation("the database took too long: it is slow, or a lock is held", undone=True, slow=True),
    "57P03": FailureExplanation("the server is starting or stopping", elsewhere=True, undone=True),
    "57": FailureExplanation("the server is going down", elsewhere=True),
    "08": FailureExplanation("the connection broke", elsewhere=True),
}
_DAMAGED_HINT = "restore the schema from a backup, or drop it: then everybody signs in again"


def explain(error: BaseException) -> FailureExplanation:
    if isinstance(error, StoreFailure):
        return FailureExplanation(str(error), error.hint)
    if isinstance(error, OstiaryError):
        return FailureExplanation(error.cause or error.summary, error.hint)
    if isinstance(error, asyncpg.PostgresError):
        return _explain_answer(error)
    if isinstance(error, TimeoutError):
        cause = "the database did not answer in time: it hangs, or cannot be reached"
        return FailureExplanation(cause, elsewhere=True, slow=True)
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "correct store.tls.ca or store.tls.serverName"
        return FailureExplanation(
            f"the server's certificate is not accepted: {error.verify_message}", hint, elsewhere=True
        )
    if isinstance(error, ssl.SSLError):
        return FailureExplanation(f"TLS failed: {error.reason or 'the server ended the connection'}", elsewhere=True)
    if isinstance(error, OSError):
        return FailureExplanation(f"the database cannot be reached: {_reason(error)}", elsewhere=True)
    # What asyncpg says of a connection that ended while it was in use.
    return FailureExplanation("the connection broke", elsewhere=True)


def _explain_answer(error: asyncpg.PostgresError) -> FailureExplanation:
    state = getattr(error, "sqlstate", None) or ""
    explanation = _BY_STATE.get(state) or _BY_STATE.get(state[:2])
    if explanation is None:
        return FailureExplanation(f"the database refused the call (SQLSTATE {state or 'unknown'})", undone=True)
    # The server's own words name the table or the role that is meant; they are in one line and hold no value.
    words = " ".join(str(error.args[0] if error.args else "").split())[:200]
    cause = (
        f"{explanation.cause} ({words})" if words and state[:2] in ("28", "3D", "42", "53", "57") else explanation.cause
    )
    hint = _DAMAGED_HINT if explanation.cause.startswith("the schema is damaged") else explanation.hint
    return replace(explanation, cause=cause, hint=hint)


def _reason(error: OSError) -> str:
    if error.strerror and "Connect call failed" not in error.strerror:
        return error.strerror
    return "connection refused" if isinstance(error, ConnectionRefusedError) else type(error).__name__
