"""Admission: the request is allowed, but is it within bounds?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ostiary.model import Attributes


@dataclass(frozen=True, slots=True)
class Admission:
    """Yes, or no with a reason the caller may read. `retry_after` (seconds) turns the refusal from 403 into 429."""

    admitted: bool
    reason: str = ""
    retry_after: float | None = None


class AdmissionProvider(Protocol):
    """Called after authorization and before the upstream, in the order configured; the first refusal ends it.

    `size` is the announced length of the body, None where it is not announced (the body itself is not read).
    It must not wait: it is called between reading a request and sending it on. An exception refuses the request.
    `settled` is called once for every admitted request when its answer is known, so that a refused creation
    need not count.
    """

    def admit(self, attributes: Attributes, *, size: int | None) -> Admission: ...

    def settled(self, attributes: Attributes, *, status: int) -> None: ...
