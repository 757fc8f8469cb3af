"""Windows equivalent of `posix` for the fast path of get-token, and the process that started us.

Imported by `cli.cached_token` where there is no `posix`. For start-up time, only modules built into the interpreter are
imported, except where the calling process must be determined.

`nt` has no access lists, and reading them would take longer than everything else. So files in the token folder count as
private here: `private_files` created the folder for this user alone, and verifies that whenever a file is written, or
read for a refresh.
"""

from __future__ import annotations

import sys

# Not from typing: that import alone would cost more than everything else here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import stat_result
    from types import ModuleType

_KIND, _PRIVATE = 0o170000, 0o600
_US = 0


class FileStatus:
    """Result of `fstat`, with the owner and mode that the private folder implies."""

    def __init__(self, status: stat_result) -> None:
        self.st_mode = status.st_mode & _KIND | _PRIVATE
        self.st_uid = _US
        self.st_nlink = status.st_nlink
        self.st_size = status.st_size


class WindowsInterpreter:
    """The functions of `posix`, implemented with the module *nt*.

    *processes* returns parent and name of each process.
    """

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
        # Without O_BINARY line ends would be converted, and byte 26 would be end of file.
        return int(self._nt.open(path, flags | self._nt.O_BINARY, mode))

    def fstat(self, descriptor: int) -> FileStatus:
        return FileStatus(self._nt.fstat(descriptor))

    def geteuid(self) -> int:
        return _US

    def getppid(self) -> int:
        """Return the program that runs our launcher."""

        parent = int(self._nt.getppid())
        try:
            return asking_process(self._processes(), int(self._nt.getpid()), parent)
        except OSError:
            return parent


def _printable(environ: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that can be encoded as UTF-8. None that we read holds half a surrogate pair."""
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
    """Return the interpreter interface of this process."""
    __import__("nt")
    return WindowsInterpreter(sys.modules["nt"], _all_processes)


# Launchers that pip creates for our entry points.
_LAUNCHERS = ("ostiary.exe", "kubectl-ostiary.exe")
_DEEPEST = 4


def asking_process(processes: dict[int, tuple[int, str]], us: int, parent: int) -> int:
    """Return the process that runs our launcher; *parent* if there is none. *processes* are parents and names.

        kubectl.exe -> ostiary.exe -> python.exe (of the environment) -> python.exe (its base), which is us

    Each launcher is a new process, so the direct parent would never be the same twice.
    """
    process = us
    for _ in range(_DEEPEST):
        above, name = processes.get(process, (0, ""))
        if name.lower() in _LAUNCHERS:
            return above or parent
        if not above:
            break
        process = above
    return parent
