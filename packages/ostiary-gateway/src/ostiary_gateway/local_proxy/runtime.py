"""The folder of the control socket, which only the user may access."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from ostiary.cli.quick_token import runtime_folder, socket_path
from ostiary.errors import ConfigurationError

# The longest path of a Unix socket without the final NUL. This is the limit of macOS, which is a little below that of
# Linux.
LONGEST_PATH = 103


def ensured_folder() -> str:
    """Create the folder and check it.

    Raises `ConfigurationError` if it is not private to the user, or cannot be created.
    """
    folder = runtime_folder(dict(os.environb))
    if folder is None:
        raise ConfigurationError(
            "there is no folder for the socket of ostiary connect",
            cause="neither XDG_RUNTIME_DIR nor HOME is an absolute path",
            hint="set XDG_RUNTIME_DIR to a folder that is yours alone",
            code="connect-unavailable",
        )
    if len(os.fsencode(socket_path(folder))) > LONGEST_PATH:
        raise ConfigurationError(
            "the folder for the socket of ostiary connect cannot be used",
            cause=f"the path of the socket is longer than {LONGEST_PATH} bytes",
            where=folder,
            hint="set XDG_RUNTIME_DIR to a folder with a shorter path",
            code="connect-unavailable",
        )
    try:
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
    except OSError as error:
        raise ConfigurationError(
            "the folder for the socket of ostiary connect cannot be made",
            cause=error.strerror,
            where=folder,
            hint="set XDG_RUNTIME_DIR to a folder that is yours alone",
            code="connect-unavailable",
        ) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise foreign_socket(folder, "the folder is not yours alone")
    return folder


def foreign_socket(where: str | None, cause: str) -> ConfigurationError:
    return ConfigurationError(
        "the socket of ostiary connect belongs to somebody else",
        cause=cause,
        where=where,
        hint="find out who made it; nothing was sent there. Another XDG_RUNTIME_DIR avoids it",
        code="connect-socket-foreign",
    )
