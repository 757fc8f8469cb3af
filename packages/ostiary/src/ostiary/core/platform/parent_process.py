"""Windows' `nt` under the names of `posix`, as far as the cached answer of get-token needs them.

Imported by `cli.cached_token` where there is no `posix`. As there, nothing is imported that is not part of the
interpreter, except where the asking process must be known.

`nt` says nothing of access lists, and asking for them takes longer than all the rest. So what lies in the folder counts
as private here: `private_files` made the folder for this user alone, and checks that whenever a file is written or read
for a renewal.
"""

from __future__ import annotations

import sys

# Not from typing: that alone would cost more than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import stat_result
    from types import ModuleType

_KIND, _PRIVATE = 0o170000, 0o600
_US = 0


class FileStatus:
    """What `fstat` says, with the owner and the mode that the folder stands for."""

    def __init__(self, status: stat_result) -> None:
        self.st_mode = status.st_mode & _KIND | _PRIVATE
        self.st_uid = _US
        self.st_nlink = status.st_nlink
        self.st_size = status.st_size


class WindowsInterpreter:
    """*nt* is that module, and *processes* returns parent and name of each process."""

    O_NOFOLLOW = O_NONBLOCK = 0
    stat_result = FileStatus

    def __init__(self, nt: ModuleType, processes: Callable[[], dict[int, tuple[int, str]]]) -> None:
        self._nt = nt
        self._processes = processes
        for name in ("read", "write", "close", "stat", "ftruncate", "isatty", "_exit"):
            setattr(self, name, getattr(nt, name))
        self.O_RDONLY, self.O_WRONLY, self.O_CREAT, self.O_APPEND = nt.O_RDONLY, nt.O_WRONLY, nt.O_CREAT, nt.O_APPEND
        self.O_CLOEXEC = nt.O_NOINHERIT
        self.environ = {name.upper().encode(): value.encode() for name, value in _printable(nt.environ)}

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        # Without O_BINARY line ends would be changed, and the byte 26 be the end.
        return int(self._nt.open(path, flags | self._nt.O_BINARY, mode))

    def fstat(self, descriptor: int) -> FileStatus:
        return FileStatus(self._nt.fstat(descriptor))

    def geteuid(self) -> int:
        return _US

    def getppid(self) -> int:
        """The program that runs our launcher."""

        parent = int(self._nt.getppid())
        try:
            return asking_process(self._processes(), int(self._nt.getpid()), parent)
        except OSError:
            return parent


def _printable(environ: dict[str, str]) -> Iterator[tuple[str, str]]:
    """What can be written as UTF-8; half a surrogate pair is in no variable that we read."""
    for name, value in environ.items():
        try:
            name.encode(), value.encode()
        except UnicodeEncodeError:
            continue
        yield name, value


def _all_processes() -> dict[int, tuple[int, str]]:
    from ostiary.core.platform.win32 import windows

    return windows().processes()


def windows_interpreter() -> WindowsInterpreter:
    """That of this process."""
    __import__("nt")
    return WindowsInterpreter(sys.modules["nt"], _all_processes)


# Which program runs us, where a launcher stands between it and the interpreter: on Windows. Pure.
#
#     kubectl.exe -> ostiary.exe -> python.exe (of the environment) -> python.exe (its base), which is us
#
# Called by `windows_interpreter`. Each launcher is a new process, so the parent alone would never be the same twice.

# What pip makes of our entry points.
_LAUNCHERS = ("ostiary.exe", "kubectl-ostiary.exe")
_DEEPEST = 4


def asking_process(processes: dict[int, tuple[int, str]], us: int, parent: int) -> int:
    """The process that runs our launcher; *parent* if there is none. *processes* are parents and names."""
    process = us
    for _ in range(_DEEPEST):
        above, name = processes.get(process, (0, ""))
        if name.lower() in _LAUNCHERS:
            return above or parent
        if not above:
            break
        process = above
    return parent
