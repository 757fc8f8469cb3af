"""What was seen of an exec plugin: `check` gathers it, `rules` judges it.

A `PluginRun` keeps the bytes that the plugin printed, and reads them as a client would, when it is asked to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from ostiary.core.conformance import ProgramRun
from ostiary.core.process import Ending
from ostiary.core.tls import parse_certificate, read_chain
from ostiary.model import ClientCertificate
from ostiary.wire.client_authentication import AnswerRefused, ExecAnswer, answer_fields, decode_answer, refusals


@dataclass(frozen=True)
class PluginRun(ProgramRun):
    """One run of the plugin: how it was asked, how it ended, and what it said."""

    api_version: str
    with_cluster: bool
    ending: Ending
    exit_code: int
    seconds: float
    ended_at: datetime
    stdout: bytes = field(repr=False)
    stderr: bytes = field(repr=False)
    as_proposed: bool = False

    @property
    def asked_for(self) -> str:
        version = self.api_version.rpartition("/")[2]
        how = " with cluster info" if self.with_cluster else " as proposed in 2018" if self.as_proposed else ""
        return f"asked for {version}{how}"

    @cached_property
    def text(self) -> str:
        """Its stdout, with a replacement for what is not UTF-8: so does client-go."""
        return self.stdout.decode("utf-8-sig", "replace")

    @cached_property
    def is_utf8(self) -> bool:
        try:
            self.stdout.decode("utf-8")
        except UnicodeDecodeError:
            return False
        return True

    @cached_property
    def fields(self) -> Mapping[str, object] | None:
        """The object that it printed; None if that cannot be found out."""
        if not self.printed:
            return None
        try:
            return answer_fields(self.stdout)
        except AnswerRefused:
            return None

    @cached_property
    def broken(self) -> Mapping[str, AnswerRefused]:
        """The rules of the answer that it breaks; of two mistakes under one rule, the first."""
        broken: dict[str, AnswerRefused] = {}
        for refusal in refusals(self.stdout, api_version=self.api_version):
            broken.setdefault(refusal.rule, refusal)
        return broken

    @cached_property
    def answer(self) -> ExecAnswer | None:
        if self.fields is None or self.broken:
            return None
        return decode_answer(self.stdout, api_version=self.api_version)

    @cached_property
    def certificate(self) -> ClientCertificate | None:
        """The client certificate; raises `ValueError` when it is not a matching pair."""
        if self.answer is None or self.answer.certificate_pem is None:
            return None
        if self.answer.key_address is not None:
            # The key itself is not asked for: that may cost a PIN.
            return read_chain(self.answer.certificate_pem)
        if self.answer.key_pem is None:
            return None
        return parse_certificate(self.answer.certificate_pem, self.answer.key_pem.reveal())


@dataclass(frozen=True, slots=True)
class PluginEvidence:
    """All that was seen of a plugin. None stands for what could not be looked at."""

    runs: tuple[PluginRun, ...] = ()
    start_error: str | None = None
    needs_stdin: bool | None = None
    asked_on_terminal: bool | None = None
    left_something_behind: bool | None = None
