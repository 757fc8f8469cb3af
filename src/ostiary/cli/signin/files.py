"""Files that are ours alone, and a lock that one process holds at a time.

Called by `sessions` and `turn`. The folder may be in a home that others can reach, on a machine that many share: what
is read must be a plain file of ours that nobody else may read, and what is written is private from its first byte and
appears whole. How a system protects files is told by `ostiary.core.platform.private_files`.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ostiary.cli.cached_token import LARGEST, state_folder
from ostiary.core.platform.file_locks import file_lock
from ostiary.core.platform.open_flags import CLOSE_ON_EXEC, NO_FOLLOW
from ostiary.core.platform.private_files import private_files
from ostiary.errors import ConfigurationError

LOOK_AGAIN_SECONDS = 0.05
_VARIABLE = "LOCALAPPDATA" if os.name == "nt" else "XDG_STATE_HOME"


def folder() -> str:
    """Where this account of this machine keeps its credentials."""
    # Not what the interpreter was started with, which a program that changes its environment does not change.
    environ = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    home = os.path.expanduser("~")
    fallback = {b"HOME": home, b"LOCALAPPDATA": os.path.join(home, "AppData", "Local")}
    path = state_folder(environ) or state_folder({name: os.fsencode(value) for name, value in fallback.items()})
    if path is None:
        raise ConfigurationError(
            "credentials cannot be stored",
            cause="this account has no home directory",
            hint=f"set {_VARIABLE} to a directory for them",
            code="session-file-unsafe",
        )
    return path


def read(path: str) -> bytes | None:
    """The content; None if there is no such file. Raises `ConfigurationError` if it is not ours alone."""
    try:
        descriptor = private_files().open(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        # A link: whoever may put one here chooses what we read.
        raise _unsafe(path, error.strerror or "it cannot be opened") from None
    with os.fdopen(descriptor, "rb") as file:
        if not private_files().is_private(descriptor, path):
            raise _unsafe(path, "it is not a regular file that you own and only you can read")
        return file.read(LARGEST)


def write(path: str, content: bytes) -> None:
    """Put *content* there, whole or not at all, for us alone."""
    with _reporting(path):
        _ensure_folder(os.path.dirname(path))
        new = f"{path}.{secrets.token_hex(8)}"
        try:
            with os.fdopen(private_files().create(new), "wb") as file:
                file.write(content)
                file.flush()
                # A renewal token is good once: the one before must not come back after a crash of the machine.
                os.fsync(file.fileno())
            private_files().replace(new, path)
        except BaseException:
            remove(new)
            raise


def remove(path: str) -> None:
    with suppress(FileNotFoundError):
        private_files().remove(path)


@contextmanager
def hold_lock(path: str, seconds: float) -> Iterator[bool]:
    """Hold the lock at *path*; False if another process held it for all of *seconds*.

    The system lets go of it when its holder ends, however that ends, so there is nothing to clean up.
    """
    with _reporting(path):
        _ensure_folder(os.path.dirname(path))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW | CLOSE_ON_EXEC, 0o600)
    try:
        yield _lock(descriptor, seconds)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    lock = file_lock()
    while not lock.take(descriptor):
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_AGAIN_SECONDS)
    return True


def _ensure_folder(path: str) -> None:
    private_files().make_folder(path)
    if not private_files().is_own_folder(path):
        raise _unsafe(path, "it is not a directory that you own and only you can write to")


@contextmanager
def _reporting(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigurationError(
            "credentials cannot be stored",
            cause=error.strerror,
            where=path,
            hint=f"set {_VARIABLE} to use another directory",
            code="session-file-unsafe",
        ) from None


def _unsafe(path: str, cause: str) -> ConfigurationError:
    return ConfigurationError(
        "the file that should hold a credential cannot be trusted",
        cause=cause,
        where=path,
        hint="check who created it, remove it, then sign in again: ostiary login",
        code="session-file-unsafe",
    )
