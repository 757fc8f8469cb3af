"""The log file of the proxy: private to the user, limited in size, with secrets redacted."""

from __future__ import annotations

import logging
import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler

from ostiary.cli.login import sessions as files
from ostiary.core.redaction import redact

LARGEST = 1024 * 1024
_FIELDS = ("context", "cause", "left_out")


def log_path() -> str:
    return os.path.join(files.sessions_folder(), "connect.log")


class _PrivateFile(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        def open_private(path: str, flags: int) -> int:
            return os.open(path, flags | os.O_NOFOLLOW, 0o600)

        return open(self.baseFilename, "a", encoding="utf-8", opener=open_private)


class _Redacted(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {name: getattr(record, name) for name in _FIELDS if getattr(record, name, "")}
        text = super().format(record) + "".join(f"; {name}: {value}" for name, value in fields.items())
        return redact(text)


def log_to_file() -> None:
    """Log everything in this process to the file, and keep one rotated file."""
    os.makedirs(files.sessions_folder(), mode=0o700, exist_ok=True)
    _install(_PrivateFile(log_path(), maxBytes=LARGEST, backupCount=1))


def log_to_terminal() -> None:
    _install(logging.StreamHandler())


def _install(handler: logging.Handler) -> None:
    handler.setFormatter(_Redacted("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("ostiary.connect").setLevel(logging.INFO)
