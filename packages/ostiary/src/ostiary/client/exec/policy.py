"""Plugin policies: which commands of a kubeconfig may run.

A kubeconfig can name any command. The policy therefore comes from the application or from the user's kuberc, never from
the kubeconfig.

    AllowAll, DenyAll, Allowlist    decide which commands may run
    Pinned, Trusted, Confirm        wrap one of those and check further what it allowed

`ostiary.client.exec.kuberc` reads the policy that the user configured for kubectl.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shlex
import stat
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ostiary.core.platform.open_flags import CLOSE_ON_EXEC, NO_BLOCK
from ostiary.core.process import find_executable
from ostiary.errors import ConfigurationError, PluginRefused
from ostiary.model import Place, Problem

ALLOW_ALL, DENY_ALL, ALLOWLIST = "AllowAll", "DenyAll", "Allowlist"
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
SYMLINK_LIMIT = 40
SHA256_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Plan:
    """The command line that would run. Its repr omits arguments and info, which may contain secrets."""

    command: str
    executable: str | None
    """Path of the command; None if it was not found."""
    args: tuple[str, ...] = field(default=(), repr=False)
    env_names: tuple[str, ...] = ()
    info: str = field(default="", repr=False)
    place: Place | None = None
    values_from: tuple[str, ...] = ()
    """Variables whose values are read from another source on this machine: ``NAME: file /path``."""


class PluginPolicy(Protocol):
    def check(self, plan: Plan) -> str:
        """Return the path to execute. Raises `PluginRefused` if the command must not run.

        Called before every run, from any thread. The caller must execute exactly the returned path, because that path
        was checked. If `plan.executable` is None, return the command as it is spelled; it is reported as not found. Do
        not look it up again, in particular not in a PATH that the kubeconfig sets.
        """


@dataclass(frozen=True)
class AllowAll:
    """Allow every command. This is kubectl's default."""

    def check(self, plan: Plan) -> str:
        return plan.executable or plan.command


@dataclass(frozen=True)
class DenyAll:
    """Deny every command."""

    def check(self, plan: Plan) -> str:
        raise _refusal(
            plan,
            f"the plugin policy of this program is {DENY_ALL}",
            hint="use another way to sign in, or a policy that allows this command",
        )


@dataclass(frozen=True)
class Allowlist:
    """Allow only the commands named by *entries*.

    An entry is a bare name or a path. It matches a command that is spelled the same, a command found at the path that
    the entry names, and a command found where the entry itself is found. Symbolic links are not resolved and the
    content is not checked: see `Pinned` and `Trusted`.
    """

    entries: Sequence[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(self.entries))
        problems = _allowlist_problems(self.entries, Place(path="allowlist"))
        if problems:
            raise ConfigurationError("the plugin allowlist cannot be used", problems=problems)

    def check(self, plan: Plan) -> str:
        spelled = _spelling(plan.command)
        if plan.executable is None:
            path, permitted = spelled, spelled in self.entries
        else:
            path = spelled if os.sep in spelled else _clean(plan.executable)
            permitted = self._permits(spelled, path)
        if not permitted:
            raise _refusal(
                plan,
                f"{path!r} is not on the plugin allowlist of this program",
                hint="add it to the allowlist if you trust it",
            )
        return path

    def _permits(self, spelled: str, path: str) -> bool:
        if os.sep not in spelled and not os.path.isabs(path):
            # PATH contains "." or another relative directory, so anyone who can write to the current directory could
            # choose the program. Go rejects these as well.
            return False
        return spelled in self.entries or any(_is_found_at(path, entry) for entry in self.entries)


@dataclass(frozen=True)
class Pinned:
    """Allow only files with a known content: *pins* maps a command or path to its SHA-256.

    A command without a pin is denied. The digest is that of the file when it was opened. Anyone who can write to the
    file, or to a directory above it, can still replace it between the check and the start: `Pinned` detects wrong
    versions and corrupt downloads, `Trusted` prevents the replacement. For a script, the interpreter and the modules it
    loads are not covered.
    """

    policy: PluginPolicy
    pins: Mapping[str, str] = field(hash=False)

    def __post_init__(self) -> None:
        pins = {command: digest.lower() for command, digest in self.pins.items()}
        object.__setattr__(self, "pins", pins)
        problems = [
            Problem(f"{digest!r} is not a SHA-256 in hexadecimal", Place(path=f"pins[{command!r}]"))
            for command, digest in pins.items()
            if not SHA256_HEX.fullmatch(digest)
        ]
        if problems:
            raise ConfigurationError("the plugin pins cannot be used", problems=problems)

    def check(self, plan: Plan) -> str:
        path = _path_to_examine(self.policy, plan)
        pinned_digests = {self.pins[name] for name in (plan.command, path) if name in self.pins}
        if not pinned_digests:
            raise _refusal(plan, f"{path!r} has no pinned SHA-256", hint="pin the version that you trust")
        digest = _sha256(plan, path)
        if pinned_digests != {digest}:
            raise _refusal(
                plan,
                f"{path!r} has the SHA-256 {digest}, which is not the pinned one",
                hint="if you updated it on purpose, pin the new version",
            )
        return path


@dataclass(frozen=True)
class Trusted:
    """Allow only files that no other user can change, and only if no other user can change the kubeconfig.

    The file, every directory above it, and every symbolic link on the path must belong to root or to the current user,
    and must not be writable by group or others. A directory with the sticky bit, such as ``/tmp``, may be writable by
    all: only the owner of an entry can replace it there.
    """

    policy: PluginPolicy

    def check(self, plan: Plan) -> str:
        path = _path_to_examine(self.policy, plan)
        if not hasattr(os, "geteuid"):
            raise _refusal(
                plan,
                "who can change a file cannot be told on this system, which has access lists in the place of modes",
                hint="use Pinned, which knows the program by its SHA-256",
            )
        self._examine(plan, path)
        if plan.place is not None and plan.place.file is not None:
            self._examine(plan, plan.place.file)
        return path

    def _examine(self, plan: Plan, path: str) -> None:
        try:
            for step, status in _way_to(path):
                self._judge(plan, step, status)
        except OSError as error:
            raise _refusal(plan, f"{path!r} cannot be examined: {error.strerror}") from None

    def _judge(self, plan: Plan, step: str, status: os.stat_result) -> None:
        if status.st_uid not in (0, os.geteuid()):
            raise _refusal(
                plan,
                f"{step!r} belongs to the user id {status.st_uid}, who is neither root nor you",
                hint="move it to a directory that you own, or change its owner",
            )
        if _others_can_change(status):
            raise _refusal(plan, f"{step!r} can be changed by other users", hint=f"chmod go-w {shlex.quote(step)}")


@dataclass(frozen=True)
class Confirm:
    """Confirm each run with *callback*, for applications that accept kubeconfigs from others.

    Only the return value True allows the command. Any other value and any exception deny it. The callback runs after
    *policy*, receives the path that would be executed, and may block.
    """

    callback: Callable[[Plan], bool]
    policy: PluginPolicy = AllowAll()

    def check(self, plan: Plan) -> str:
        path = self.policy.check(plan)
        judged = plan if plan.executable is None else replace(plan, executable=path)
        try:
            answer = self.callback(judged)
        except PluginRefused:
            raise
        except Exception as error:
            raise _refusal(plan, "the permission check failed") from error
        # Compare by identity: a coroutine that was never awaited and the string "no" are truthy.
        if answer is not True:
            raise _refusal(plan, "permission denied")
        return path


def policy_of(kind: str, entries: Sequence[str] | None = None) -> PluginPolicy:
    """Return the policy that kubectl calls *kind*. An empty *kind* is AllowAll."""
    problems = policy_problems(kind, entries, Place(path="allowlist"))
    if problems:
        raise ConfigurationError("the plugin policy cannot be used", problems=problems)
    if kind == ALLOWLIST:
        return Allowlist(entries or ())
    return DenyAll() if kind == DENY_ALL else AllowAll()


# --- matching ---


def _clean(path: str) -> str:
    """Normalize *path* like Go's filepath.Clean: remove ``.``, ``..`` and repeated separators."""
    cleaned = os.path.normpath(path)
    # POSIX allows "//x" to differ from "/x", so normpath keeps it. On Linux and in Go they are equal.
    return cleaned[1:] if cleaned.startswith("//") else cleaned


def _spelling(command: str) -> str:
    """Normalize *command* to the spelling of an allowlist entry.

    client-go turns ``./p`` into ``p``, which is a different program: the one on PATH. Here a path stays a path.
    """
    cleaned = _clean(command)
    return cleaned if (os.sep in cleaned) == (os.sep in command) else command


def _is_found_at(path: str, entry: str) -> bool:
    if os.path.basename(entry) != os.path.basename(path):
        return False
    executable = find_executable(entry)
    return executable is not None and _clean(executable) == path


def _refusal(plan: Plan, cause: str, *, hint: str | None = None) -> PluginRefused:
    return PluginRefused(f"exec plugin {plan.command!r} was not run", cause=cause, where=plan.place, hint=hint)


# --- checks of the file ---


def _path_to_examine(policy: PluginPolicy, plan: Plan) -> str:
    path = policy.check(plan)
    if plan.executable is None or not os.path.lexists(path):
        raise _refusal(
            plan,
            f"{path!r} was not found, so it cannot be examined",
            hint="install it, or correct exec.command in the kubeconfig",
        )
    return path


def _sha256(plan: Plan, path: str) -> str:
    try:
        # O_NONBLOCK: opening a named pipe must not block.
        with open(os.open(path, os.O_RDONLY | NO_BLOCK | CLOSE_ON_EXEC), "rb") as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise _refusal(plan, f"{path!r} cannot be read: {error.strerror}") from None
    raise _refusal(plan, f"{path!r} is not a regular file")


def _way_to(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every directory, symbolic link and file that determines what *path* is, from the root down."""
    here, links = os.sep, 0
    yield here, os.lstat(here)
    parts = deque(os.path.join(os.getcwd(), path).split(os.sep))
    while parts:
        part = parts.popleft()
        if part == os.pardir:
            here = os.path.dirname(here)
        elif part not in ("", os.curdir):
            step = os.path.join(here, part)
            status = os.lstat(step)
            yield step, status
            if not stat.S_ISLNK(status.st_mode):
                here = step
                continue
            links += 1
            if links > SYMLINK_LIMIT:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink(step)
            here = os.sep if os.path.isabs(target) else here
            parts.extendleft(reversed(target.split(os.sep)))


def _others_can_change(status: os.stat_result) -> bool:
    if stat.S_ISLNK(status.st_mode):
        return False  # The mode of a link is ignored: its directory decides who can replace it.
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return False
    return bool(status.st_mode & WRITABLE_BY_OTHERS)


# --- validation of a policy ---


def policy_problems(kind: str, entries: Sequence[str] | None, at: Place) -> list[Problem]:
    if kind == ALLOWLIST:
        if entries is None:
            return [Problem(f"the policy is {ALLOWLIST}, but there is no allowlist", at)]
        return _allowlist_problems(entries, at)
    if kind not in ("", ALLOW_ALL, DENY_ALL):
        hint = f"use {ALLOW_ALL}, {DENY_ALL} or {ALLOWLIST}"
        return [Problem(f"unknown plugin policy {kind!r}", at, hint)]
    if entries is not None:
        # The author of an allowlist expects it to restrict something, so it must not be ignored.
        return [Problem(f"there is an allowlist, but the policy is {kind or ALLOW_ALL}", at, f"use {ALLOWLIST}")]
    return []


def _allowlist_problems(entries: Sequence[str], at: Place) -> list[Problem]:
    if not entries:
        return [Problem("the allowlist is empty", at, f"use {DENY_ALL} to allow no plugin")]
    return [
        problem
        for number, entry in enumerate(entries)
        for problem in _entry_problems(entry, Place(at.file, f"{at.path}[{number}]"))
    ]


def _entry_problems(entry: str, place: Place) -> Iterator[Problem]:
    if not entry:
        yield Problem("the entry names no command", place)
    elif _clean(entry) != entry:
        yield Problem(f"{entry!r} is not a normal path", place, f"write {_clean(entry)!r}")
