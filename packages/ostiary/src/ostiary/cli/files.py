"""Token files: replace one atomically, because other processes may read it at any time; and read one."""

from __future__ import annotations

import os

from ostiary.core.platform.open_flags import CLOSE_ON_EXEC, NO_FOLLOW
from ostiary.core.platform.private_files import private_files, set_mode
from ostiary.errors import ConfigurationError


def replace_file(path: str, text: str, mode: int) -> None:
    """Replace the file at *path* with *text*. Sets exactly *mode*, regardless of the umask."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.new")
    try:
        if os.path.lexists(temporary):
            # Left over by a process that was killed here.
            os.unlink(temporary)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | CLOSE_ON_EXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            set_mode(descriptor, mode)
            opened.write(text)
        private_files().replace(temporary, path)
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: str, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        "the token cannot be written", cause=error.strerror, where=path, code="token-file-unwritable"
    )


# Token files named by the user with ``--token-file``.


def token_text(path: str) -> str:
    """Return the text of a token file. Raises `ConfigurationError`, which does not quote it."""
    try:
        with open(path, encoding="utf-8") as opened:
            return opened.read(1 << 20)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not text"
        raise ConfigurationError(
            "the token cannot be read", cause=why, where=path, code="token-file-unreadable"
        ) from None
