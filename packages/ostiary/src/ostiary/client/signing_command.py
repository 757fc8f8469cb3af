"""A `RequestSigner` that runs a command for each request, for kubeconfigs and for signers in any language.

The request is written to the command's stdin and the headers are read from its stdout, as ``RequestSignature`` JSON.
The body and the credential never appear in arguments or environment variables.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from ostiary.client.exec.plugin import ExecSettings
from ostiary.client.exec.policy import AllowAll, Plan, PluginPolicy
from ostiary.client.signing import RequestSigner, RequestToSign
from ostiary.core.process import Ending, Outcome, RunLimits, Stderr, find_executable, run
from ostiary.core.redaction import redact, tail
from ostiary.errors import ConfigurationError, RequestNotSigned
from ostiary.kubeconfig import SigningConfig, User
from ostiary.model import Place

# ``RequestSignature``: the input and the output of a signing command.
#
#     {"apiVersion": "ostiary.dev/v1", "kind": "RequestSignature",
#      "spec": {"method": "POST", "url": "https://...", "headers": [{"name": "Host", "value": "..."}],
#               "body": "<base64>"}}
#
#     {"apiVersion": "ostiary.dev/v1", "kind": "RequestSignature",
#      "status": {"headers": [{"name": "Signature", "value": "..."}]}}

API_VERSION = "ostiary.dev/v1"
KIND = "RequestSignature"


class SignatureRefused(ValueError):
    """The output of a signing command is invalid. The message never quotes it."""


def encode_request(method: str, url: str, headers: Sequence[tuple[str, str]], content: bytes | None) -> bytes:
    """Encode the input of a signing command. *content* is None for a streamed body."""
    spec: dict[str, Any] = {
        "method": method,
        "url": url,
        "headers": [{"name": name, "value": value} for name, value in headers],
    }
    spec |= {"streamed": True} if content is None else {"body": b64encode(content).decode("ascii")}
    return json.dumps({"apiVersion": API_VERSION, "kind": KIND, "spec": spec}).encode() + b"\n"


def decode_signature(stdout: bytes) -> list[tuple[str, str]]:
    """Return the headers that a signing command adds. Raises `SignatureRefused`."""
    try:
        document = json.loads(stdout)
    except (ValueError, RecursionError):
        raise SignatureRefused("what it printed on stdout is not one JSON object") from None
    if not isinstance(document, dict):
        raise SignatureRefused("what it printed on stdout is not one JSON object")
    if document.get("apiVersion") != API_VERSION or document.get("kind") != KIND:
        raise SignatureRefused(f"its answer is not of apiVersion {API_VERSION} and kind {KIND}")
    status = document.get("status")
    headers = status.get("headers") if isinstance(status, dict) else None
    if not isinstance(headers, list) or not headers:
        raise SignatureRefused("its answer has no status.headers, or none in it")
    return [_pair(header) for header in headers]


def _pair(header: object) -> tuple[str, str]:
    if isinstance(header, dict):
        name, value = header.get("name"), header.get("value")
        if isinstance(name, str) and isinstance(value, str):
            return name, value
    raise SignatureRefused("a header of its answer has no name and value that are strings")


SECONDS = 30.0
AT_ONCE = 16
STDERR_SHOWN = 2048
LONGEST_REDACTED = 65536


class SigningCommand:
    """Run ``command args...`` for each request.

    *streamed* declares that the command can sign a request without its body. *policy* checks the command before each
    run, like an exec plugin. At most 16 commands run at a time.
    """

    def __init__(
        self,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        streamed: bool = False,
        policy: PluginPolicy | None = None,
        seconds: float = SECONDS,
        place: Place | None = None,
        clean_environment: bool = False,
    ) -> None:
        self._command, self._args, self._env = command, tuple(args), dict(env or {})
        self._streamed, self._policy, self._seconds, self._place = streamed, policy or AllowAll(), seconds, place
        self._clean_environment = clean_environment
        self._slots = threading.BoundedSemaphore(AT_ONCE)

    @classmethod
    def from_config(
        cls, config: SigningConfig, *, policy: PluginPolicy, seconds: float, clean_environment: bool
    ) -> SigningCommand:
        return cls(
            config.command,
            config.args,
            env=dict(config.env),
            streamed=config.streamed,
            policy=policy,
            seconds=seconds,
            place=config.place,
            clean_environment=clean_environment,
        )

    def __repr__(self) -> str:
        return f"SigningCommand({self._command!r})"

    def sign(self, request: RequestToSign) -> list[tuple[str, str]]:
        # Unless the command accepts streamed requests, a streamed body is an error, which `body` raises.
        content = request.content if self._streamed else request.body
        request_json = encode_request(request.method, request.url, request.headers, content)
        executable = self._permit()
        with self._slots:
            outcome = self._run(executable, request_json)
        if outcome.ending is not Ending.EXITED or outcome.exit_code != 0:
            raise self._error(self._ending(outcome) + self._stderr(outcome, request), hint="run it by hand to see why")
        try:
            return decode_signature(outcome.stdout)
        except SignatureRefused as refused:
            raise self._error(str(refused), hint="print one RequestSignature; write messages to stderr") from None

    def _permit(self) -> str:
        plan = Plan(self._command, find_executable(self._command), self._args, tuple(self._env), place=self._place)
        executable = self._policy.check(plan)
        if plan.executable is None:
            raise self._error("there is no such command", hint="install it, or correct the command")
        return executable

    def _run(self, executable: str, request_json: bytes) -> Outcome:
        try:
            return run(
                executable,
                (self._command, *self._args),
                env={**({} if self._clean_environment else os.environ), **self._env},
                stdin=request_json,
                # Captured, not inherited: the command received the credential and the body, and may print them.
                stderr=Stderr.CAPTURE,
                limits=RunLimits(seconds=self._seconds),
            )
        except (OSError, ValueError) as error:
            why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "an argument holds a NUL"
            raise self._error(f"it cannot be started: {why}", hint="check that it can be executed") from None

    def _ending(self, outcome: Outcome) -> str:
        if outcome.ending is Ending.TIMED_OUT:
            return f"it did not end within {self._seconds:g} s"
        if outcome.ending is Ending.TOO_MUCH_OUTPUT:
            return "it printed more than a signature can be"
        return f"it failed with exit code {outcome.exit_code}"

    def _stderr(self, outcome: Outcome, request: RequestToSign) -> str:
        header_words = [word for _, value in request.headers for word in value.split()]
        secrets = [*self._env.values(), *header_words, *_words(outcome.stdout), *_words(request.content or b"")]
        text = redact(tail(outcome.stderr_tail, STDERR_SHOWN), secrets=[word for word in secrets if len(word) > 5])
        return f"; it said:\n{text.strip()}" if text.strip() else ""

    def _error(self, cause: str, *, hint: str) -> RequestNotSigned:
        return RequestNotSigned(
            "the request was not sent: it could not be signed",
            cause=f"signing command {self._command!r}: {cause}",
            where=self._place,
            hint=hint,
        )


def _words(text: bytes) -> list[str]:
    """Split into words to redact. Only the beginning of a long text matters, because stderr is truncated."""
    return text[:LONGEST_REDACTED].decode("utf-8", "replace").replace('"', " ").split()


# Selection of a connection's signer: the application's, or the command that the kubeconfig's user names.

log = logging.getLogger("ostiary.client")


def check_signer(signer: object) -> None:
    """Raise `ConfigurationError` if *signer* cannot sign."""
    if signer is None or (isinstance(signer, RequestSigner) and not isinstance(signer, type)):
        return
    raise ConfigurationError(
        f"{signer.__name__ if isinstance(signer, type) else type(signer).__name__} cannot be used as a request signer",
        cause="it is a class, or it has no method sign(request)",
        hint="pass an object whose sign(request) returns the headers to add",
    )


def signer_for(
    user: User, signer: RequestSigner | None, *, has_own_source: bool, settings: ExecSettings
) -> RequestSigner | None:
    """Return the application's signer, else the signing command of *user*.

    The command is not used if the application has its own source: it would receive a credential that is not the
    kubeconfig's.
    """
    if user.signing is None:
        return signer
    if signer is not None or has_own_source:
        own = "a signer" if signer is not None else "a source"
        log.warning("the signing command of user %r is not used: the program brings %s of its own", user.name, own)
        return signer
    return SigningCommand.from_config(
        user.signing,
        policy=settings.policy,
        seconds=settings.seconds,
        clean_environment=settings.clean_environment,
    )
