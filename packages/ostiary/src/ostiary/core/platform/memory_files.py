"""A path that OpenSSL can open while its content is never written to disk.

    Linux     a file in memory (memfd)
    macOS     a pipe that is filled already
    Windows   a named pipe, which only this user can open, and only once

`core.tls` needs it because `ssl` loads certificates and keys from files only.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Protocol

# The minimum that a pipe buffers without a reader.
PIPE_HOLDS = 16 * 1024


def in_memory_file(content: bytes) -> AbstractContextManager[str]:
    """Return a path with *content* that can be read once and is removed when the block ends."""
    if os.name == "nt":
        from ostiary.core.platform.win32 import windows

        return named_pipe(content, windows())
    return descriptor_path(_memory(content) if hasattr(os, "memfd_create") else filled_pipe(content))


@contextmanager
def descriptor_path(descriptor: int) -> Iterator[str]:
    try:
        yield f"/dev/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _memory(content: bytes) -> int:
    descriptor = os.memfd_create("ostiary", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    return descriptor


def filled_pipe(content: bytes) -> int:
    if len(content) > PIPE_HOLDS:
        raise ValueError(f"a client certificate or key is larger than {PIPE_HOLDS} bytes")
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as file:
        file.write(content)
    return reading


class NamedPipes(Protocol):
    """The part of `win32.WindowsApi` that is needed here."""

    def user_sid(self) -> str: ...

    def new_pipe(self, name: str, sid: str) -> int: ...

    def serve_pipe(self, pipe: int, content: bytes) -> None: ...

    def open_pipe(self, name: str) -> int: ...


@contextmanager
def named_pipe(content: bytes, api: NamedPipes) -> Iterator[str]:
    path = rf"\\.\pipe\ostiary-{secrets.token_hex(16)}"
    pipe = api.new_pipe(path, api.user_sid())
    writer = threading.Thread(target=api.serve_pipe, args=(pipe, content), daemon=True)
    writer.start()
    try:
        yield path
    finally:
        # Without a reader the writer still waits for one; connecting releases it.
        with suppress(OSError):
            os.close(api.open_pipe(path))
        writer.join()
