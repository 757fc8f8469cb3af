"""Differences between Linux, macOS and Windows on users' machines, each in one module.

    file_locks       a lock that one process holds at a time
    inotify          change notifications on Linux
    memory_files     a path with content that is never written to disk
    open_flags       flags for opening files
    parent_process   `nt` under the names of `posix` for get-token, and the process that started us
    private_files    files and a folder for one user: owner and mode, or an access list
    signals          deferring Ctrl-C
    win32            calls of the Windows API that Python does not offer

Code on users' machines outside of this folder must not import platform-specific modules (`fcntl`, `msvcrt`) at module
level. Where there are two implementations, both get what they call as an argument, so that tests run both on any
system. `core.process` has its own two implementations for plugins.
"""
