"""The environment of an exec plugin, including variables read from files, keyring entries and commands.

Values are read again before each run, after the policy has allowed the plugin. They are passed in the plugin's
environment only, and are never logged, shown or cached.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from typing import Literal, NoReturn

from ostiary.client.exec.policy import Plan, PluginPolicy
from ostiary.core.extras import needing
from ostiary.core.process import Ending, RunLimits, Stderr, find_executable, run
from ostiary.errors import ConfigurationError, CredentialError, OstiaryError
from ostiary.kubeconfig import ExecConfig, ValueFrom
from ostiary.wire.client_authentication import INFO_VARIABLE

# O_NONBLOCK: a pipe without a writer would block the sign-in forever. Windows has neither flag.
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
# Linux limits one variable to 128 KiB.
LARGEST_VALUE = 100 * 1024
PluginInput = Literal["environment", "stdin", "both"]
ENVIRONMENT: PluginInput = "environment"
PLUGIN_INPUTS: tuple[PluginInput, ...] = ("environment", "stdin", "both")


def check_plugin_input(plugin_input: str) -> PluginInput:
    for known in PLUGIN_INPUTS:
        if plugin_input == known:
            return known
    hint = f"use one of {', '.join(PLUGIN_INPUTS)}"
    raise ConfigurationError("plugin_input cannot be used", cause=f"{plugin_input!r} is unknown", hint=hint)


def plugin_environment(
    config: ExecConfig, values: Mapping[str, str], *, info: str, clean: bool, tells_info: bool
) -> dict[str, str]:
    """Merge our own environment (unless *clean*), the kubeconfig's variables, *values* and the info. Later ones win."""
    inherited = {} if clean else os.environ
    info_variable = {INFO_VARIABLE: info} if tells_info else {}
    environment = {**inherited, **dict(config.env), **values, **info_variable}
    if not tells_info:
        # The plugin would read the info intended for this process as its own.
        environment.pop(INFO_VARIABLE, None)
    return environment


def check_values_allowed(config: ExecConfig, *, user: str, allowed: bool) -> None:
    """Raise `ConfigurationError` if variables have external sources and the application did not allow that."""
    if config.env_from and not allowed:
        names = ", ".join(value.name for value in config.env_from)
        raise ConfigurationError(
            f"user {user!r} cannot sign in",
            cause=f"the kubeconfig names files, commands or keyring entries of this machine for variables of its exec "
            f"plugin ({names}), and this program has not agreed to read them",
            where=config.env_from[0].place,
            hint="if you trust the kubeconfig: connect(value_from=True), or ostiary exec run --value-from",
        )


class ValueReader:
    """Read the variables of one plugin from files, keyring entries and commands. *policy* checks each command."""

    def __init__(
        self, config: ExecConfig, *, user: str, policy: PluginPolicy, seconds: float, clean_environment: bool
    ) -> None:
        self._config, self._user, self._policy, self._seconds = config, user, policy, seconds
        self._environ: Mapping[str, str] = {} if clean_environment else os.environ

    def read(self) -> dict[str, str]:
        """Return the value of each variable. Raises `CredentialError`, which names the variable but never the value."""
        return {value.name: self._read(value) for value in self._config.env_from}

    def _read(self, value: ValueFrom) -> str:
        sources: dict[str, Callable[[ValueFrom], str]] = {
            "file": self._from_file,
            "command": self._from_command,
            "keyring": self._from_keyring,
            "env": self._from_environment,
        }
        text = sources[value.kind](value)
        if not text:
            self._refuse(value, "it is empty", hint="put the value there, or remove the variable")
        if "\0" in text or len(text) > LARGEST_VALUE:
            self._refuse(value, f"it holds a NUL, or more than {LARGEST_VALUE} characters", hint="check what is there")
        return text

    def _from_file(self, value: ValueFrom) -> str:
        path = value.words[0]
        try:
            descriptor = os.open(path, _OPEN_FLAGS)
            try:
                is_regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
                content = _read_some(descriptor) if is_regular else b""
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it is not a usable file name"
            self._refuse(value, why, hint="check that it exists and that this user can read it")
        if not is_regular:
            self._refuse(value, "it is not a regular file", hint="name a file")
        return self._text(value, content)

    def _from_command(self, value: ValueFrom) -> str:
        command, *args = value.words
        plan = Plan(command, find_executable(command), tuple(args), place=value.place)
        executable = self._policy.check(plan)
        if plan.executable is None:
            self._refuse(value, "there is no such command", hint="install it, or correct the command")
        try:
            # Capture stderr and drop it: a command that prints secrets may also write them there.
            outcome = run(
                executable,
                value.words,
                env=self._environ,
                stderr=Stderr.CAPTURE,
                limits=RunLimits(seconds=self._seconds, stdout_bytes=LARGEST_VALUE + 2),
            )
        except (OSError, ValueError) as error:
            why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "an argument holds a NUL"
            self._refuse(value, f"the command cannot be started: {why}", hint="run it by hand to see why")
        if outcome.ending is Ending.TIMED_OUT:
            self._refuse(value, f"the command did not end within {self._seconds:g} s", hint="check what it waits for")
        if outcome.ending is not Ending.EXITED or outcome.exit_code != 0:
            self._refuse(value, f"the command failed (exit code {outcome.exit_code})", hint="run it by hand to see why")
        return self._text(value, outcome.stdout)

    def _from_keyring(self, value: ValueFrom) -> str:
        service, username = value.words
        try:
            with needing("keyring", purpose="this kubeconfig"):
                import keyring

            password = keyring.get_password(service, username)
        except OstiaryError:
            raise
        except Exception as error:
            # Keyring backends raise arbitrary exceptions, and the message may quote the entry.
            self._refuse(value, f"the keyring failed: {type(error).__name__}", hint="unlock it: keyring get ...")
        if password is None:
            self._refuse(value, "the keyring has no such entry", hint=f"keyring set {service} {username}")
        return password

    def _from_environment(self, value: ValueFrom) -> str:
        name = value.words[0]
        if name not in os.environ:
            self._refuse(value, "the variable is not set", hint=f"set {name} in the environment of this program")
        return os.environ[name]

    def _text(self, value: ValueFrom, content: bytes) -> str:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            self._refuse(value, "it is not UTF-8 text", hint="a variable holds text")
        # Remove only the final newline that editors and echo add. Other white space may belong to the value.
        return text.removesuffix("\n").removesuffix("\r")

    def _refuse(self, value: ValueFrom, why: str, *, hint: str) -> NoReturn:
        raise CredentialError(
            f"no credential for user {self._user!r}",
            cause=f"the variable {value.name} of its exec plugin cannot be read from {value}: {why}",
            where=value.place,
            hint=hint,
            code="exec-env-unavailable",
        ) from None


def _read_some(descriptor: int) -> bytes:
    """Read the file up to slightly more than `LARGEST_VALUE`, so that the caller detects a file that is too large."""
    content = b""
    while len(content) <= LARGEST_VALUE and (part := os.read(descriptor, LARGEST_VALUE)):
        content += part
    return content
