"""Policies in files: checked for changes at most once a second, and replaced as a whole.

    changed?  ->  read and check all of it  ->  the new policy, and another revision
                                                or: keep the old one and log the error

The file-based authorization providers use it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.watched_file import Fingerprint, fingerprint, is_settled
from ostiary.errors import ConfigurationError
from ostiary.model import Place, Problem

LOOK_SECONDS = 1.0
MAX_BYTES = 64 * 1024 * 1024

T = TypeVar("T")
_Look = dict[str, Fingerprint | None]
log = logging.getLogger("ostiary.authorization")


@dataclass(frozen=True, slots=True)
class PolicyText:
    """One file of a policy."""

    file: str
    text: str


class PolicyFiles(Generic[T]):
    """The policy that *parse* returns for the files at *paths*. *parse* raises `ConfigurationError` for an invalid one.

    A directory stands for the files in it with the right *ending*. The constructor raises if the policy is invalid. A
    later reload that fails leaves the old policy in force, sets `error` and logs it once. Nothing runs in the
    background: reading `current` or `revision` checks the files, at most once a second.
    """

    def __init__(
        self,
        paths: Iterable[str | os.PathLike[str]],
        *,
        ending: str,
        parse: Callable[[Sequence[PolicyText]], T],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._paths, self._ending = tuple(os.fspath(path) for path in paths), ending
        self._parse, self._clock = parse, clock
        self._revision = 1
        self.error: ConfigurationError | None = None
        # The fingerprints of the files; None forces a reload.
        self._look: _Look | None = self._looks()
        texts = self._read()
        self._digest = _digest(texts)
        self._policy = parse(texts)
        self._look_again_at = clock.monotonic() + LOOK_SECONDS

    @property
    def current(self) -> T:
        self._look_if_due()
        return self._policy

    @property
    def revision(self) -> int:
        self._look_if_due()
        return self._revision

    def _look_if_due(self) -> None:
        if self._clock.monotonic() >= self._look_again_at:
            self._look_again_at = self._clock.monotonic() + LOOK_SECONDS
            self._look_now()

    def _look_now(self) -> None:
        look = self._looks()
        if look == self._look and is_settled(look.values(), self._clock):
            return
        # A file that is unreadable now may be readable at the next check, with the same fingerprint.
        self._look = None
        try:
            texts = self._read()
        except ConfigurationError as error:
            self._note(error)
            return
        self._take_up(texts)
        # A file that changes while it is read differs from its fingerprint, and is reloaded at the next check.
        self._look = look

    def _take_up(self, texts: Sequence[PolicyText]) -> None:
        digest = _digest(texts)
        if digest == self._digest:
            self.error = None
            return
        try:
            self._policy = self._parse(texts)
        except ConfigurationError as error:
            self._note(error)
            return
        self._digest, self.error = digest, None
        self._revision += 1
        log.info("revision %d of the policy in %s is in force", self._revision, ", ".join(self._paths))

    def _note(self, error: ConfigurationError) -> None:
        # Log an error once, not at every check.
        if str(error) != str(self.error):
            log.error("%s; the old policy stays in force: %s", error.summary, error.cause, extra={"code": error.code})
        self.error = error

    def _looks(self) -> _Look:
        try:
            return {file: fingerprint(file) for path in self._paths for file in self._files(path)}
        except ConfigurationError:
            return {}

    def _files(self, path: str) -> list[str]:
        if not os.path.isdir(path):
            return [path]
        try:
            names = os.listdir(path)
        except OSError as error:
            raise _unreadable(path, error.strerror or "it cannot be listed") from error
        # A leading dot marks a hidden or unfinished file, or the internals of a mounted ConfigMap.
        return [os.path.join(path, name) for name in sorted(names) if name.endswith(self._ending) and name[0] != "."]

    def _read(self) -> list[PolicyText]:
        return [PolicyText(file, _text_of(file)) for path in self._paths for file in self._files(path)]


def invalid_policy(problems: Sequence[Problem]) -> ConfigurationError:
    return ConfigurationError("the policy has mistakes", problems=problems, code="config-invalid")


def _text_of(file: str) -> str:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "it is not a usable file name"
        raise _unreadable(file, why) from error
    if len(data) > MAX_BYTES:
        raise _unreadable(file, f"it is larger than {MAX_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _unreadable(file, "it is not UTF-8") from None


def _unreadable(file: str, why: str) -> ConfigurationError:
    problem = Problem(why, Place(file))
    return ConfigurationError("a policy file cannot be read", problems=[problem], code="config-unreadable")


def _digest(texts: Sequence[PolicyText]) -> bytes:
    digest = hashlib.sha256()
    for text in texts:
        for part in (text.file, text.text):
            data = part.encode("utf-8", "surrogateescape")
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.digest()
