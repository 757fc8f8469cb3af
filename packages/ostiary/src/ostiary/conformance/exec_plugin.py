"""Checks an exec plugin in any language: runs it a few times and evaluates the results.

    each version, without and with cluster info  ->  once more with a terminal  ->  PluginEvidence  ->  Report

The plugin runs like in an unattended client: no stdin, no terminal, a timeout. `exec_rules` evaluates the evidence. The
plugin's stdout never leaves these two modules; the stderr of a plugin that failed does, redacted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ostiary.conformance.exec_rules import PluginEvidence, PluginRun, judge
from ostiary.conformance.findings import CannotStart, Report, find_program, is_held, run_program
from ostiary.core.clock import SYSTEM_CLOCK, Clock
from ostiary.core.process import Ending, Outcome, RunLimits, Stdin
from ostiary.core.redaction import redact, tail
from ostiary.errors import ConfigurationError
from ostiary.wire.client_authentication import (
    API_VERSIONS,
    INFO_VARIABLE,
    V1,
    V1ALPHA1,
    V1BETA1,
    ClusterInfo,
    ExecCredentialSpec,
    encode_info,
)

SECONDS = 60.0
# All of it, not only a tail: a secret may be in the first line.
STDERR_BYTES = 1 << 20
STDERR_SHOWN = 2048
SHORTEST_SECRET = 6
SAMPLE_CLUSTER = ClusterInfo(server="https://exec-check.invalid:6443")
SOME_LINES = b"\n" * 8
LOOK_AT_TERMINAL_SECONDS = 0.2

# Runs briefly before the plugin: makes the terminal its controlling terminal, reports on it which pipe is stdout, and
# executes the plugin. It ignores SIGHUP, which the end of this process would send to the processes it leaves behind.
DOORSTEP = """
import fcntl, os, signal, sys, termios
terminal = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
except OSError:
    pass
os.write(terminal, b"%d\\n" % os.fstat(1).st_ino)
os.close(terminal)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
os.execv(sys.argv[2], sys.argv[3:])
"""


def check(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    versions: Sequence[str] = (V1, V1BETA1),
    as_proposed: bool = False,
    seconds: float = SECONDS,
    cluster: ClusterInfo = SAMPLE_CLUSTER,
    clock: Clock = SYSTEM_CLOCK,
) -> Report:
    """Run *command* a few times and check it against every rule.

    *env* is added to our environment, like ``exec.env`` of a kubeconfig. *versions* are the API versions that the
    plugin should support, and *seconds* is the timeout of one run. *cluster* is passed where ``provideClusterInfo`` is
    tried. *as_proposed* uses the protocol of the 2018 proposal, for which *versions* do not matter.
    """
    if not command or not versions or not set(versions) <= set(API_VERSIONS):
        raise ConfigurationError(
            "there is nothing to check",
            cause="a command and at least one known API version are needed",
            hint=f"the versions are {', '.join(API_VERSIONS)}",
        )
    infos = list(_proposed_infos() if as_proposed else _shipped_infos(versions, cluster))
    evidence = _PluginExamination(command, env or {}, infos, seconds, clock).evidence()
    return Report(command[0], len(evidence.runs), judge(evidence), _stderr_of(evidence, env or {}))


def _stderr_of(evidence: PluginEvidence, env: Mapping[str, str]) -> str:
    """Return the stderr of a failed plugin without anything printed on stdout, which may be the token."""
    failed = next((run for run in evidence.runs if not run.printed), None)
    if failed is None:
        return ""
    words = [word for run in evidence.runs for word in run.stdout.decode("utf-8", "replace").split()]
    secrets = [text for text in (*env.values(), *words) if len(text) >= SHORTEST_SECRET]
    return redact(tail(failed.stderr, STDERR_SHOWN), secrets=secrets).strip()


class _UsedTheTerminal(Exception):
    pass


class _PluginExamination:
    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        infos: Sequence[ExecCredentialSpec],
        seconds: float,
        clock: Clock,
    ) -> None:
        self._command = tuple(command)
        self._env = env
        self._infos = infos
        self._limits = RunLimits(seconds=seconds, stderr_tail_bytes=STDERR_BYTES)
        self._clock = clock
        self._stdin: Stdin | bytes = Stdin.NOTHING

    def evidence(self) -> PluginEvidence:
        try:
            runs = self._runs()
            # A plugin that fails for another reason may never have reached the point where it reads stdin.
            has_answered = any(run.printed for run in runs)
            evidence = PluginEvidence(tuple(runs), needs_stdin=self._stdin is SOME_LINES if has_answered else None)
            return evidence if runs[0].ending is Ending.TIMED_OUT else self._at_a_terminal(evidence)
        except CannotStart as error:
            return PluginEvidence(start_error=str(error))

    def _runs(self) -> list[PluginRun]:
        first = self._run(self._infos[0])
        if not first.printed and first.ending is Ending.EXITED:
            self._stdin = SOME_LINES
            fed = self._run(self._infos[0])
            if fed.printed:
                first = fed
            else:
                self._stdin = Stdin.NOTHING
        runs = [first]
        for info in self._infos[1:]:
            # A plugin that hangs would hang every time, so do not wait for it again.
            if runs[-1].ending is not Ending.TIMED_OUT:
                runs.append(self._run(info))
        return runs

    def _run(self, info: ExecCredentialSpec) -> PluginRun:
        started_at = self._clock.monotonic()
        outcome = self._start(find_program(self._command[0]), self._command, info, self._limits)
        return PluginRun(
            api_version=info.api_version,
            with_cluster=info.cluster is not None,
            as_proposed=info.as_proposed,
            ending=outcome.ending,
            exit_code=outcome.exit_code,
            seconds=self._clock.monotonic() - started_at,
            ended_at=self._clock.now(),
            stdout=outcome.stdout,
            stderr=outcome.stderr_tail,
        )

    def _start(
        self,
        executable: str,
        argv: Sequence[str],
        info: ExecCredentialSpec,
        limits: RunLimits,
        *,
        terminal: _EmptyTerminal | None = None,
    ) -> Outcome:
        return run_program(
            executable,
            argv,
            env={**self._env, INFO_VARIABLE: encode_info(info)},
            stdin=self._stdin,
            limits=limits,
            while_waiting=None if terminal is None else terminal.while_waiting,
        )

    def _at_a_terminal(self, evidence: PluginEvidence) -> PluginEvidence:
        """Run the plugin once more with a terminal, and see whether it prompts the user."""
        if not sys.executable:
            return evidence
        with _terminal() as terminal:
            if terminal is None:
                return evidence
            argv = (
                sys.executable,
                "-I",
                "-S",
                "-c",
                DOORSTEP,
                terminal.path,
                find_program(self._command[0]),
                *self._command,
            )
            limits = replace(self._limits, notice_seconds=LOOK_AT_TERMINAL_SECONDS)
            try:
                outcome = self._start(sys.executable, argv, self._infos[0], limits, terminal=terminal)
            except _UsedTheTerminal:
                return replace(evidence, asked_on_terminal=True)
            if outcome.ending is Ending.TIMED_OUT:
                # It ended in time without a terminal, so it is waiting for input on the terminal.
                return replace(evidence, asked_on_terminal=True)
            return replace(
                evidence, asked_on_terminal=terminal.is_used(), left_something_behind=is_held(terminal.stdout_pipe())
            )


def _shipped_infos(versions: Sequence[str], cluster: ClusterInfo) -> Iterator[ExecCredentialSpec]:
    for version in versions:
        yield ExecCredentialSpec(version, interactive=False)
        # v1alpha1 cannot pass the cluster.
        if version != V1ALPHA1:
            yield ExecCredentialSpec(version, interactive=False, cluster=cluster)


def _proposed_infos() -> Iterator[ExecCredentialSpec]:
    yield ExecCredentialSpec(V1ALPHA1, interactive=False, as_proposed=True)
    # Once more after a 401, which the proposal passes to a plugin.
    rejection = (401, {"Www-Authenticate": ("Bearer",)})
    yield ExecCredentialSpec(V1ALPHA1, interactive=False, rejection=rejection, as_proposed=True)


class _EmptyTerminal:
    """Our side of a terminal without a user. The first line on it is the doorstep's."""

    def __init__(self, ours: int, path: str) -> None:
        self._ours = ours
        self.path = path
        self._shown = b""

    def while_waiting(self, seconds: float) -> None:
        if self.is_used():
            raise _UsedTheTerminal

    def is_used(self) -> bool:
        return bool(self._lines()[2])

    def stdout_pipe(self) -> int | None:
        number, ended, _ = self._lines()
        return int(number) if ended and number.strip().isdigit() else None

    def _lines(self) -> tuple[bytes, bytes, bytes]:
        try:
            while chunk := os.read(self._ours, 65536):
                self._shown += chunk
        except OSError:
            # No more data, for now or at all.
            pass
        return self._shown.partition(b"\n")


@contextmanager
def _terminal() -> Iterator[_EmptyTerminal | None]:
    try:
        ours, theirs = os.openpty()
    except OSError:
        # A sandbox may not provide a terminal.
        yield None
        return
    try:
        os.set_blocking(ours, False)
        yield _EmptyTerminal(ours, os.ttyname(theirs))
    finally:
        os.close(ours)
        os.close(theirs)
