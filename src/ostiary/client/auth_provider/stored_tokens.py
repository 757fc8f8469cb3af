"""Writes new tokens into the kubeconfig that they came from, under kubectl's lock. Called by `provider`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from ostiary.client.auth_provider.oidc_tokens import OidcTokens
from ostiary.core.config import CLIENTCMD, parse
from ostiary.core.config.edit import EditRefused, set_value
from ostiary.core.platform.open_flags import CLOSE_ON_EXEC
from ostiary.core.platform.private_files import private_files

ID_TOKEN, REFRESH_TOKEN = "id-token", "refresh-token"


def write_tokens(path: str, user_name: str, tokens: OidcTokens) -> None:
    """Put *tokens* into the kubeconfig at *path*, under kubectl's lock; every other byte stays as it is."""
    with _lock(path):
        text = _read_text(path)
        config = cast("dict[str, Any]", parse(text, file=path, dialect=CLIENTCMD).value)
        users = config.get("users") if isinstance(config, dict) else None
        position = next((at for at, user in enumerate(users or ()) if user.get("name") == user_name), None)
        if position is None:
            raise EditRefused("the user is no longer in it")
        for name, token in ((ID_TOKEN, tokens.id_token), (REFRESH_TOKEN, tokens.refresh_token)):
            if token is not None:
                text = set_value(text, ("users", position, "user", "auth-provider", "config", name), token.reveal())
        _replace(path, text)


def _read_text(path: str) -> str:
    # As it is, line ends included.
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return file.read()
    except UnicodeDecodeError:
        pass
    # Raised outside of the handler: that exception has the whole text in it.
    raise EditRefused("it is not UTF-8 text")


@contextmanager
def _lock(path: str) -> Iterator[None]:
    lock = f"{path}.lock"
    os.close(os.open(lock, os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC, 0o600))
    try:
        yield
    finally:
        os.unlink(lock)


def _replace(path: str, text: str) -> None:
    # What a link leads to is replaced, and not the link.
    real = os.path.realpath(path)
    if not os.path.isfile(real):
        raise EditRefused("it is a device or a pipe, and not a file")
    temporary = f"{real}.ostiary-{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOSE_ON_EXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(temporary, os.stat(real).st_mode & 0o777)
        private_files().replace(temporary, real)
    except BaseException:
        os.unlink(temporary)
        raise
