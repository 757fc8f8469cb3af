"""Runs a credential provider once: an image on stdin, a `Response` or one clear error as the result.

Like in the kubelet, the executable gets our environment and the configured variables. Unlike there, everything it
started is ended with it, its output is bounded, and its stderr is redacted before it becomes part of an error.
"""

from __future__ import annotations

import errno
import os
import re
from typing import TypedDict

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.process import DEFAULT_LIMITS, Ending, Outcome, RunLimits, Stderr, run
from ostiary.core.process.outcome import find_executable
from ostiary.core.redaction import redact, tail
from ostiary.core.text import printable
from ostiary.errors import AnswerInvalid, PluginFailed, PluginNotFound
from ostiary.model import Place
from ostiary.registry.kubelet.model import ProviderConfig
from ostiary.registry.kubelet.service_account import Presented
from ostiary.registry.metrics import NoRegistryMetrics, RegistryMetrics
from ostiary.wire.credential_provider import Request, Response, ResponseRefused, decode_response, encode_request

STDERR_SHOWN = 2048
# The strings of a JSON response without its field names, even if it is cut off. Very short ones are ordinary words.
_JSON_VALUE = re.compile(r'"((?=(?:[^"\\]|\\.){4})[^"\\]*+(?:\\.[^"\\]*+)*)"(?!\s*:)')
# A cache for all pods of an account must not contain the token of one of them.
TOKEN_CACHE = "Token"  # noqa: S105


class _FailureParts(TypedDict):
    """The common parts of every error about a provider."""

    summary: str
    cause: str
    where: Place
    hint: str | None


class CredentialProvider:
    """A configured provider and its executable. Can be run any number of times, from any thread."""

    def __init__(
        self,
        config: ProviderConfig,
        executable: str,
        *,
        limits: RunLimits = DEFAULT_LIMITS,
        metrics: RegistryMetrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self.executable = executable
        self._limits = limits
        self._metrics = metrics or NoRegistryMetrics()
        self._clock = clock or SYSTEM_CLOCK

    def run(self, image: str, service_account: Presented | None = None) -> Response:
        """Run the provider for *image*, which is a repository; raises `CredentialError`."""
        request = self._request(image, service_account)
        outcome = self._start(request)
        try:
            response = decode_response(outcome.stdout, request, now=self._clock.now())
            self._check_token(response, service_account)
        except ResponseRefused as refused:
            parts = self._parts(image, f"{self._name}: {refused.cause}", hint=refused.hint)
            raise AnswerInvalid(**parts, code=refused.code) from None
        return response

    def environment(self) -> dict[str, str]:
        """Return the environment of the executable: our own variables, overridden by those of the configuration."""
        return {**os.environ, **dict(self.config.env)}

    def _request(self, image: str, service_account: Presented | None) -> Request:
        return Request(
            image,
            self.config.api_version,
            self.config.dialect,
            service_account.token if service_account else None,
            service_account.annotations if service_account else {},
        )

    def _start(self, request: Request) -> Outcome:
        started_at, failed = self._clock.monotonic(), True
        try:
            outcome = run(
                self.executable,
                (self.executable, *self.config.args),
                env=self.environment(),
                stdin=encode_request(request),
                stderr=Stderr.CAPTURE,
                limits=self._limits,
            )
            failed = outcome.ending is not Ending.EXITED or outcome.exit_code != 0
        except OSError as error:
            raise self._could_not_start(request.image, error) from None
        except ValueError:
            # A NUL in an argument or a variable, which cannot be passed to a process.
            raise self._could_not_start(request.image, OSError(errno.EINVAL, "")) from None
        finally:
            self._metrics.record_run(self.config.name, seconds=self._clock.monotonic() - started_at, failed=failed)
        if failed:
            raise self._failure(request, outcome)
        return outcome

    def _check_token(self, response: Response, service_account: Presented | None) -> None:
        attributes = self.config.token_attributes
        if not service_account or not service_account.token or (attributes and attributes.cache_type == TOKEN_CACHE):
            return
        if response.gives_back(service_account.token):
            raise ResponseRefused(
                "it returned the service account token as the password, which may not be cached for other pods",
                hint=f"set cacheType: {TOKEN_CACHE} in the provider's tokenAttributes",
                rule="token-as-password",
            )

    # --- errors ---

    @property
    def _name(self) -> str:
        return f'credential provider "{printable(self.config.name)}"'

    def _could_not_start(self, image: str, error: OSError) -> PluginNotFound:
        executable = printable(self.executable)
        if error.errno == errno.ENOENT:
            code, cause = "credential-provider-not-found", f"{self._name}: {executable} does not exist"
            hint = "put the executable there, or correct the name in the configuration"
        else:
            code = "credential-provider-not-executable"
            cause = f"{self._name}: {executable} cannot be executed: {os.strerror(error.errno or 0)}"
            hint = "it must be a program of this system, or a script that begins with #!, and executable (chmod +x)"
        return PluginNotFound(**self._parts(image, cause, hint=hint), code=code)

    def _failure(self, request: Request, outcome: Outcome) -> PluginFailed:
        code, what, hint = self._ending(outcome)
        exit_code = outcome.exit_code if outcome.ending is Ending.EXITED else -1
        parts = self._parts(request.image, f"{self._name} {what}{self._stderr_of(request, outcome)}", hint=hint)
        return PluginFailed(**parts, exit_code=exit_code, code=code)

    def _ending(self, outcome: Outcome) -> tuple[str, str, str]:
        if outcome.ending is Ending.TIMED_OUT:
            what = f"did not end within {self._limits.seconds:g} s"
            return "credential-provider-timeout", what, "check what it waits for; the kubelet gives it one minute"
        if outcome.ending is Ending.TOO_MUCH_OUTPUT:
            what = f"printed more than {self._limits.stdout_bytes} bytes on stdout"
            return "credential-provider-output-too-large", what, "print only the answer on stdout"
        by_hand = "run it by hand to see why: ostiary registry check"
        if outcome.exit_code < 0:
            return "credential-provider-killed", f"was ended by signal {-outcome.exit_code}", by_hand
        return "credential-provider-failed", f"failed with exit code {outcome.exit_code}", by_hand

    def _stderr_of(self, request: Request, outcome: Outcome) -> str:
        """Return the end of its stderr, without anything that is also on stdout, in its variables or in its token."""
        secrets = [value for _, value in self.config.env if value]
        stdout = outcome.stdout.decode("utf-8", "replace")
        secrets += [*stdout.split(), *_JSON_VALUE.findall(stdout)]
        if request.service_account_token:
            secrets.append(request.service_account_token.reveal())
        text = redact(tail(outcome.stderr_tail, STDERR_SHOWN), secrets=secrets).strip()
        return f"; it said:\n{text}" if text else ""

    def _parts(self, image: str, cause: str, *, hint: str | None) -> _FailureParts:
        summary = f'no credential for image "{printable(image)}"'
        return {"summary": summary, "cause": cause, "where": self.config.place, "hint": hint}


def find_provider(name: str, bin_dir: str) -> str:
    """Return the executable of the provider *name*: in *bin_dir*, else on PATH. The kubelet looks only in *bin_dir*.

    The current directory is never searched. If there is no file, the path in *bin_dir* is returned: starting it gives
    the error.
    """
    path = os.path.join(bin_dir, name)
    if os.path.dirname(name) or os.path.lexists(path):
        return path
    return find_executable(name) or path
