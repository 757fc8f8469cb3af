"""Opens the key that a kubeconfig, a program or an exec plugin names in place of key bytes.

An address can have us run a command or load a library, so the plugin policy is asked about that as it is about an exec
plugin. Called by `plugin` and by `client.credentials`.
"""

from __future__ import annotations

import getpass
import os
from contextlib import suppress

from ostiary.client.exec.policy import Plan, PluginPolicy
from ostiary.core.keys.address import KeyAddress
from ostiary.core.process import find_executable
from ostiary.core.text import printable
from ostiary.model import DeviceKey, Place, Secret

# A person may be typing the PIN.
SECONDS_WITH_A_PERSON = 120.0


def open_device_key(
    address: str | KeyAddress | DeviceKey, *, policy: PluginPolicy, may_ask: bool, place: Place | None = None
) -> DeviceKey:
    """The key, open; an object that signs is returned as it is. Raises `KeyUnusable`, `PluginRefused`."""
    if not isinstance(address, (str, KeyAddress)):
        return address
    # Imported here: only those need it whose key is kept elsewhere.
    from ostiary.core.keys.opening import OpeningRules, open_key

    def judge(program: tuple[str, ...]) -> str:
        command, *arguments = program
        return policy.check(Plan(command, find_executable(command), tuple(arguments), place=place))

    if may_ask:
        return open_key(address, OpeningRules(judge=judge, ask=_ask, open_seconds=SECONDS_WITH_A_PERSON))
    return open_key(address, OpeningRules(judge=judge))


def _ask(label: str) -> Secret | None:
    """At the terminal itself, and nowhere else: what is typed must not be echoed, nor come from a pipe."""
    with suppress(OSError, EOFError):
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        return Secret(getpass.getpass(f"PIN of {printable(label)}: ")) or None
    return None
