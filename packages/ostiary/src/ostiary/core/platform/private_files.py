"""Files and a folder that are for one user alone, by owner and mode or by an access list.

Called by `cli.signin.files`. `PosixFiles` and `WindowsFiles` keep the same promises: what is created is private from
its first byte, and what somebody else owns or may use is told apart.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Protocol, TypeVar

from ostiary.core.platform.open_flags import CLOSE_ON_EXEC, NO_BLOCK, NO_FOLLOW

# Reads a security descriptor of Windows in its text form (SDDL): may anybody else use this file? Pure.
#
#     O:S-1-5-21-1-2-3-1001 G:... D:PAI(A;OICI;FA;;;SY)(A;;0x1200a9;;;WD)
#       the owner                 the entries: kind; inheritance; rights; object; inherited object; for whom
#
# Called by `private_files`, with the text that `win32` gets from the system. What is not understood counts as open to
# everybody.

# The system and its administrators, who can take any file anyway. OW and CO are the owner, who is judged apart.
_SYSTEM = frozenset({"SY", "BA", "OW", "CO", "S-1-5-18", "S-1-5-32-544", "S-1-3-4", "S-1-3-0"})
# A process that runs elevated makes files that belong to the administrators.
_OWNERS_BESIDES_US = frozenset({"BA", "SY", "S-1-5-32-544", "S-1-5-18"})
_ALLOWING = frozenset({"A", "OA", "XA", "ZA"})
_DENYING = frozenset({"D", "OD", "XD"})
_SECTION = re.compile(r"(?P<name>[OGDS]):(?P<text>(?:(?![OGDS]:)[^()]|\([^()]*(?:\([^()]*\)[^()]*)*\))*)")
_ENTRY = re.compile(r"\(((?:[^()]|\([^()]*\))*)\)")
_FIELDS = 6
EVERYBODY = "everybody"


def owner_of(descriptor: str) -> str | None:
    return _sections(descriptor).get("O")


def is_owned_by(descriptor: str, us: frozenset[str]) -> bool:
    owner = owner_of(descriptor)
    return owner is not None and owner in us | _OWNERS_BESIDES_US


def others_in(descriptor: str, us: frozenset[str]) -> tuple[str, ...]:
    """Who else is given anything by the access list of *descriptor*, in its order. *us* are the names of this user."""
    access_list = _sections(descriptor).get("D")
    if access_list is None or "NO_ACCESS_CONTROL" in access_list:
        # Without a list everybody may do everything; an empty list lets nobody in.
        return (EVERYBODY,)
    if _ENTRY.sub("", access_list).strip("PARI "):
        return (EVERYBODY,)
    return tuple(name for entry in _ENTRY.findall(access_list) if (name := _other(entry, us)) is not None)


def _other(entry: str, us: frozenset[str]) -> str | None:
    """For whom *entry* opens the file, if that is somebody else."""
    fields = entry.split(";")
    if len(fields) < _FIELDS:
        return EVERYBODY
    kind, whom = fields[0], fields[5]
    if kind in _DENYING:
        return None
    if kind not in _ALLOWING:
        return EVERYBODY
    return None if whom in us | _SYSTEM else whom or EVERYBODY


def only_for(sid: str) -> str:
    """An access list for the user *sid*, the system and its administrators, that what is made inside inherits.

    P: nothing is taken over from the folder above.
    """
    return f"D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;{sid})"


def _sections(descriptor: str) -> dict[str, str]:
    sections: dict[str, str] = {}
    end = 0
    for match in _SECTION.finditer(descriptor):
        if match.start() != end or match["name"] in sections:
            return {}
        sections[match["name"]] = match["text"].strip()
        end = match.end()
    return sections if end == len(descriptor) else {}


T = TypeVar("T")

_KIND, _REGULAR, _FOLDER = 0o170000, 0o100000, 0o040000
_OTHERS, _OTHERS_WRITE = 0o077, 0o022
_REPARSE_POINT = 0x400
# Windows refuses to replace or remove a file at the moment when somebody reads it, and reading takes no time.
BUSY_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 0.01


class PrivateFiles(Protocol):
    """Every method raises the `OSError` of the system when it cannot be done."""

    def open(self, path: str) -> int:
        """A descriptor to read with. A link is not followed where links can be planted."""

    def create(self, path: str) -> int:
        """A descriptor to write a new file with, which only we can open. The folder has passed `is_own_folder`."""

    def is_private(self, descriptor: int, path: str) -> bool:
        """Whether it is a regular file that we own and nobody else may read or write."""

    def make_folder(self, path: str) -> None:
        """Make the folder, for us alone. One that exists is left as it is."""

    def is_own_folder(self, path: str) -> bool:
        """Whether it is a folder that we own, and in which nobody else can put or replace files."""

    def replace(self, new: str, path: str) -> None:
        """Put the file *new* in the place of *path*, in one step."""

    def remove(self, path: str) -> None: ...


class PosixFiles:
    def open(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | NO_FOLLOW | CLOSE_ON_EXEC | NO_BLOCK)

    def create(self, path: str) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | CLOSE_ON_EXEC, 0o600)

    def is_private(self, descriptor: int, path: str) -> bool:
        status = os.fstat(descriptor)
        return status.st_mode & _KIND == _REGULAR and status.st_uid == os.geteuid() and not status.st_mode & _OTHERS

    def make_folder(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)

    def is_own_folder(self, path: str) -> bool:
        status = os.lstat(path)
        # Whoever may write here can take our files away and put back old ones.
        return (
            status.st_uid == os.geteuid() and status.st_mode & _KIND == _FOLDER and not status.st_mode & _OTHERS_WRITE
        )

    def replace(self, new: str, path: str) -> None:
        os.replace(new, path)

    def remove(self, path: str) -> None:
        os.unlink(path)


class AccessLists(Protocol):
    """What `WindowsFiles` needs of `win32.WindowsApi`."""

    def descriptor_of(self, path: str) -> str: ...

    def create_folder(self, path: str, access_list: str) -> None: ...

    def create_file(self, path: str, access_list: str) -> int: ...

    def user_sid(self) -> str: ...

    def names_of(self, sid: str) -> frozenset[str]: ...


class WindowsFiles:
    """Folder and files have an access list with the user, the system and its administrators.

    Links are followed: whoever may make one in that folder is the user or an administrator. *descriptor_of* makes a
    descriptor of a handle, as `msvcrt.open_osfhandle` does.
    """

    def __init__(
        self,
        api: AccessLists,
        *,
        descriptor_of: Callable[[int, int], int],
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api
        self._descriptor_of = descriptor_of
        self._pause = pause

    def open(self, path: str) -> int:
        return self._unless_busy(lambda: os.open(path, os.O_RDONLY | CLOSE_ON_EXEC))

    def create(self, path: str) -> int:
        return self._descriptor_of(self._api.create_file(path, self._only_for_us()), os.O_WRONLY | CLOSE_ON_EXEC)

    def is_private(self, descriptor: int, path: str) -> bool:
        return os.fstat(descriptor).st_mode & _KIND == _REGULAR and self._is_ours_alone(path)

    def make_folder(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with suppress(FileExistsError):
            self._api.create_folder(path, self._only_for_us())

    def is_own_folder(self, path: str) -> bool:
        status = os.lstat(path)
        leads_elsewhere = getattr(status, "st_file_attributes", 0) & _REPARSE_POINT
        return status.st_mode & _KIND == _FOLDER and not leads_elsewhere and self._is_ours_alone(path)

    def replace(self, new: str, path: str) -> None:
        self._unless_busy(lambda: os.replace(new, path))

    def remove(self, path: str) -> None:
        self._unless_busy(lambda: os.unlink(path))

    def _only_for_us(self) -> str:
        return only_for(self._api.user_sid())

    def _is_ours_alone(self, path: str) -> bool:
        us = self._api.names_of(self._api.user_sid())
        descriptor = self._api.descriptor_of(path)
        return is_owned_by(descriptor, us) and not others_in(descriptor, us)

    def _unless_busy(self, action: Callable[[], T]) -> T:
        for _ in range(int(BUSY_SECONDS / _LOOK_AGAIN_SECONDS)):
            try:
                return action()
            except PermissionError:
                self._pause(_LOOK_AGAIN_SECONDS)
        return action()


def set_mode(descriptor: int, mode: int, system: object = os) -> None:
    """Give an open file exactly this mode. Where modes mean nothing, it keeps the access list of its folder."""
    change = getattr(system, "fchmod", None)
    if change is not None and getattr(system, "name", "") != "nt":
        change(descriptor, mode)


@cache
def private_files() -> PrivateFiles:
    """Those of this machine."""
    if os.name != "nt":
        return PosixFiles()
    import msvcrt

    from ostiary.core.platform.win32 import windows

    return WindowsFiles(windows(), descriptor_of=getattr(msvcrt, "open_osfhandle"))  # noqa: B009
