"""What went wrong between us and Redis, as an error that names the cause. Called by whoever speaks to a server."""

from __future__ import annotations

import ssl

from redis import exceptions

from ostiary.errors import ProviderError


class Unusable(Exception):
    """A server answers, but must not be used: the text says why."""

    def __init__(self, cause: str, hint: str | None = None) -> None:
        super().__init__(cause)
        self.hint = hint


# After these the connections are dropped, and the primary is looked for again.
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
    """What to say of *error*. Its own text is quoted only where a server cannot have put our data into it."""
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
