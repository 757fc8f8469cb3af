"""Judges a credential provider, whatever it is written in: runs it a few times and looks closely.

    each version -> an image it does not know -> with a service account token -> nothing on stdin -> Evidence -> Report

Every run is as the kubelet's: a request on stdin, our environment and a time limit. What the evidence means is for
`rules` to say. Nothing that the provider printed leaves this module and that one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property

from ostiary.conformance.credential_provider_rules import ProviderEvidence, ProviderRun, RunPurpose, judge
from ostiary.conformance.findings import CannotStart, Report, find_program, is_held, run_program
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.process import Ending, RunLimits
from ostiary.errors import ConfigurationError
from ostiary.model import Secret
from ostiary.registry.image_name import parse_image_name
from ostiary.wire.credential_provider import API_VERSIONS, V1, V1ALPHA1, V1BETA1, Request, encode_request

# What the kubelet gives a provider.
SECONDS = 60.0
# The whole of it, not a tail: a password may stand in the first line.
STDERR_BYTES = 1 << 20
SAMPLE_IMAGE = "registry.example.com/team/app"
UNKNOWN_IMAGE = "ostiary-check.invalid/nobody/knows"
SAMPLE_TOKEN = Secret("ostiary-check-of-a-service-account-token")

# Runs in place of the provider for a moment: tells on stderr which pipe is stdout, and becomes the provider; or
# tells why it cannot.
DOORSTEP = """
import os, sys
os.write(2, b"%d\\n" % os.fstat(1).st_ino)
try:
    os.execv(sys.argv[1], sys.argv[2:])
except OSError as error:
    os.write(2, b"doorstep: %d\\n" % error.errno)
    os._exit(126)
"""
_STUCK = re.compile(rb"doorstep: (\d+)\n")


def check(
    command: Sequence[str],
    *,
    image: str = SAMPLE_IMAGE,
    env: Mapping[str, str] | None = None,
    versions: Sequence[str] = (V1, V1BETA1, V1ALPHA1),
    seconds: float = SECONDS,
    clock: Clock = SYSTEM_CLOCK,
) -> Report:
    """Run *command* a few times and judge it by every rule.

    *image* should be one that it has a credential for. The first of *versions* it must speak; the others it
    may refuse. *env* is added to our environment, as the configuration's is. *seconds* is for one run.
    """
    if not command or not versions or not set(versions) <= set(API_VERSIONS):
        raise ConfigurationError(
            "there is nothing to check",
            cause="a command and at least one known API version are needed",
            hint=f"the versions are {', '.join(API_VERSIONS)}",
        )
    examination = _ProviderExamination(command, parse_image_name(image).repository, env or {}, versions, seconds, clock)
    evidence = examination.evidence()
    return Report(command[0], len(evidence.runs), judge(evidence))


class _ProviderExamination:
    def __init__(
        self,
        command: Sequence[str],
        repository: str,
        env: Mapping[str, str],
        versions: Sequence[str],
        seconds: float,
        clock: Clock,
    ) -> None:
        self._command = tuple(command)
        self._repository = repository
        self._env = env
        self._versions = versions
        self._limits = RunLimits(seconds=seconds, stderr_tail_bytes=STDERR_BYTES)
        self._clock = clock

    def evidence(self) -> ProviderEvidence:
        runs: list[ProviderRun] = []
        try:
            for request, purpose in self._questions():
                runs.append(self._run(request, purpose))
                # One that hangs would hang each time, and nobody wants to wait for that.
                if runs[-1].ending is Ending.TIMED_OUT:
                    break
        except CannotStart as error:
            return ProviderEvidence(start_error=str(error))
        return ProviderEvidence(tuple(runs))

    def _questions(self) -> list[tuple[Request, RunPurpose]]:
        first, *others = self._versions
        questions = [(Request(self._repository, first), RunPurpose.FIRST)]
        questions += [(Request(self._repository, version), RunPurpose.OTHER_VERSION) for version in others]
        questions.append((Request(UNKNOWN_IMAGE, first), RunPurpose.UNKNOWN_IMAGE))
        if V1 in self._versions:
            request = Request(self._repository, V1, service_account_token=SAMPLE_TOKEN)
            questions.append((request, RunPurpose.WITH_TOKEN))
        questions.append((Request("", first), RunPurpose.NOTHING))
        return questions

    def _run(self, request: Request, purpose: RunPurpose) -> ProviderRun:
        started_at = self._clock.monotonic()
        executable, argv = self._start
        stdin = b"" if purpose is RunPurpose.NOTHING else encode_request(request)
        outcome = run_program(executable, argv, env=self._env, stdin=stdin, limits=self._limits)
        stderr, pipe = outcome.stderr_tail, None
        if len(argv) > 1 and argv[0] == sys.executable:
            number, ended, rest = stderr.partition(b"\n")
            # Not there if more was said than is kept.
            if ended and number.isdigit():
                stderr, pipe = rest, int(number)
        if stuck := _STUCK.fullmatch(stderr):
            raise CannotStart(os.strerror(int(stuck[1])))
        return ProviderRun(
            request=request,
            purpose=purpose,
            ending=outcome.ending,
            exit_code=outcome.exit_code,
            seconds=self._clock.monotonic() - started_at,
            ended_at=self._clock.now(),
            holds_stdout=is_held(pipe) if outcome.ending is Ending.EXITED else None,
            stdout=outcome.stdout,
            stderr=stderr,
        )

    @cached_property
    def _start(self) -> tuple[str, tuple[str, ...]]:
        """The file to start and its arguments: the doorstep, where there is one."""
        executable = find_program(self._command[0])
        if not os.path.exists(executable):
            raise CannotStart("the file does not exist")
        if os.path.isdir(executable) or not os.access(executable, os.X_OK):
            raise CannotStart("the file is not executable")
        if not sys.executable:
            return executable, self._command
        # The doorstep would search no PATH either; a path relative to here stays one.
        return sys.executable, (sys.executable, "-I", "-S", "-c", DOORSTEP, executable, *self._command)
