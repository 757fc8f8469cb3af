"""Questions at doors that say nothing about a request: each is counted, and logged once in a while.

Used by the handlers of all kinds of doors. What was asked is not logged: it may be anything.
"""

from __future__ import annotations

import logging

from ostiary.core.clock import Clock
from ostiary.gateway.observe.metrics import Metrics
from ostiary.gateway.observe.repeated_log import RepeatedLog

log = logging.getLogger("ostiary.gateway")


class VainQuestions:
    """Those of one handler."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._log = RepeatedLog(log, clock)

    def record(self, door: str, result: str, cause: str, address: str) -> None:
        """*result* is the label of the metric, and *cause* for the operator; *address* is who asks."""
        self._metrics.door_questions.inc(door, result)
        fields = {"door": door, "cause": cause, "address": address}
        self._log.write(logging.WARNING, "a door was asked in vain", fields)
