"""A file that a person names and that should hold a token. Read by the commands that take ``--token-file``."""

from __future__ import annotations

from ostiary.errors import ConfigurationError


def token_text(path: str) -> str:
    """The text of a file that should hold a token; raises `ConfigurationError`, which does not quote it."""
    try:
        with open(path, encoding="utf-8") as opened:
            return opened.read(1 << 20)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not text"
        raise ConfigurationError(
            "the token cannot be read", cause=why, where=path, code="token-file-unreadable"
        ) from None
