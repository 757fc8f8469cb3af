"""``--from file``: a JWT that some other program keeps fresh in a file."""

from __future__ import annotations

import os

from ostiary.cli.cached_workload_token import FILE, FILE_VARIABLE, named_token_file
from ostiary.cli.signin.platforms.proof import PlatformChoice, PlatformProof, no_proof, token_from_file
from ostiary.model import Secret

VARIABLE = FILE_VARIABLE.decode()


def find_proof(choice: PlatformChoice) -> PlatformProof:
    path = named_file(choice)
    if path is None:
        raise no_proof("no token file is named", f"--token-file, ${VARIABLE}", "name it: --token-file FILE")
    return proof_in(path, FILE)


def hint_for(choice: PlatformChoice) -> str:
    return f"the file must hold a JWT whose audience is {choice.wanted_audience}; --audience names another one"


def named_file(choice: PlatformChoice) -> str | None:
    """The token file that the command line or the environment names."""
    return named_token_file(choice.as_options(), dict(os.environb))


def proof_in(path: str, platform: str) -> PlatformProof:
    cause: str | None = None
    try:
        token = token_from_file(path)
    except OSError as error:
        cause = f"the token file cannot be read: {error.strerror}"
    except ValueError:
        cause = "what is there is not a JWT"
    if cause is not None:
        # Outside of the handlers: what could not be decoded may be the token.
        raise no_proof(cause, path, "check the path, and that this user may read the file")
    return PlatformProof(platform, Secret(token), path)
