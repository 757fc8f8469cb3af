"""Open a private key by its address, for kubeconfigs, applications and exec plugins that name one instead of key bytes.

An address can run a command or load a library, so the plugin policy checks it like an exec plugin.
"""

from __future__ import annotations

import atexit
import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from ostiary.client.exec.policy import Plan, PluginPolicy
from ostiary.core.process import find_executable
from ostiary.core.text import printable
from ostiary.errors import PluginRefused
from ostiary.keys.address import KeyAddress
from ostiary.model import DeviceKey, Place, Secret

# The user may be typing the PIN.
SECONDS_WITH_A_PERSON = 120.0
TERMINAL = "/dev/tty"


def open_device_key(
    address: str | KeyAddress | DeviceKey, *, policy: PluginPolicy, may_ask: bool, place: Place | None = None
) -> DeviceKey:
    """Return the open key. A `DeviceKey` object is returned as it is. Raises `KeyUnusable` or `PluginRefused`."""
    if not isinstance(address, (str, KeyAddress)):
        return address
    # Lazy import: only device keys need it.
    from ostiary.keys.opening import VARIABLE, OpeningRules, not_on_path, open_key

    def judge(program: tuple[str, ...]) -> str:
        command, *arguments = program
        plan = Plan(command, find_executable(command), tuple(arguments), place=place)
        executable = policy.check(plan)
        if plan.executable is None:
            raise not_on_path(command)
        return executable

    def judge_pin_file(path: str) -> None:
        try:
            policy.check(Plan(path, path, (), place=place))
        except PluginRefused as refused:
            hint = f"set {VARIABLE} in the place of pin-source, or use a policy that allows this file"
            raise PluginRefused(
                f"the PIN in {path!r} was not used", cause=refused.cause, where=refused.where, hint=hint
            ) from None

    rules = OpeningRules(judge=judge, judge_pin_file=judge_pin_file)
    if may_ask:
        with _echo_restored():
            return open_key(address, replace(rules, ask=_ask, open_seconds=SECONDS_WITH_A_PERSON))
    return open_key(address, rules)


@contextmanager
def _echo_restored() -> Iterator[None]:
    """Restore the terminal's echo after a PIN prompt, which runs in the key's thread and survives Ctrl-C."""
    restore = _terminal_restorer()
    # This thread may be a daemon thread as well, which does not run its `finally` at process exit.
    atexit.register(restore)
    try:
        yield
    finally:
        atexit.unregister(restore)
        restore()


def _terminal_restorer() -> Callable[[], None]:
    """Return a function that restores the current terminal settings. It does nothing without a terminal or termios."""
    try:
        import termios
    except ImportError:
        return lambda: None
    try:
        with open(TERMINAL, "rb", buffering=0) as terminal:
            before = termios.tcgetattr(terminal)
    except (OSError, termios.error):
        return lambda: None

    def restore() -> None:
        with suppress(OSError, termios.error), open(TERMINAL, "rb", buffering=0) as terminal:
            # Only if the settings differ: a background process that sets them would be stopped (SIGTTOU).
            if termios.tcgetattr(terminal) != before:
                termios.tcsetattr(terminal, termios.TCSANOW, before)

    return restore


def _ask(label: str) -> Secret | None:
    """Prompt on the terminal only: the PIN must not be echoed and must not come from a pipe."""
    with suppress(OSError, EOFError):
        os.close(os.open(TERMINAL, os.O_RDWR | os.O_NOCTTY))
        return Secret(getpass.getpass(f"PIN of {printable(label)}: ")) or None
    return None
