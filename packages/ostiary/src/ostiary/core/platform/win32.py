"""Windows API functions that Python does not expose, called with ctypes. Loaded only on Windows."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_FILE_OBJECT = 1
_OWNER, _ACCESS_LIST = 0x1, 0x4
_GENERIC_WRITE, _SHARE_READ, _CREATE_NEW, _NORMAL_FILE = 0x40000000, 0x1, 1, 0x80
_SDDL_REVISION = 1
_TOKEN_QUERY, _TOKEN_USER = 0x8, 1
_PROCESSES = 0x2
_INVALID = ctypes.c_void_p(-1).value
_LONGEST_PATH = 260
_SYNCHRONIZE, _STILL_RUNNING = 0x100000, 0x102
_OUTBOUND, _FIRST_INSTANCE, _REJECT_REMOTE = 0x2, 0x80000, 0x8
_PIPE_BUFFER = 65536
# Without this, ctypes would truncate their results to 32 bits.
_RETURN_HANDLES = (
    "CreateFileW",
    "CreateJobObjectW",
    "CreateNamedPipeW",
    "CreateToolhelp32Snapshot",
    "GetCurrentProcess",
    "OpenProcess",
)


class _ProcessEntry(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("usage", ctypes.c_uint32),
        ("process", ctypes.c_uint32),
        ("heap", ctypes.c_void_p),
        ("module", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("parent", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("name", ctypes.c_wchar * _LONGEST_PATH),
    )


class _SecurityAttributes(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("descriptor", ctypes.c_void_p), ("inherit", ctypes.c_int))


class WindowsApi:
    """Thin wrappers of Windows API calls. A failure is an `OSError` with the system's error."""

    def __init__(self) -> None:
        load = getattr(ctypes, "WinDLL")  # noqa: B009  # only there on Windows
        self._kernel = load("kernel32", use_last_error=True)
        self._native = load("ntdll")
        self._security = load("advapi32", use_last_error=True)
        for function in _RETURN_HANDLES:
            getattr(self._kernel, function).restype = ctypes.c_void_p

    # --- file permissions ---

    def descriptor_of(self, path: str) -> str:
        """Return the owner and access list of *path* as text (SDDL)."""
        pointer = ctypes.c_void_p()
        self._check_code(
            self._security.GetNamedSecurityInfoW(
                path, _FILE_OBJECT, _OWNER | _ACCESS_LIST, None, None, None, None, ctypes.byref(pointer)
            )
        )
        try:
            return self._text_of(pointer)
        finally:
            self._kernel.LocalFree(pointer)

    def create_folder(self, path: str, access_list: str) -> None:
        """Create a folder with this access list from the start, regardless of what it would inherit."""
        with self._attributes(access_list) as attributes:
            self._check(self._kernel.CreateDirectoryW(path, ctypes.byref(attributes)))

    def create_file(self, path: str, access_list: str) -> int:
        """Create a file with this access list. Returns a handle for writing."""
        with self._attributes(access_list) as attributes:
            handle = self._kernel.CreateFileW(
                path, _GENERIC_WRITE, _SHARE_READ, ctypes.byref(attributes), _CREATE_NEW, _NORMAL_FILE, None
            )
        if handle == _INVALID:
            raise self._error()
        return int(handle)

    def user_sid(self) -> str:
        """Return the security identifier of the user that runs this process."""
        token = ctypes.c_void_p()
        process = ctypes.c_void_p(self._kernel.GetCurrentProcess())
        self._check(self._security.OpenProcessToken(process, _TOKEN_QUERY, ctypes.byref(token)))
        try:
            size = ctypes.c_uint32()
            self._security.GetTokenInformation(token, _TOKEN_USER, None, 0, ctypes.byref(size))
            buffer = ctypes.create_string_buffer(size.value)
            self._check(self._security.GetTokenInformation(token, _TOKEN_USER, buffer, size.value, ctypes.byref(size)))
            sid = ctypes.c_void_p.from_buffer(buffer)
            text = ctypes.c_wchar_p()
            self._check(self._security.ConvertSidToStringSidW(sid, ctypes.byref(text)))
            try:
                return text.value or ""
            finally:
                self._kernel.LocalFree(text)
        finally:
            self._kernel.CloseHandle(token)

    def names_of(self, sid: str) -> frozenset[str]:
        """Return *sid* and its abbreviation in security descriptors, such as LA for the first administrator."""
        with self._descriptor(f"O:{sid}") as descriptor:
            return frozenset({sid, self._text_of(descriptor).partition(":")[2]})

    @contextmanager
    def _attributes(self, access_list: str) -> Iterator[_SecurityAttributes]:
        with self._descriptor(access_list) as descriptor:
            yield _SecurityAttributes(ctypes.sizeof(_SecurityAttributes), descriptor.value, False)

    @contextmanager
    def _descriptor(self, text: str) -> Iterator[ctypes.c_void_p]:
        pointer = ctypes.c_void_p()
        self._check(
            self._security.ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text, _SDDL_REVISION, ctypes.byref(pointer), None
            )
        )
        try:
            yield pointer
        finally:
            self._kernel.LocalFree(pointer)

    def _text_of(self, descriptor: ctypes.c_void_p) -> str:
        text = ctypes.c_wchar_p()
        self._check(
            self._security.ConvertSecurityDescriptorToStringSecurityDescriptorW(
                descriptor, _SDDL_REVISION, _OWNER | _ACCESS_LIST, ctypes.byref(text), None
            )
        )
        try:
            return text.value or ""
        finally:
            self._kernel.LocalFree(text)

    # --- processes ---

    def processes(self) -> dict[int, tuple[int, str]]:
        """Return parent and executable name of each process."""
        snapshot = self._kernel.CreateToolhelp32Snapshot(_PROCESSES, 0)
        if snapshot == _INVALID:
            raise self._error()
        handle = ctypes.c_void_p(snapshot)
        try:
            entry = _ProcessEntry(size=ctypes.sizeof(_ProcessEntry))
            table = {}
            more = self._kernel.Process32FirstW(handle, ctypes.byref(entry))
            while more:
                table[int(entry.process)] = (int(entry.parent), str(entry.name))
                more = self._kernel.Process32NextW(handle, ctypes.byref(entry))
            return table
        finally:
            self._kernel.CloseHandle(handle)

    def runs(self, process: int) -> bool:
        # Not os.kill(process, 0), which sends Ctrl-C on Windows.
        handle = ctypes.c_void_p(self._kernel.OpenProcess(_SYNCHRONIZE, False, process))
        if not handle.value:
            return False
        try:
            return bool(self._kernel.WaitForSingleObject(handle, 0) == _STILL_RUNNING)
        finally:
            self._kernel.CloseHandle(handle)

    def new_job(self, process_handle: int) -> int:
        """Create a job object with the process in it, and everything that it starts from now on."""
        job = self._kernel.CreateJobObjectW(None, None)
        if not job:
            raise self._error()
        try:
            self._check(self._kernel.AssignProcessToJobObject(ctypes.c_void_p(job), ctypes.c_void_p(process_handle)))
        except OSError:
            self.close(job)
            raise
        return int(job)

    def resume(self, process_handle: int) -> None:
        """Resume a process that was started suspended. `subprocess` does not keep a handle of its thread."""
        status = self._native.NtResumeProcess(ctypes.c_void_p(process_handle))
        if status:
            raise OSError(f"the process cannot be resumed: status {status & 0xFFFFFFFF:#x}")

    def end_job(self, job: int) -> None:
        self._check(self._kernel.TerminateJobObject(ctypes.c_void_p(job), 1))

    def close(self, handle: int) -> None:
        self._kernel.CloseHandle(ctypes.c_void_p(handle))

    # --- named pipes ---

    def new_pipe(self, name: str, sid: str) -> int:
        """Create our end of a pipe that one local process of the user *sid* can read. No other process can open it."""
        with self._attributes(f"D:P(A;;GA;;;{sid})") as attributes:
            pipe = self._kernel.CreateNamedPipeW(
                name, _OUTBOUND | _FIRST_INSTANCE, _REJECT_REMOTE, 1, _PIPE_BUFFER, 0, 0, ctypes.byref(attributes)
            )
        if pipe == _INVALID:
            raise self._error()
        return int(pipe)

    def open_pipe(self, name: str) -> int:
        """Open a named pipe and return a descriptor for reading."""
        return os.open(name, os.O_RDONLY)

    def serve_pipe(self, pipe: int, content: bytes) -> None:
        """Wait for the reader, write *content*, and close the pipe once it was read or the reader disconnected."""
        handle = ctypes.c_void_p(pipe)
        # A failure may only mean that the reader connected first; any other failure shows when writing.
        self._kernel.ConnectNamedPipe(handle, None)
        written = ctypes.c_uint32()
        self._kernel.WriteFile(handle, content, len(content), ctypes.byref(written), None)
        self._kernel.FlushFileBuffers(handle)
        # Not DisconnectNamedPipe, which the reader would see as an error instead of end of file.
        self._kernel.CloseHandle(handle)

    # --- failures ---

    def _check(self, succeeded: int) -> None:
        if not succeeded:
            raise self._error()

    def _check_code(self, code: int) -> None:
        if code:
            raise self._error(code)

    def _error(self, code: int | None = None) -> OSError:
        if code is None:
            code = ctypes.get_last_error()  # type: ignore[attr-defined,unused-ignore]
        error: OSError = ctypes.WinError(code)  # type: ignore[attr-defined,unused-ignore]
        return error


@cache
def windows() -> WindowsApi:
    return WindowsApi()
