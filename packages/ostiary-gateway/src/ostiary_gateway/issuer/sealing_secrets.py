"""Secrets that seal signing keys in the token store: the lines of a file. The first line seals; each opens."""

from __future__ import annotations

from ostiary.errors import ConfigurationError
from ostiary.model import Secret

LEAST_CHARACTERS = 32
LARGEST_SECRET_FILE = 16 * 1024


def read_sealing_secrets(path: str) -> tuple[Secret, ...]:
    """Read at least one secret. Raises `ConfigurationError`, which never quotes the file."""
    cause = ""
    try:
        with open(path, "rb") as file:
            lines = [line.strip() for line in file.read(LARGEST_SECRET_FILE).decode("ascii").splitlines()]
        secrets = [line for line in lines if line]
        if not secrets:
            cause = "it is empty"
        elif min(map(len, secrets)) < LEAST_CHARACTERS:
            cause = f"a line is shorter than {LEAST_CHARACTERS} characters"
        else:
            return tuple(map(Secret, secrets))
    except OSError as error:
        cause = error.strerror or type(error).__name__
    except ValueError:
        cause = "it is not ASCII text"
    # Raised outside of the handler: the decoder's exception contains the secret text.
    raise ConfigurationError(
        "the secret that seals signing keys cannot be used",
        cause=cause,
        where=path,
        hint="openssl rand -hex 32 > issuer-secret",
        code="issuer-key-unusable",
    )
