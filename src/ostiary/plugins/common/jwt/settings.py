"""The settings that every reader of signed tokens has: which signatures are believed, how far clocks may differ."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ostiary.core.config import Fields, Json
from ostiary.core.settings.kinds import Duration, SettingKind
from ostiary.plugins.common.jwt.algorithms import ALGORITHMS

CLOCK_SKEW = timedelta(seconds=30)
MOST_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Algorithms(SettingKind[frozenset[str]]):
    among: tuple[str, ...] = tuple(ALGORITHMS)

    @property
    def label(self) -> str:
        return "list"

    def read(self, fields: Fields, key: str, directory: Path) -> frozenset[str] | None:
        names = fields.strings(key)
        for name in names:
            if name not in self.among:
                fields.problem("unknown or unsafe algorithm", key, f"there are: {', '.join(self.among)}")
        return frozenset(names) & frozenset(self.among) or None

    def schema(self) -> dict[str, Json]:
        return {"type": "array", "items": {"enum": list(self.among)}}

    def blank(self) -> frozenset[str]:
        return frozenset(self.among)


@dataclass(frozen=True)
class ClockSkew(Duration):
    def read(self, fields: Fields, key: str, directory: Path) -> timedelta | None:
        skew = fields.optional_duration(key)
        if skew is not None and not timedelta(0) <= skew <= MOST_SKEW:
            fields.problem("it must be between 0s and 5m", key)
        return skew
