"""States of the workers of one replica, and their merge into the state of the replica. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

NO_WORKER = "no worker answers"
MIXED = "its workers have different configurations: see the log"


class WorkerState(TypedDict):
    """State of one worker as JSON. `configuration` is the digest in hex, which never leaves this replica."""

    pid: int
    configuration: str
    configured_seconds: float
    requests: float
    in_flight: float
    open_streams: float
    tokens: float
    revocation: int | None
    confirmed_seconds: float
    checks: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Figures:
    """Merged state of the workers of one replica."""

    configuration: str
    configured_seconds: float
    in_flight: int
    open_streams: int
    tokens: int
    revocation: int | None
    confirmed_seconds: float
    workers: int
    trouble: str


def merge_states(answers: Sequence[WorkerState | None]) -> Figures:
    """Merge the states of all workers; None is a worker that did not respond.

    Revocations are those of the slowest worker, and `trouble` is empty only if every worker is ready.
    """
    states = [state for state in answers if state is not None]
    if not states:
        return Figures("", 0.0, 0, 0, 0, None, 0.0, 0, NO_WORKER)
    configurations = Counter(state["configuration"] for state in states)
    numbers = [state["revocation"] for state in states]
    return Figures(
        configuration=configurations.most_common(1)[0][0],
        configured_seconds=min(state["configured_seconds"] for state in states),
        in_flight=int(sum(state["in_flight"] for state in states)),
        open_streams=int(sum(state["open_streams"] for state in states)),
        # Most tokens are cached by several workers, so a sum would count them more than once.
        tokens=int(max(state["tokens"] for state in states)),
        revocation=None if None in numbers else min(number for number in numbers if number is not None),
        confirmed_seconds=max(state["confirmed_seconds"] for state in states),
        workers=len(states),
        trouble=_trouble(answers, is_mixed=len(configurations) > 1),
    )


def _trouble(answers: Sequence[WorkerState | None], *, is_mixed: bool) -> str:
    for state in answers:
        if state is None:
            return "a worker does not answer"
        for name, trouble in state["checks"]:
            if trouble:
                return f"{name}: {trouble}"
    return MIXED if is_mixed else ""


class RequestRate:
    """Requests per second of all workers between two updates. A restarted worker counts from zero."""

    def __init__(self) -> None:
        self._totals: dict[int, float] = {}
        self._at: float | None = None
        self.per_second = 0.0

    def update(self, states: Sequence[WorkerState | None], now: float) -> None:
        totals = {state["pid"]: state["requests"] for state in states if state is not None}
        if self._at is not None and now > self._at:
            new = sum(max(0.0, total - self._totals.get(pid, 0.0)) for pid, total in totals.items())
            self.per_second = round(new / (now - self._at), 1)
        self._totals, self._at = totals, now
