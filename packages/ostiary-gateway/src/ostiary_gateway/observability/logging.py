"""Formatters and filters of the gateway's log: one line per event, with fields, without secrets.

    log.warning("a provider failed", extra={"request_id": ..., "cause": ...})

    {"time": ..., "level": "warning", "event": "a provider failed", "request_id": ..., "cause": ...}     json
    2026-01-01T00:00:00.000Z WARNING a provider failed request_id=... cause="..."                        text

Modules log with the standard library. Every text passes through `core.redaction.redact`, including tracebacks and the
messages of other libraries. Lines about requests are limited per source (`SourceLimit`); their audit events are not.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

from ostiary.core.bounded_cache import Bounded
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.redaction import redact
from ostiary.errors import ConfigurationError
from ostiary_gateway.networks import network

FORMATS = ("json", "text")
LEVELS = ("debug", "info", "warning", "error")
# These loggers write every URL that they request, with its query.
_TALKATIVE = ("httpx", "httpx2", "httpcore", "httpcore2", "asyncio")
_OF_A_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "source"}
# A random id looks like a secret. Fields with these names and this form are not redacted.
_IDS = frozenset({"request_id", "audit_id", "decision_id", "session_id"})
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[A-Za-z0-9._-]{1,23}")
_PLAIN = re.compile(r"[^\s\"=\\]+")
_DEEPEST = 4
# Per source. Without a limit, a flood of requests fills the disk, journald or the log collector of the cluster.
LINES_PER_SECOND = 10
# Sources that are counted separately. With more of them, the counts of the oldest are dropped.
MOST_SOURCES = 4096

log = logging.getLogger("ostiary.gateway")


def configure_logging(
    format: str = "text", level: str = "info", stream: TextIO | None = None, *, secrets: Iterable[str] = ()
) -> logging.Handler:
    """Send all log records to *stream* (default: standard error), and replace the handler of an earlier call.

    The texts in *secrets* are redacted wherever they occur.
    """
    if format not in FORMATS or level not in LEVELS:
        cause = f"the format must be one of {', '.join(FORMATS)}, and the level one of {', '.join(LEVELS)}"
        raise ConfigurationError("the log cannot be set up", cause=cause)
    handler = _Handler(stream or sys.stderr)
    handler.set_name("ostiary")
    handler.addFilter(SourceLimit())
    handler.setFormatter(JsonFormatter(secrets) if format == "json" else TextFormatter(secrets))
    root = logging.getLogger()
    for before in [before for before in root.handlers if before.get_name() == "ostiary"]:
        root.removeHandler(before)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    return handler


def report_suppressed() -> None:
    """Log how many lines of each source were suppressed and not reported yet. The caller runs it every second."""
    for handler in logging.getLogger().handlers:
        for limit in handler.filters:
            if isinstance(limit, SourceLimit):
                limit.report()


@dataclass(slots=True)
class _Window:
    """Lines of one source within a second. `client` is the client of the first line."""

    client: str
    ends_at: float
    lines: int = 0
    suppressed: int = 0


class SourceLimit(logging.Filter):
    """Limits the lines about requests to `LINES_PER_SECOND` per source, and reports how many were suppressed.

    The source of a record is its `user`, else its `address`, else its `source`, which is not written as a field because
    the message contains it. Records about requests without any of them share one limit. All other records pass.
    """

    def __init__(self, *, now: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        super().__init__()
        self._now = now
        self._lock = threading.Lock()
        self._windows: Bounded[str, _Window] = Bounded(MOST_SOURCES)

    def filter(self, record: logging.LogRecord) -> bool:
        client = _client(record)
        if client is None:
            return True
        # The user, or the network that an ISP assigns to one subscriber.
        source = client if getattr(record, "user", "") else network(client)
        now = self._now()
        with self._lock:
            window = self._windows.get(source)
            if window is None or now >= window.ends_at:
                suppressed = 0 if window is None else window.suppressed
                self._windows.keep(source, window := _Window(client, now + 1.0))
                if suppressed:
                    record.__dict__.setdefault("suppressed", suppressed)
            if window.lines >= LINES_PER_SECOND:
                window.suppressed += 1
                return False
            window.lines += 1
        return True

    def report(self) -> None:
        """Log the suppressed lines of sources that have logged nothing since."""
        now = self._now()
        with self._lock:
            ended = [(source, window) for source, window in self._windows.items() if now >= window.ends_at]
            for source, _ in ended:
                del self._windows[source]
        for source, window in ended:
            if window.suppressed:
                extra = {"source": source, "client": window.client, "suppressed": window.suppressed}
                log.warning("log lines were suppressed", extra=extra)


def _client(record: logging.LogRecord) -> str | None:
    fields = vars(record)
    for name in ("user", "address", "source"):
        if value := fields.get(name):
            return str(value)
    return "" if "request_id" in fields else None


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        """Print nothing if logging itself fails: the standard library would print the raw arguments."""


class _Formatter(logging.Formatter):
    def __init__(self, secrets: Iterable[str] = ()) -> None:
        super().__init__()
        self._secrets = tuple(secrets)

    def fields(self, record: logging.LogRecord) -> dict[str, object]:
        """Return the fields of a record by name, without its message."""
        fields = {
            self._clean(name): self._field(name, value)
            for name, value in vars(record).items()
            if name not in _OF_A_RECORD and value is not None and value != ""
        }
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = self._clean(self.formatException(record.exc_info))
        if record.stack_info:
            fields["stack"] = self._clean(record.stack_info)
        return fields

    def event(self, record: logging.LogRecord) -> str:
        try:
            return self._clean(record.getMessage())
        except Exception:
            # A broken log call must not fail a request. Its arguments are not written: they may contain secrets.
            return self._clean(str(record.msg))

    def _field(self, name: str, value: object, depth: int = 0) -> object:
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if isinstance(value, dict) and depth < _DEEPEST:
            return {self._clean(str(key)): self._field(str(key), item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)) and depth < _DEEPEST:
            return [self._field(name, item, depth + 1) for item in value]
        text = _text(value)
        if name in _IDS and _ID.fullmatch(text):
            return text
        return self._clean(text)

    def _clean(self, text: str) -> str:
        return redact(text, secrets=self._secrets)


class JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": self.event(record),
        }
        # First for readability, and again last so that they override fields of the same name.
        return json.dumps({**line, **self.fields(record), **line})


class TextFormatter(_Formatter):
    """Formats records for a terminal. Values with spaces, quotes or newlines are quoted, so a record stays one line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = self.fields(record)
        traceback = [str(fields.pop(name)) for name in ("stack", "traceback") if name in fields]
        event = " ".join(self.event(record).split())
        pairs = [f"{_word(name)}={_value(value)}" for name, value in fields.items()]
        first = " ".join([_time(record), record.levelname, event, *pairs])
        return "\n".join([first, *("    " + row for text in traceback for row in text.splitlines())])


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def _word(name: str) -> str:
    return "_".join(name.split()) or "_"


def _value(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)
