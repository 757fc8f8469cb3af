"""What ostiary reads from a kubeconfig's user beyond what kubectl knows: extensions of the user entry.

Called by `document`. They stand among the ``extensions``, which kubectl leaves alone: a field beside those that it
knows would be lost the next time it writes the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ostiary.client.kubeconfig.model import SigningConfig, ValueFrom
from ostiary.core.config import Fields

EXEC = "ostiary.dev/exec"
REQUEST_SIGNING = "ostiary.dev/request-signing"
ENV_HINT = f"put it into the user's extension {EXEC}: kubectl drops fields that it does not know"
Resolve = Callable[[str], str]


def extension_of(user: Fields, name: str) -> Fields | None:
    """The extension of that name, to be read; None if the user has none."""
    for item in user.sections("extensions"):
        # Read whole by `document` already.
        item.ignore("extension")
        if item.string("name") == name:
            return item.optional_section("extension")
    return None


def values_from(user: Fields, resolve: Resolve) -> tuple[ValueFrom, ...]:
    """The variables of the exec plugin that stand elsewhere. *resolve* makes a path absolute."""
    fields = extension_of(user, EXEC)
    if fields is None:
        return ()
    values = [_value_from(item, resolve) for item in fields.sections("env")]
    return tuple(value for value in values if value is not None)


def _value_from(item: Fields, resolve: Resolve) -> ValueFrom | None:
    name, source = item.string("name"), item.section("valueFrom")
    if not name or "=" in name or "\0" in name:
        item.problem("a variable needs a name, without =", "name")
        return None
    file, command, env = source.string("file"), source.strings("command"), source.string("env")
    keyring = source.optional_section("keyring")
    choices = [("file", (resolve(file),) if file else ()), ("command", _command(command, resolve)), ("env", (env,))]
    if keyring is not None:
        service, username = keyring.string("service"), keyring.string("username")
        choices.append(("keyring", (service, username) if username else ()))
    chosen = [(kind, words) for kind, words in choices if words and words[0]]
    if len(chosen) != 1:
        hint = "set file, command (a list of words), env, or keyring with service and username"
        item.problem(f"valueFrom of {name!r} needs exactly one place to read the value from", "valueFrom", hint)
        return None
    ((kind, words),) = chosen
    return ValueFrom(name, kind, words, item.place())


def _command(words: tuple[str, ...], resolve: Resolve) -> tuple[str, ...]:
    return (resolve(words[0]) if os.sep in words[0] else words[0], *words[1:]) if words else ()


def signing_of(user: Fields, resolve: Resolve) -> SigningConfig | None:
    """The command that signs this user's requests, if there is one."""
    fields = extension_of(user, REQUEST_SIGNING)
    if fields is None:
        return None
    command = fields.string("command")
    if not command:
        fields.problem("request signing needs a command", "command")
        return None
    return SigningConfig(
        command=resolve(command) if os.sep in command else command,
        args=fields.strings("args"),
        env=tuple((item.string("name"), item.string("value")) for item in fields.sections("env")),
        streamed=fields.boolean("streamed"),
        place=fields.place(),
    )
