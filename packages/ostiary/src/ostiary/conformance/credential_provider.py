"""Checks a credential provider in any language: runs it a few times and evaluates the results.

    each version -> an unknown image -> with a service account token -> empty stdin -> ProviderEvidence -> Report

Every run is like the kubelet's: a request on stdin, our environment and a timeout. `credential_provider_rules`
evaluates the evidence. The provider's output never leaves these two modules.
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

# The kubelet's timeout.
SECONDS = 60.0
# All of it, not only a tail: a password may be in the first line.
STDERR_BYTES = 1 << 20
SAMPLE_IMAGE = "registry.example.com/team/app"
UNKNOWN_IMAGE = "ostiary-check.invalid/nobody/knows"
SAMPLE_TOKEN = Secret("ostiary-check-of-a-service-account-token")

# Runs briefly before the provider: reports on stderr which pipe is stdout, and executes the provider; or reports why it
# cannot.
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
    """Run *command* a few times and check it against every rule.

    *image* should be one that it has a credential for. It must support the first of *versions*; the others are
    optional. *env* is added to our environment, like that of the configuration. *seconds* is the timeout of one run.
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
                # A provider that hangs would hang every time, so do not wait for it again.
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
            # Missing if the output exceeded the limit.
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
        """Return the file to start and its arguments: the doorstep, where it is supported."""
        executable = find_program(self._command[0])
        if not os.path.exists(executable):
            raise CannotStart("the file does not exist")
        if os.path.isdir(executable) or not os.access(executable, os.X_OK):
            raise CannotStart("the file is not executable")
        if not sys.executable:
            return executable, self._command
        # The doorstep does not search PATH either, and the path must stay relative to our working directory.
        return sys.executable, (sys.executable, "-I", "-S", "-c", DOORSTEP, executable, *self._command)
