"""The kubeconfig that a person has: which file it is, locked as kubectl does, backed up, and replaced in one step.

Called by `command`. Everybody who reads the file sees the old text or the new one.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from ostiary.core.platform.open_flags import CLOSE_ON_EXEC
from ostiary.core.platform.private_files import private_files, set_mode
from ostiary.errors import ConfigurationError


def kubeconfig_files() -> list[str]:
    """The files that kubectl reads; the first one is written to."""
    listed = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return [os.path.abspath(path) for path in listed or [os.path.expanduser("~/.kube/config")]]


def check_regular(path: str) -> None:
    """The file is replaced by a new one, which would be the end of a device such as /dev/null."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # It is made, or whoever reads it tells what is wrong.
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigurationError(
            "the kubeconfig cannot be changed in place",
            cause="it is a device or a pipe, and not a file",
            where=path,
            hint="name a file in $KUBECONFIG, or write a new one with --write",
            code="config-unreadable",
        )


def content_of(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigurationError(
            "the kubeconfig cannot be read", cause=error.strerror, where=path, code="config-unreadable"
        ) from None


def text_of(content: bytes, path: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        pass
    raise ConfigurationError(
        "the kubeconfig cannot be changed in place", cause="it is not UTF-8 text", where=path, code="config-syntax"
    )


def _create(path: str, content: bytes, mode: int = 0o600) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        set_mode(descriptor, mode)
        file.write(content)


def write_new(path: str, content: bytes) -> None:
    try:
        _create(path, content)
    except OSError as error:
        raise _unwritable(path, error, hint="name a new file, or use --merge") from None


def back_up(path: str, content: bytes) -> str:
    """A copy of the file as it is, as private as the file itself. An older copy is never overwritten."""
    real = os.path.realpath(path)
    number = 1
    while os.path.lexists(f"{real}.backup-{number}"):
        number += 1
    try:
        _create(f"{real}.backup-{number}", content, _mode(real))
    except OSError as error:
        raise _unwritable(f"{real}.backup-{number}", error) from None
    return f"{real}.backup-{number}"


def replace(path: str, content: bytes) -> None:
    """A kubectl that reads at this moment sees the old file or the new one; its permissions stay as they are."""
    real = os.path.realpath(path)
    new = f"{real}.{secrets.token_hex(4)}"
    try:
        _create(new, content, _mode(real))
        private_files().replace(new, real)
    except OSError as error:
        with suppress(OSError):
            os.unlink(new)
        raise _unwritable(path, error) from None


def _mode(path: str) -> int:
    return os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o600


@contextmanager
def hold_lock(path: str) -> Iterator[None]:
    """The lock that ``kubectl config`` uses: beside the file as it is named, and beside what a link leads to."""
    with ExitStack() as locks:
        for name in dict.fromkeys((path, os.path.realpath(path))):
            locks.enter_context(_lock(name, path))
        yield


@contextmanager
def _lock(name: str, path: str) -> Iterator[None]:
    lock = f"{name}.lock"
    try:
        os.makedirs(os.path.dirname(name), mode=0o700, exist_ok=True)
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC, 0o600))
    except OSError as error:
        raise _unwritable(path, error, hint=f"if no other process is changing the file, remove {lock}") from None
    try:
        yield
    finally:
        os.unlink(lock)


def _unwritable(path: str, error: OSError, hint: str | None = None) -> ConfigurationError:
    return ConfigurationError(
        "the kubeconfig cannot be written", cause=error.strerror, where=path, hint=hint, code="config-unreadable"
    )
