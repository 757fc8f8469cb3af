"""Files and a folder that are private to one user, by owner and mode or by an access list.

`PosixFiles` and `WindowsFiles` give the same guarantees: what they create is private from its first byte, and they
detect files that another user owns or may access.
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

# Parsing of Windows security descriptors in text form (SDDL): may another user access this file?
#
#     O:S-1-5-21-1-2-3-1001 G:... D:PAI(A;OICI;FA;;;SY)(A;;0x1200a9;;;WD)
#       the owner                 the entries: kind; inheritance; rights; object; inherited object; for whom
#
# Entries that are not understood count as access for everyone.

# The system and its administrators, who can access any file anyway. OW and CO are the owner, who is checked separately.
_SYSTEM = frozenset({"SY", "BA", "OW", "CO", "S-1-5-18", "S-1-5-32-544", "S-1-3-4", "S-1-3-0"})
# Files of a process that runs elevated belong to the administrators.
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
    """Return who else the access list of *descriptor* grants anything to, in order. *us* are the names of this user."""
    access_list = _sections(descriptor).get("D")
    if access_list is None or "NO_ACCESS_CONTROL" in access_list:
        # Without a list everyone has full access; an empty list denies all access.
        return (EVERYBODY,)
    if _ENTRY.sub("", access_list).strip("PARI "):
        return (EVERYBODY,)
    return tuple(name for entry in _ENTRY.findall(access_list) if (name := _other(entry, us)) is not None)


def _other(entry: str, us: frozenset[str]) -> str | None:
    """Return to whom *entry* grants access if it is another user."""
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
    """Return an inheritable access list for the user *sid*, the system and its administrators.

    P: nothing is inherited from the parent folder.
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
# Windows fails to replace or remove a file while another process reads it. Reading takes little time, so retry.
BUSY_SECONDS = 2.0
_LOOK_AGAIN_SECONDS = 0.01


class PrivateFiles(Protocol):
    """Creates and checks private files. Every method raises the `OSError` of the system when it fails."""

    def open(self, path: str) -> int:
        """Return a descriptor for reading. A link is not followed where other users can plant links."""

    def create(self, path: str) -> int:
        """Create a file that only we can open, and return a descriptor for writing.

        The folder must pass `is_own_folder`.
        """

    def is_private(self, descriptor: int, path: str) -> bool:
        """Return whether it is a regular file that we own and that no other user may read or write."""

    def make_folder(self, path: str) -> None:
        """Create the folder for this user alone. An existing folder is left as it is."""

    def is_own_folder(self, path: str) -> bool:
        """Return whether it is a folder that we own and in which no other user can add or replace files."""

    def replace(self, new: str, path: str) -> None:
        """Atomically replace *path* with the file *new*."""

    def remove(self, path: str) -> None: ...


class PosixFiles:
    """Private files and folders by owner and mode."""

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
        # A user who may write here can remove our files and restore old ones.
        return (
            status.st_uid == os.geteuid() and status.st_mode & _KIND == _FOLDER and not status.st_mode & _OTHERS_WRITE
        )

    def replace(self, new: str, path: str) -> None:
        os.replace(new, path)

    def remove(self, path: str) -> None:
        os.unlink(path)


class AccessLists(Protocol):
    """The part of `win32.WindowsApi` that `WindowsFiles` needs."""

    def descriptor_of(self, path: str) -> str: ...

    def create_folder(self, path: str, access_list: str) -> None: ...

    def create_file(self, path: str, access_list: str) -> int: ...

    def user_sid(self) -> str: ...

    def names_of(self, sid: str) -> frozenset[str]: ...


class WindowsFiles:
    """Private files by access lists for the user, the system and its administrators.

    Links are followed: only the user or an administrator can create one in that folder. *descriptor_of* turns a handle
    into a descriptor, like `msvcrt.open_osfhandle`.
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
    """Set exactly this mode on an open file. Where modes mean nothing, the access list of its folder applies."""
    change = getattr(system, "fchmod", None)
    if change is not None and getattr(system, "name", "") != "nt":
        change(descriptor, mode)


@cache
def private_files() -> PrivateFiles:
    """Return the implementation for this system."""
    if os.name != "nt":
        return PosixFiles()
    import msvcrt

    from ostiary.core.platform.win32 import windows

    return WindowsFiles(windows(), descriptor_of=getattr(msvcrt, "open_osfhandle"))  # noqa: B009
