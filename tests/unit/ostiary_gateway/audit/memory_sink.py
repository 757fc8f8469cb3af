"""A sink that keeps its events, and an auditor that writes to it."""

from __future__ import annotations

import json
from typing import Any

from ostiary.errors import AuditUnavailable
from ostiary_gateway.audit.auditor import Auditor
from ostiary_gateway.testing import FakeClock
from ostiary_gateway.wire.audit_policy import AuditLevel, AuditRule, Policy, Stage


class Memory:
    """A sink that keeps the events; full, it refuses like a blocking one."""

    def __init__(self) -> None:
        self.dropped = 0
        self.lines: list[str] = []
        self.full = False

    def accept(self, line: str) -> None:
        if self.full:
            raise AuditUnavailable("an audit event cannot be stored")
        self.lines.append(line)

    async def flush(self) -> None: ...

    async def close(self) -> None: ...

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


def auditor(
    sink: Memory, clock: FakeClock, level: AuditLevel = AuditLevel.METADATA, *omit: Stage, **options: Any
) -> Auditor:
    return Auditor(Policy((AuditRule(level),), frozenset(omit)), [sink], clock=clock, **options)
