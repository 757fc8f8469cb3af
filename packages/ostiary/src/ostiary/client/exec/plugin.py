"""Run an exec plugin: the configuration of one user in, a `Credential` or one error out.

Nothing is cached here; the authenticator decides when to run the plugin. The order of the steps is client-go's:
interactive mode, policy, process, metrics, decoding of the output.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from ostiary.client.exec.device_keys import open_device_key
from ostiary.client.exec.environment import (
    ENVIRONMENT,
    PluginInput,
    ValueReader,
    check_values_allowed,
    plugin_environment,
)
from ostiary.client.exec.policy import AllowAll, Plan, PluginPolicy
from ostiary.client.metrics import (
    CLIENT_INTERNAL_ERROR,
    NO_ERROR,
    PLUGIN_EXECUTION_ERROR,
    PLUGIN_NOT_FOUND_ERROR,
    ExecMetrics,
    NoMetrics,
)
from ostiary.client.retry_on_401 import Rejection
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.process import Ending, Outcome, RunLimits, Stderr, Stdin, find_executable, run
from ostiary.core.redaction import redact, tail
from ostiary.core.tls import parse_certificate
from ostiary.errors import (
    AnswerInvalid,
    ConfigurationError,
    CredentialError,
    PluginFailed,
    PluginNotFound,
    PluginNotInteractive,
)
from ostiary.kubeconfig import ExecConfig
from ostiary.model import ClientCertificate, Credential, Place
from ostiary.wire.client_authentication import (
    API_VERSIONS,
    V1ALPHA1,
    AnswerRefused,
    ClusterInfo,
    ExecAnswer,
    ExecCredentialSpec,
    decode_answer,
    encode_info,
)

# Limit for installHint messages.

HINTS_PER_WINDOW = 10
HINT_WINDOW_SECONDS = 3600.0


class HintThrottle:
    """Limit installHint to ten messages per hour, so that a controller does not fill its log with it."""

    def __init__(self, clock: Clock, *, times: int = HINTS_PER_WINDOW, seconds: float = HINT_WINDOW_SECONDS) -> None:
        self._clock, self._times, self._seconds = clock, times, seconds
        self._lock = threading.Lock()
        self._started = float("-inf")
        self._count = 0

    def allows(self) -> bool:
        with self._lock:
            now = self._clock.monotonic()
            if now - self._started > self._seconds:
                self._started, self._count = now, 0
            self._count += 1
            return self._count <= self._times


SECONDS_WITHOUT_A_PERSON = 60.0
STDERR_SHOWN = 2048
SHORTEST_SECRET = 6


@dataclass(frozen=True, slots=True)
class Terminal:
    """Whether a plugin may prompt the user. Applications that read stdin themselves set `stdin_unavailable` and a
    reason.
    """

    stdin_unavailable: bool = False
    message: str = ""

    def has_person(self) -> bool:
        # Check file descriptor 0, not sys.stdin: the plugin inherits the descriptor.
        try:
            return os.isatty(0)
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class ExecSettings:
    """Process-wide settings for running plugins. The kubeconfig cannot change them."""

    policy: PluginPolicy = AllowAll()  # noqa: RUF009  (a frozen value)
    terminal: Terminal = Terminal()
    seconds: float = SECONDS_WITHOUT_A_PERSON
    as_proposed: bool = False
    """Use the format of the 2018 proposal (``ExecInfo``) for v1alpha1 plugins."""
    clean_environment: bool = False
    """Pass plugins only the variables of the kubeconfig, not the environment of this process (2019 draft)."""
    plugin_input: PluginInput = ENVIRONMENT
    """How plugins receive their input. With "stdin" or "both" they cannot prompt the user (2019 draft)."""
    value_from: bool = False
    """Whether a kubeconfig may read variables of its plugin from files, keyring entries and commands."""


class _ErrorParts(TypedDict):
    """The fields common to all errors about a plugin."""

    summary: str
    cause: str
    where: Place
    hint: str | None


class ExecPlugin:
    """The exec stanza of one user. It can run any number of times, from any thread."""

    def __init__(
        self,
        config: ExecConfig,
        *,
        user: str,
        cluster: ClusterInfo | None = None,
        settings: ExecSettings | None = None,
        metrics: ExecMetrics | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config = config
        self.user = user
        self._cluster = cluster if config.provide_cluster_info else None
        self._settings = settings or ExecSettings()
        self._metrics = metrics or NoMetrics()
        self._hints = HintThrottle(clock or SYSTEM_CLOCK)
        check_api_version(config, user=user)
        check_values_allowed(config, user=user, allowed=self._settings.value_from)
        self._values = ValueReader(
            config,
            user=user,
            policy=self._settings.policy,
            seconds=self._settings.seconds,
            clean_environment=self._settings.clean_environment,
        )

    def is_interactive(self) -> bool:
        """Whether a run may prompt the user now. Raises `PluginNotInteractive` if it must prompt but cannot."""
        terminal, mode = self._settings.terminal, self.config.interactive_mode
        if mode == "Never":
            return False
        if mode == "IfAvailable":
            return self._has_free_stdin() and terminal.has_person()
        if mode != "Always":
            raise self._not_interactive(f"unknown interactiveMode: {mode!r}", hint="use Never, IfAvailable or Always")
        if not terminal.has_person():
            raise self._not_interactive(
                "standard input is not a terminal", hint="run this in a terminal, or sign in there first"
            )
        if not self._has_free_stdin():
            message = terminal.message if terminal.stdin_unavailable else "it carries the plugin's input"
            reason = f": {message}" if message else ""
            raise self._not_interactive(
                f"standard input is unavailable{reason}", hint="sign in with another command first"
            )
        return True

    def _has_free_stdin(self) -> bool:
        return not self._settings.terminal.stdin_unavailable and self._settings.plugin_input == ENVIRONMENT

    def plan(self, rejection: Rejection | None = None) -> Plan:
        """Return what a run would start, without running anything."""
        return self._plan(self.is_interactive(), rejection)

    def run(self, rejection: Rejection | None = None) -> Credential:
        """Run the command once. Raises `CredentialError` with the cause and a hint."""
        interactive = self.is_interactive()
        plan = self._plan(interactive, rejection)
        executable = self._permit(plan)
        values = self._values.read() if self.config.env_from else {}
        outcome = self._start(executable, plan, values, interactive=interactive)
        return self._credential(outcome)

    def environment(self, info: str, values: Mapping[str, str]) -> dict[str, str]:
        """Return the plugin's environment. *values* are the variables read from files, keyring entries and commands."""
        settings = self._settings
        tells_info = settings.plugin_input != "stdin"
        return plugin_environment(
            self.config, values, info=info, clean=settings.clean_environment, tells_info=tells_info
        )

    # --- steps of a run ---

    def _plan(self, interactive: bool, rejection: Rejection | None) -> Plan:
        rejection_parts = None if rejection is None else (rejection.status, rejection.headers)
        as_proposed = self._settings.as_proposed and self.config.api_version == V1ALPHA1
        info = encode_info(
            ExecCredentialSpec(self.config.api_version, interactive, self._cluster, rejection_parts, as_proposed)
        )
        return Plan(
            command=self.config.command,
            executable=find_executable(self.config.command),
            args=self.config.args,
            env_names=(*(name for name, _ in self.config.env), *(value.name for value in self.config.env_from)),
            info=info,
            place=self.config.place,
            values_from=tuple(f"{value.name}: {value}" for value in self.config.env_from),
        )

    def _permit(self, plan: Plan) -> str:
        try:
            executable = self._settings.policy.check(plan)
        except CredentialError:
            self._metrics.policy(allowed=False)
            raise
        self._metrics.policy(allowed=True)
        return executable

    def _start(self, executable: str, plan: Plan, values: Mapping[str, str], *, interactive: bool) -> Outcome:
        limits = RunLimits(seconds=None if interactive else self._settings.seconds)
        if plan.executable is None:
            raise self._could_not_start(FileNotFoundError(errno.ENOENT, "not on PATH"))
        try:
            outcome = run(
                executable,
                (self.config.command, *self.config.args),
                env=self.environment(plan.info, values),
                stdin=self._stdin(plan.info, interactive=interactive),
                stderr=Stderr.INHERIT if interactive else Stderr.TEE,
                limits=limits,
                # An interactive plugin stays in the terminal's foreground process group, or it could not read input.
                own_group=not interactive,
                while_waiting=self._notice if interactive else None,
            )
        except OSError as error:
            raise self._could_not_start(error) from None
        except ValueError:
            # An argument or a variable contains a NUL character, which the operating system does not accept.
            raise self._could_not_start(OSError(errno.EINVAL, "")) from None
        if outcome.ending is Ending.EXITED and outcome.exit_code == 0:
            self._metrics.record_call(code=0, call_status=NO_ERROR)
            return outcome
        raise self._failure(outcome, values)

    def _stdin(self, info: str, *, interactive: bool) -> Stdin | bytes:
        if self._settings.plugin_input != ENVIRONMENT:
            return info.encode()
        return Stdin.INHERIT if interactive else Stdin.NOTHING

    def _credential(self, outcome: Outcome) -> Credential:
        try:
            answer = decode_answer(outcome.stdout, api_version=self.config.api_version)
            # Validate everything before returning: a partly valid output must not replace a working credential.
            return Credential(answer.token, self._certificate(answer), answer.expires_at)
        except AnswerRefused as refused:
            parts = self._parts(f"{self._name}: {refused.cause}", hint=refused.hint)
            raise AnswerInvalid(**parts, code=refused.code) from None

    def _certificate(self, answer: ExecAnswer) -> ClientCertificate | None:
        if answer.key_address is None or answer.certificate_pem is None:
            return _certificate(answer)
        # Lazy import: it takes 30 ms and only device keys need it.
        from ostiary.keys.pairing import pair_with_key

        terminal = self._settings.terminal
        may_ask = self.config.interactive_mode != "Never" and not terminal.stdin_unavailable and terminal.has_person()
        try:
            key = open_device_key(
                answer.key_address, policy=self._settings.policy, may_ask=may_ask, place=self.config.place
            )
            return pair_with_key(answer.certificate_pem, key)
        except ValueError as error:
            hint = "return a PEM certificate and the address of the key that belongs to it"
            raise AnswerRefused(str(error), hint=hint, rule="certificate-and-key") from None

    # --- error messages ---

    def expired_error(self, cause: str) -> AnswerInvalid:
        hint = "compare this machine's clock with the server's, and clear the plugin's own cache"
        return AnswerInvalid(**self._parts(f"{self._name} {cause}", hint=hint), code="exec-plugin-answer-expired")

    @property
    def _name(self) -> str:
        return f"exec plugin {self.config.command!r}"

    def _not_interactive(self, cause: str, *, hint: str) -> PluginNotInteractive:
        return PluginNotInteractive(**self._parts(f"{self._name} cannot ask a person: {cause}", hint=hint))

    def _could_not_start(self, error: OSError) -> CredentialError:
        if error.errno == errno.E2BIG:
            self._metrics.record_call(code=1, call_status=CLIENT_INTERNAL_ERROR)
            return CredentialError(
                **self._parts(
                    f"{self._name} cannot be started: its environment is larger than the system allows",
                    hint="a certificate authority of more than about 90 kB does not fit: "
                    "shorten the bundle, or set provideClusterInfo: false",
                ),
                code="exec-plugin-environment-too-large",
            )
        self._metrics.record_call(code=1, call_status=PLUGIN_NOT_FOUND_ERROR)
        if error.errno == errno.ENOENT:
            cause, code = f"{self._name} {self._missing()}", "exec-plugin-not-found"
        else:
            cause = f"{self._name} cannot be executed: {os.strerror(error.errno or 0)}"
            code = "exec-plugin-not-executable"
        return PluginNotFound(**self._parts(cause, hint=self._install_hint(error)), code=code)

    def _missing(self) -> str:
        return "does not exist" if os.sep in self.config.command else "is not on PATH"

    def _install_hint(self, error: OSError) -> str:
        if self.config.install_hint and self._hints.allows():
            return f"{self.config.install_hint}\n(installHint of the kubeconfig)"
        if error.errno == errno.EACCES:
            return "make it executable (chmod +x), and check the directories above it"
        if error.errno == errno.ENOEXEC:
            return "it is neither a program of this system nor a script that begins with #!"
        return "install it, or correct exec.command in the kubeconfig"

    def _failure(self, outcome: Outcome, values: Mapping[str, str]) -> PluginFailed:
        code, what, hint = self._ending(outcome)
        exit_code = outcome.exit_code if outcome.ending is Ending.EXITED else -1
        self._metrics.record_call(code=exit_code, call_status=PLUGIN_EXECUTION_ERROR)
        parts = self._parts(f"{self._name} {what}{self._stderr_of(outcome, values)}", hint=hint)
        return PluginFailed(**parts, exit_code=exit_code, code=code)

    def _ending(self, outcome: Outcome) -> tuple[str, str, str]:
        if outcome.ending is Ending.TIMED_OUT:
            limit = f"{self._settings.seconds:g} s"
            return (
                "exec-plugin-timeout",
                f"did not end within {limit}",
                "check what it waits for, or raise the time limit",
            )
        if outcome.ending is Ending.TOO_MUCH_OUTPUT:
            return (
                "exec-plugin-output-too-large",
                "printed more than 1 MiB on stdout",
                "print only the credential on stdout",
            )
        run_by_hand = "run it by hand to see why: ostiary exec run"
        if outcome.exit_code < 0:
            return "exec-plugin-killed", f"was ended by signal {-outcome.exit_code}", run_by_hand
        return "exec-plugin-failed", f"failed with exit code {outcome.exit_code}", run_by_hand

    def _stderr_of(self, outcome: Outcome, values: Mapping[str, str]) -> str:
        """Return the tail of stderr, without words that also occur on stdout or in the plugin's variables."""
        secrets = [*(value for _, value in self.config.env), *values.values()]
        secrets += outcome.stdout.decode("utf-8", "replace").split()
        # Shorter words are braces and numbers; redacting those would make the text unreadable.
        secrets = [secret for secret in secrets if len(secret) >= SHORTEST_SECRET]
        text = redact(tail(outcome.stderr_tail, STDERR_SHOWN), secrets=secrets).strip()
        return f"; it said:\n{text}" if text else ""

    def _parts(self, cause: str, *, hint: str | None) -> _ErrorParts:
        summary = f"no credential for user {self.user!r}"
        return {"summary": summary, "cause": cause, "where": self.config.place, "hint": hint}

    def _notice(self, seconds: float) -> None:
        print(f"ostiary: still waiting for {self._name} ({seconds:.0f} s)", file=sys.stderr)  # noqa: T201


def check_api_version(config: ExecConfig, *, user: str) -> None:
    """Raise `ConfigurationError` for an unsupported version. As in client-go, this is checked even if the plugin never
    runs.
    """
    if config.api_version not in API_VERSIONS:
        raise ConfigurationError(
            f"user {user!r} cannot sign in",
            cause=f"exec plugin: invalid apiVersion {config.api_version!r}",
            where=config.place,
            hint=f"use one of {', '.join(API_VERSIONS)}",
        )


def _certificate(answer: ExecAnswer) -> ClientCertificate | None:
    if answer.certificate_pem is None or answer.key_pem is None:
        return None
    try:
        return parse_certificate(answer.certificate_pem, answer.key_pem.reveal())
    except ValueError as error:
        raise AnswerRefused(
            str(error),
            hint="return a PEM certificate and the PEM key that belongs to it",
            rule="certificate-and-key",
        ) from None
