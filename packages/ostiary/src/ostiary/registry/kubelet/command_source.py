"""Runs a command that prints a login, one of the sources of ``ostiary-credential-provider``."""

from __future__ import annotations

import os

from ostiary.core.process import Ending, Outcome, RunLimits, Stderr, find_executable, run
from ostiary.core.redaction import redact, tail
from ostiary.core.text import printable
from ostiary.errors import AnswerInvalid, PluginFailed, PluginNotFound
from ostiary.model import Secret
from ostiary.registry.docker_helper_protocol import TOKEN_USERNAME
from ostiary.registry.kubelet.source_response import identity_token_error, json_object, no_credential
from ostiary.registry.kubelet.sources import Command
from ostiary.wire.credential_provider import BasicAuth

IMAGE_VARIABLE = "OSTIARY_IMAGE"
STDERR_SHOWN = 2048


def run_command(command: Command, image: str, *, server: str, seconds: float) -> BasicAuth | None:
    program = command.argv[0]
    executable = find_executable(program)
    try:
        if executable is None:
            raise FileNotFoundError
        outcome = run(
            executable,
            command.argv,
            env={**os.environ, IMAGE_VARIABLE: image},
            stdin=server.encode(),
            stderr=Stderr.CAPTURE,
            limits=RunLimits(seconds=seconds),
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
            cause=f"the command {printable(program)} failed: {_ending(outcome)}{_stderr_of(outcome)}",
            hint="run it by hand to see why",
            code="docker-helper-failed",
        )
    return _read_login(outcome.stdout, program, image)


def _read_login(stdout: bytes, program: str, image: str) -> BasicAuth | None:
    fields = json_object(stdout)
    pairs = [(fields.get(name), fields.get(word)) for name, word in (("Username", "Secret"), ("username", "password"))]
    for username, password in pairs:
        if isinstance(username, str) and isinstance(password, str):
            if username == TOKEN_USERNAME:
                raise identity_token_error(image)
            return BasicAuth(username, Secret(password)) if username or password else None
    raise AnswerInvalid(
        no_credential(image),
        cause=f"what the command {printable(program)} printed is not a login",
        hint='print {"username": "...", "password": "..."} on stdout and nothing else there',
        code="docker-helper-answer-invalid",
    )


def _ending(outcome: Outcome) -> str:
    return f"exit code {outcome.exit_code}" if outcome.ending is Ending.EXITED else outcome.ending.value


def _stderr_of(outcome: Outcome) -> str:
    secrets = outcome.stdout.decode("utf-8", "replace").split()
    text = redact(tail(outcome.stderr_tail, STDERR_SHOWN), secrets=secrets).strip()
    return f"; it said:\n{text}" if text else ""
