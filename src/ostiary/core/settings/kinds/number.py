"""Settings that are a number or a time span."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ostiary.core.config import Fields, Json
from ostiary.core.go.duration import format_duration
from ostiary.core.settings.kinds.kind import SettingKind

_NUMBER = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"  # the micro sign and the Greek letter
DURATION_PATTERN = rf"^({_NUMBER})+$|^0$"


@dataclass(frozen=True)
class Integer(SettingKind[int]):
    least: int = 1
    unit: str = ""
    mistake: str = "it must be at least {}"

    @property
    def label(self) -> str:
        return self.unit or "integer"

    def read(self, fields: Fields, key: str, directory: Path) -> int | None:
        number = fields.optional_integer(key)
        if number is not None and number < self.least:
            fields.problem(self.mistake.format(self.least), key)
            return None
        return number

    def schema(self) -> dict[str, Json]:
        return {"type": "integer", "minimum": self.least}

    def blank(self) -> int:
        return self.least


@dataclass(frozen=True)
class Rate(SettingKind[float]):
    """A number that is not negative; `zero` tells whether zero is allowed, and mostly means no limit."""

    zero: bool = False

    @property
    def label(self) -> str:
        return "number"

    def read(self, fields: Fields, key: str, directory: Path) -> float | None:
        number = fields.optional_number(key)
        if number is not None and (number < 0 or (number == 0 and not self.zero)):
            fields.problem(_sign_mistake(zero=self.zero), key)
            return None
        return number

    def schema(self) -> dict[str, Json]:
        return {"type": "number", "minimum" if self.zero else "exclusiveMinimum": 0}

    def blank(self) -> float:
        return 1.0

    def write(self, value: float) -> Json:
        return int(value) if value == int(value) else value


@dataclass(frozen=True)
class Ratio(SettingKind[float]):
    """A part of a whole: a number from 0 to 1."""

    @property
    def label(self) -> str:
        return "number from 0 to 1"

    def read(self, fields: Fields, key: str, directory: Path) -> float | None:
        number = fields.optional_number(key)
        if number is not None and not 0 <= number <= 1:
            fields.problem("it must be a number from 0 to 1", key, "0.1 is one in ten")
            return None
        return number

    def schema(self) -> dict[str, Json]:
        return {"type": "number", "minimum": 0, "maximum": 1}

    def blank(self) -> float:
        return 1.0

    def write(self, value: float) -> Json:
        return int(value) if value == int(value) else value


@dataclass(frozen=True)
class Duration(SettingKind[timedelta]):
    """A time span with its unit; `zero` tells whether ``0s`` is allowed. `mistake` is the error for a shorter one."""

    zero: bool = False
    least: timedelta = timedelta(0)
    mistake: str = ""

    @property
    def label(self) -> str:
        return "duration"

    def read(self, fields: Fields, key: str, directory: Path) -> timedelta | None:
        bare = fields.plain(key)
        if isinstance(bare, (int, float)) and not isinstance(bare, bool):
            fields.problem("it has no unit", key, f"write {bare}s, {bare}m or {bare}h")
            return None
        span = fields.optional_duration(key)
        if span is not None and (span < self.least or (span == timedelta(0) and not self.zero)):
            fields.problem(self.mistake or _sign_mistake(zero=self.zero), key)
            return None
        return span

    def schema(self) -> dict[str, Json]:
        return {"type": "string", "pattern": DURATION_PATTERN}

    def blank(self) -> timedelta:
        return timedelta(seconds=1)

    def write(self, value: timedelta) -> Json:
        return short_duration(value)


@dataclass(frozen=True)
class Seconds(SettingKind[float]):
    """A time span with its unit, for code that computes with seconds."""

    zero: bool = False
    mistake: str = ""

    @property
    def label(self) -> str:
        return "duration"

    def read(self, fields: Fields, key: str, directory: Path) -> float | None:
        span = Duration(self.doc, zero=self.zero, mistake=self.mistake).read(fields, key, directory)
        return None if span is None else span.total_seconds()

    def schema(self) -> dict[str, Json]:
        return {"type": "string", "pattern": DURATION_PATTERN}

    def blank(self) -> float:
        return 1.0

    def write(self, value: float) -> Json:
        return short_duration(timedelta(seconds=value))


def short_duration(duration: timedelta) -> str:
    """As people write it: 1h, and not 1h0m0s."""
    return re.sub(r"(?<=h)0m0s$|(?<=m)0s$", "", format_duration(duration))


def _sign_mistake(*, zero: bool) -> str:
    return "it must not be negative" if zero else "it must be greater than zero"
