"""What differs between Linux, macOS and Windows on the paths of a person's machine, each difference in one place.

    windows_interpreter   `nt` under the names of `posix`, for the cached answer of get-token
    asker                 which program runs us, where a launcher stands between it and the interpreter
    open_flags            what a file is opened with
    private_files         files and a folder for one user: owner and mode, or an access list
    access_list           reads an access list in Windows' own notation; pure
    win32                 the calls of the Windows API that Python does not offer
    file_locks            a lock that one process holds at a time
    memory_files          a path with content that no disk holds
    terminal              the terminal of the person, beside stdin and stdout
    signals               Ctrl-C put off

Modules outside of this folder have no platform's modules (`fcntl`, `msvcrt`) at their top, on those paths. Where there
are two branches, both are classes or functions that get what they call as an argument, so that tests run both anywhere.
The processes of plugins have their own two branches in `core.process`.
"""
