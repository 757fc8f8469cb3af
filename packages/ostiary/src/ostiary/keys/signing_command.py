"""Keys that a command signs with. docs/reference/signing-command.md specifies its input and output.

    exec:/usr/local/bin/sign-with-yubikey --slot 9a

The command runs once when the key is opened, for the public key, and once for each signature.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from ostiary.core.process import Ending, Outcome, RunLimits, Stderr, run
from ostiary.core.redaction import redact, tail
from ostiary.errors import KeyUnusable
from ostiary.keys.address import PublicKey, usable_public_key
from ostiary.model import Secret, SignatureScheme

API_VERSION = "keys.ostiary.dev/v1"
LIMITS = RunLimits(seconds=9.0, stdout_bytes=64 * 1024)
STDERR_SHOWN = 500


class CommandKey:
    """The key provider for the scheme ``exec``."""

    pin_source = ""

    def __init__(self, program: tuple[str, ...]) -> None:
        self._program = program

    @classmethod
    def from_address(cls, address: str, directory: Path) -> Self:
        try:
            command, *arguments = shlex.split(address)
        except ValueError:
            raise ValueError("it is not a command line: it is empty, or a quotation mark is missing") from None
        if not command:
            raise ValueError("the command is empty")
        # A bare name is looked up in PATH; anything else is a path, as in a kubeconfig.
        path = str((directory / Path(command).expanduser()).absolute()) if os.sep in command else command
        return cls((path, *arguments))

    @property
    def program(self) -> tuple[str, ...]:
        return self._program

    def open(self, *, executable: str, pin: Secret | None, asked: bool) -> OpenCommandKey:
        command = _SignatureProgram(executable, self._program)
        text = command.ask("PublicKeyRequest", {})
        try:
            public = usable_public_key(load_pem_public_key(text))
        except (ValueError, UnsupportedAlgorithm):
            raise command.broken("it did not print an EC or RSA public key in PEM") from None
        return OpenCommandKey(command, public)


class OpenCommandKey:
    """An open key that signs by running its command."""

    def __init__(self, command: _SignatureProgram, public_key: PublicKey) -> None:
        self._command = command
        self.public_key = public_key

    def sign(self, digest: bytes, scheme: SignatureScheme) -> bytes:
        request = {"digest": base64.b64encode(digest).decode(), "scheme": scheme.value}
        try:
            signature = base64.b64decode(b"".join(self._command.ask("SignRequest", request).split()), validate=True)
        except binascii.Error:
            signature = b""
        if not signature:
            raise self._command.broken("it did not print a signature in base64")
        return signature

    def close(self) -> None:
        pass


class _SignatureProgram:
    def __init__(self, executable: str, program: tuple[str, ...]) -> None:
        self._executable, self._program = executable, program

    def ask(self, kind: str, request: Mapping[str, str]) -> bytes:
        text = json.dumps({"apiVersion": API_VERSION, "kind": kind, **request}) + "\n"
        try:
            outcome = run(
                self._executable,
                self._program,
                env=os.environ,
                stdin=text.encode(),
                stderr=Stderr.CAPTURE,
                limits=LIMITS,
            )
        except (OSError, ValueError) as error:
            cause = (error.strerror if isinstance(error, OSError) else None) or "it cannot be given these arguments"
            raise self._failure(f"cannot be started: {cause}", code="key-not-found") from None
        if outcome.ending is Ending.EXITED and outcome.exit_code == 0:
            return outcome.stdout
        if outcome.ending is Ending.TIMED_OUT:
            raise self._failure(f"did not end within {LIMITS.seconds:g} s", code="key-device-timeout")
        raise self._failure(_ending(outcome), code="key-device-failed")

    def broken(self, cause: str) -> KeyUnusable:
        return self._failure(f"does not keep the protocol: {cause}", code="key-device-failed")

    def _failure(self, what: str, *, code: str) -> KeyUnusable:
        # Without its arguments, which may hold a secret.
        return KeyUnusable("the signing command has no signature", cause=f"{self._program[0]} {what}", code=code)


def _ending(outcome: Outcome) -> str:
    if outcome.ending is Ending.TOO_MUCH_OUTPUT:
        return "printed more than a signature can be"
    how = (
        f"was ended by signal {-outcome.exit_code}"
        if outcome.exit_code < 0
        else f"failed with exit code {outcome.exit_code}"
    )
    said = redact(tail(outcome.stderr_tail, STDERR_SHOWN)).strip()
    return f"{how}; it said:\n{said}" if said else how
