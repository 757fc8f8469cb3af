"""The program ``ostiary-credential-provider``: one credential provider for many registries, by configuration alone.

    request on stdin -> the sources whose matchImages match, in order -> the first that has a login -> response

    apiVersion: ostiary/v1
    kind: ImageCredentialSources
    sources:
    - matchImages: ["*.example.com"]
      helper: docker-credential-pass             # or authFile, or command, or tokenExchange
      cacheDuration: 10m

Run by the kubelet with ``--config FILE`` among the provider's args. A source that has nothing lets the next one be
asked; one that fails ends the run with its error, since "nothing" would be kept and the reason lost.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from datetime import timedelta

from ostiary.core.go.text import is_text
from ostiary.core.process import Ending, Limits, Outcome, Stderr, find_executable, run
from ostiary.core.secrets.redact import redact, tail
from ostiary.core.text import printable
from ostiary.errors import (
    AnswerInvalid,
    OstiaryError,
    PluginFailed,
    PluginNotFound,
)
from ostiary.model import Secret
from ostiary.registry.credentials import Found
from ostiary.registry.docker.store import HUB_SERVER, TOKEN_USERNAME, DockerHelper, DockerStore
from ostiary.registry.kubelet.sources import Command, Helper, Source, load
from ostiary.registry.kubelet.token_exchange import TokenExchange, exchange_token, json_object, no_credential
from ostiary.registry.matching.image_match import matches
from ostiary.registry.matching.image_name import DOCKER_HUB
from ostiary.wire.credential_provider import (
    BasicAuth,
    CacheKeyType,
    Request,
    Response,
    decode_request,
    encode_response,
)

PROGRAM = "ostiary-credential-provider"
USAGE = f"usage: {PROGRAM} --config FILE"
HELP = f"""\
{USAGE} < REQUEST

One image credential provider for many registries, by configuration alone: docker credential helpers, auth files,
commands and token exchanges. It reads a CredentialProviderRequest as JSON on stdin and prints a
CredentialProviderResponse. The kubelet runs it. To try it by hand:

  ostiary registry check --image IMAGE {PROGRAM} --config FILE
"""
IMAGE_VARIABLE = "OSTIARY_IMAGE"
OK, FAILED, WRONG_USAGE = 0, 1, 2

LARGEST_REQUEST = 1 << 20
STDERR_SHOWN = 2048
# The kubelet kills a provider after a minute, and only the provider: what we started must have ended before.
LIMITS = Limits(seconds=45.0)


# --- one request ---


def respond(request: Request, sources: Iterable[Source]) -> Response:
    """What *sources* say to *request*; raises `CredentialError` or `ConfigurationError`."""
    for source in sources:
        if not any(matches(pattern, request.image) for pattern in source.match_images):
            continue
        found = _ask(source, request)
        if found is not None:
            basic, lifetime = found
            durations = [one for one in (source.cache_duration, lifetime) if one is not None]
            key = _key(request.image, source.cache_key_type)
            return Response(source.cache_key_type, min(durations, default=None), {key: basic})
    # Not kept: somebody who is given access should have it at once.
    return Response(CacheKeyType.IMAGE, timedelta(0))


def _ask(source: Source, request: Request) -> tuple[BasicAuth, timedelta | None] | None:
    """A login, and how long it holds if that is known."""
    registry = request.image.partition("/")[0]
    origin = source.origin
    if isinstance(origin, TokenExchange):
        return exchange_token(origin, request)
    if isinstance(origin, Command):
        basic = _run_command(origin, request.image, registry)
        return None if basic is None else (basic, None)
    if isinstance(origin, Helper):
        login = DockerHelper(origin.suffix, limits=LIMITS).get(_server(registry))
        found = None if login is None else (login.username, login.password, login.identity_token)
    else:
        one = DockerStore(origin.path, limits=LIMITS).find(request.image)
        found = None if one is None else _login_of(one)
    if found is None:
        return None
    username, password, identity_token = found
    if identity_token:
        raise _identity_token(request.image)
    if not (is_text(username) and is_text(password.reveal())):
        raise _not_text(request.image)
    return BasicAuth(username, password), None


def _login_of(found: Found) -> tuple[str, Secret, Secret]:
    return found.username, found.password, found.identity_token


def _server(registry: str) -> str:
    return HUB_SERVER if registry == DOCKER_HUB else registry


def _key(image: str, kept_for: CacheKeyType) -> str:
    registry, _, path = image.partition("/")
    # As a key, an image whose path begins like the registry's API would not match itself.
    whole = kept_for is CacheKeyType.REGISTRY or path.startswith(("v1/", "v2/"))
    return registry if whole else image


def _identity_token(image: str) -> AnswerInvalid:
    return AnswerInvalid(
        no_credential(image),
        cause="the login is an identity token, and the kubelet's protocol has only usernames and passwords",
        hint="use a username and a password, or an access token in place of the password",
        code="docker-helper-answer-invalid",
    )


def _not_text(image: str) -> AnswerInvalid:
    return AnswerInvalid(
        no_credential(image),
        cause="the username or the password is not UTF-8, and the kubelet's protocol is JSON, which is",
        hint="use a username and a password in UTF-8",
        code="docker-helper-answer-invalid",
    )


# --- a command ---


def _run_command(command: Command, image: str, registry: str) -> BasicAuth | None:
    program = command.argv[0]
    executable = find_executable(program)
    try:
        if executable is None:
            raise FileNotFoundError
        outcome = run(
            executable,
            command.argv,
            env={**os.environ, IMAGE_VARIABLE: image},
            stdin=_server(registry).encode(),
            stderr=Stderr.CAPTURE,
            limits=LIMITS,
        )
    except (OSError, ValueError) as error:
        why = "does not exist" if isinstance(error, FileNotFoundError) else "cannot be executed"
        raise PluginNotFound(
            no_credential(image),
            cause=f"the command {printable(program)} {why}",
            hint="give its whole path: the kubelet's PATH may not be yours",
            code="docker-helper-not-found",
        ) from None
    if outcome.ending is not Ending.EXITED or outcome.exit_code != 0:
        raise PluginFailed(
            no_credential(image),
            exit_code=outcome.exit_code if outcome.ending is Ending.EXITED else -1,
            cause=f"the command {printable(program)} failed: {_ending(outcome)}{_said(outcome)}",
            hint="run it by hand to see why",
            code="docker-helper-failed",
        )
    return _printed_login(outcome.stdout, program, image)


def _printed_login(stdout: bytes, program: str, image: str) -> BasicAuth | None:
    fields = json_object(stdout)
    pairs = [(fields.get(name), fields.get(word)) for name, word in (("Username", "Secret"), ("username", "password"))]
    for username, password in pairs:
        if isinstance(username, str) and isinstance(password, str):
            if username == TOKEN_USERNAME:
                raise _identity_token(image)
            return BasicAuth(username, Secret(password)) if username or password else None
    raise AnswerInvalid(
        no_credential(image),
        cause=f"what the command {printable(program)} printed is not a login",
        hint='print {"username": "...", "password": "..."} on stdout and nothing else there',
        code="docker-helper-answer-invalid",
    )


def _ending(outcome: Outcome) -> str:
    return f"exit code {outcome.exit_code}" if outcome.ending is Ending.EXITED else outcome.ending.value


def _said(outcome: Outcome) -> str:
    secrets = outcome.stdout.decode("utf-8", "replace").split()
    text = redact(tail(outcome.stderr_tail, STDERR_SHOWN), secrets=secrets).strip()
    return f"; it said:\n{text}" if text else ""


# --- the program ---


def main(argv: list[str] | None = None) -> int:
    """Answer one request of the kubelet and return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words in (["--help"], ["-h"]):
        print(HELP, end="")  # noqa: T201
        return OK
    path = _config_path(words)
    if path is None:
        print(USAGE, file=sys.stderr)  # noqa: T201
        return WRONG_USAGE
    try:
        sources = load(path)
        request = decode_request(sys.stdin.buffer.read(LARGEST_REQUEST))
        data = encode_response(respond(request, sources), api_version=request.api_version)
    except OstiaryError as error:
        print(f"{PROGRAM}: {printable(str(error))}", file=sys.stderr)  # noqa: T201
        return FAILED
    except Exception as error:
        # A mistake of ours; a traceback would go into the kubelet's log, with who knows what in it.
        print(f"{PROGRAM}: {type(error).__name__}: {redact(str(error))}", file=sys.stderr)  # noqa: T201
        return FAILED
    # At once and whole, and only when nothing can go wrong any more.
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
    return OK


def _config_path(argv: list[str]) -> str | None:
    match argv:
        case ["--config", path]:
            return path
        case [word] if word.startswith("--config="):
            return word.removeprefix("--config=")
    return None


if __name__ == "__main__":
    sys.exit(main())
