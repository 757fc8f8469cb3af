"""What was seen of a credential provider: `check` gathers it, `rules` judges it.

A `ProviderRun` keeps the bytes that the provider printed, and reads them as the kubelet would, when it is asked to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property

from ostiary.core.conformance import NothingToJudge, ProgramRun
from ostiary.core.process import Ending
from ostiary.registry.credentials import normalised_key
from ostiary.wire.credential_provider import Request, Response, ResponseRefused, decode_response, refusals


class RunPurpose(Enum):
    """What a run was for. FIRST: the image and the version that it must know."""

    FIRST = "the first version"
    OTHER_VERSION = "another version"
    UNKNOWN_IMAGE = "an image it cannot know"
    WITH_TOKEN = "with a service account token"  # noqa: S105
    NOTHING = "nothing on stdin"


@dataclass(frozen=True)
class ProviderRun(ProgramRun):
    """One run of the provider: how it was asked, how it ended, and what it said."""

    request: Request
    purpose: RunPurpose
    ending: Ending
    exit_code: int
    seconds: float
    ended_at: datetime
    holds_stdout: bool | None = None
    stdout: bytes = field(default=b"", repr=False)
    stderr: bytes = field(default=b"", repr=False)

    @property
    def asked_for(self) -> str:
        if self.purpose in (RunPurpose.FIRST, RunPurpose.OTHER_VERSION):
            return f"asked for {self.request.api_version.rpartition('/')[2]}"
        return (
            f"asked {self.purpose.value}"
            if self.purpose is RunPurpose.WITH_TOKEN
            else f"asked for {self.purpose.value}"
        )

    @cached_property
    def broken(self) -> Mapping[str, ResponseRefused]:
        """The rules of the answer that it breaks; of two mistakes under one rule, the first."""
        broken: dict[str, ResponseRefused] = {}
        for refusal in refusals(self.stdout, self.request):
            broken.setdefault(refusal.rule, refusal)
        return broken

    @cached_property
    def response(self) -> Response | None:
        if not self.printed or self.broken:
            return None
        return decode_response(self.stdout, self.request, now=self.ended_at)

    @cached_property
    def keys(self) -> tuple[bytes, ...]:
        """The keys of its answer as they are compared; those that cannot be parsed are left out."""
        raw = self.response.auth if self.response is not None else ()
        return tuple(key for text in raw if (key := normalised_key(text)) is not None)


@dataclass(frozen=True, slots=True)
class ProviderEvidence:
    """All that was seen of a provider."""

    runs: tuple[ProviderRun, ...] = ()
    start_error: str | None = None

    def the(self, purpose: RunPurpose) -> ProviderRun:
        for run in self.runs:
            if run.purpose is purpose:
                return run
        raise NothingToJudge
