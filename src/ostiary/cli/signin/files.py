"""Files that are ours alone, and a lock that one process holds at a time.

Called by `sessions` and `turn`. The folder may be in a home that others can reach, on a machine that many share: what
is read must be a plain file of ours that nobody else may read, and what is written is private from its first byte and
appears whole.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ostiary.cli.cached_token import LARGEST, is_private, state_folder
from ostiary.errors import ConfigurationError

LOOK_AGAIN_SECONDS = 0.05


def folder() -> str:
    """Where this account of this machine keeps its credentials."""
    # Not posix.environ, which a program that changes its environment does not change.
    return state_folder(dict(os.environb)) or os.path.join(
        os.path.expanduser("~"), ".local", "state", f"ostiary-{os.geteuid()}"
    )


def read(path: str) -> bytes | None:
    """The content; None if there is no such file. Raises `ConfigurationError` if it is not ours alone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        # A link: whoever may put one here chooses what we read.
        raise _unsafe(path, error.strerror or "it cannot be opened") from None
    with os.fdopen(descriptor, "rb") as file:
        if not is_private(os.fstat(descriptor)):
            raise _unsafe(path, "it is not a regular file that you own and only you can read")
        return file.read(LARGEST)


def write(path: str, content: bytes) -> None:
    """Put *content* there, whole or not at all, for us alone."""
    with _reporting(path):
        _ensure_folder(os.path.dirname(path))
        new = f"{path}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(new, flags, 0o600), "wb") as file:
                file.write(content)
                file.flush()
                # A renewal token is good once: the one before must not come back after a crash of the machine.
                os.fsync(file.fileno())
            os.replace(new, path)
        except BaseException:
            remove(new)
            raise


def remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


@contextmanager
def hold_lock(path: str, seconds: float) -> Iterator[bool]:
    """Hold the lock at *path*; False if another process held it for all of *seconds*.

    The system lets go of it when its holder ends, however that ends, so there is nothing to clean up.
    """
    with _reporting(path):
        _ensure_folder(os.path.dirname(path))
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield _lock(descriptor, seconds)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_AGAIN_SECONDS)


def _ensure_folder(path: str) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    # 0o022: whoever may write here can take our files away and put back old ones.
    if status.st_uid != os.geteuid() or status.st_mode & 0o170000 != 0o040000 or status.st_mode & 0o022:
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
            hint="set XDG_STATE_HOME to use another directory",
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
