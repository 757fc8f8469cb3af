"""The branch for systems whose pipes cannot be polled, with the processes of this one. Job objects are simulated."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostiary.core.process import Ending, Outcome, RunLimits, Stderr, end_all
from ostiary.core.process.threaded import JobGroup, PosixGroup, ProcessGroup, run_threaded

FOR_EVER = 3600.0
PATIENT = RunLimits(seconds=None, linger_seconds=FOR_EVER, grace_seconds=FOR_EVER)
# The time is up when the test has returned from `while_waiting`, which always comes before the limit.
IMPATIENT = replace(PATIENT, seconds=2e-6, notice_seconds=1e-6)


class SimulatedJobs:
    """Job objects of Windows, as groups of this system: the handle of a process is its number."""

    def __init__(self) -> None:
        self.closed: list[int] = []
        self.resumed: list[int] = []

    def resume(self, process_handle: int) -> None:
        self.resumed.append(process_handle)

    def new_job(self, process_handle: int) -> int:
        return process_handle

    def end_job(self, job: int) -> None:
        os.killpg(job, signal.SIGKILL)

    def close(self, handle: int) -> None:
        self.closed.append(handle)


class PosixBranch:
    def __call__(self, process: subprocess.Popen[bytes], own_group: bool) -> ProcessGroup:
        return PosixGroup(process, own_group)


class WindowsBranch:
    def __init__(self) -> None:
        self.jobs = SimulatedJobs()

    def __call__(self, process: subprocess.Popen[bytes], own_group: bool) -> ProcessGroup:
        process._handle = process.pid  # type: ignore[attr-defined]
        return JobGroup(process, own_group, self.jobs)


@pytest.fixture(params=[PosixBranch, WindowsBranch])
def group_of(request: pytest.FixtureRequest) -> Any:
    return request.param()


def run_python(code: str, *words: str, group_of: Any, limits: RunLimits = PATIENT, **options: Any) -> Outcome:
    return run_threaded(
        sys.executable,
        [sys.executable, "-c", code, *words],
        env={"LANG": "C.UTF-8"},
        limits=limits,
        group_of=group_of,
        **{"stderr": Stderr.CAPTURE, **options},
    )


def test_output_messages_and_exit_code(group_of: Any) -> None:
    code = "import sys; print('out'); print('message', file=sys.stderr); sys.exit(3)"
    outcome = run_python(code, group_of=group_of)
    assert (outcome.exit_code, outcome.ending) == (3, Ending.EXITED)
    assert (outcome.stdout, outcome.stderr_tail) == (b"out\n", b"message\n")


def test_more_than_a_pipe_holds_goes_both_ways(group_of: Any) -> None:
    code = "import sys; data = sys.stdin.buffer.read(); sys.stderr.write('e' * 300_000); sys.stdout.buffer.write(data)"
    outcome = run_python(code, group_of=group_of, stdin=b"x" * 500_000)
    assert outcome.stdout == b"x" * 500_000
    assert outcome.stderr_tail == b"e" * PATIENT.stderr_tail_bytes


def test_a_child_that_does_not_read_what_it_is_told(group_of: Any) -> None:
    assert run_python("print('done')", group_of=group_of, stdin=b"x" * 500_000).stdout == b"done\n"


def test_too_much_output_ends_it(group_of: Any) -> None:
    code = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    outcome = run_python(code, group_of=group_of, limits=replace(PATIENT, stdout_bytes=1000, grace_seconds=1))
    assert outcome.ending is Ending.TOO_MUCH_OUTPUT
    assert outcome.stdout == b"x" * 1000


def test_at_the_limit_the_whole_group_ends(group_of: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "line")
    lifeline = os.open(tmp_path / "line", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(lifeline, True)
    hold = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); line = open(sys.argv[1], 'wb', 0); "
    child = f"{hold}line.write(b'c'); signal.pause()"
    code = f"{hold}import subprocess; subprocess.Popen([sys.executable, '-c', {child!r}, sys.argv[1]]); signal.pause()"

    def both_live(_: float) -> None:
        select.select([lifeline], [], [])
        assert os.read(lifeline, 1) == b"c"

    limits = replace(IMPATIENT, grace_seconds=0.01)
    outcome = run_python(code, str(tmp_path / "line"), group_of=group_of, limits=limits, while_waiting=both_live)
    assert outcome.ending is Ending.TIMED_OUT
    assert outcome.exit_code < 0
    assert os.read(lifeline, 1) == b"", "nobody holds it any more"
    os.close(lifeline)


def test_it_is_asked_before_it_is_ended(group_of: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "line")
    code = (
        "import signal, sys\n"
        "def end(*_):\n    print('in order'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nopen(sys.argv[1], 'w').write('up')\nsignal.pause()"
    )

    def is_up(_: float) -> None:
        (tmp_path / "line").read_text()

    outcome = run_python(code, str(tmp_path / "line"), group_of=group_of, limits=IMPATIENT, while_waiting=is_up)
    assert (outcome.ending, outcome.stdout) == (Ending.TIMED_OUT, b"in order\n")


def test_an_exception_while_waiting_ends_the_child_and_comes_through(group_of: Any) -> None:
    def fail(_: float) -> None:
        raise KeyboardInterrupt

    limits = replace(IMPATIENT, seconds=None, grace_seconds=0.01)
    with pytest.raises(KeyboardInterrupt):
        run_python("import signal; signal.pause()", group_of=group_of, limits=limits, while_waiting=fail)


def test_what_holds_stdout_after_the_end_is_not_waited_for(group_of: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ask")
    code = (
        "import subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import sys; open(sys.argv[1]).read()', sys.argv[1]])\n"
        # More than a pipe holds: when the program ends, the beginning has been read.
        "print('answer' + 200_000 * ' ')"
    )
    outcome = run_python(code, str(tmp_path / "ask"), group_of=group_of, limits=replace(PATIENT, linger_seconds=0.01))
    assert (outcome.stdout[:6], outcome.ending) == (b"answer", Ending.EXITED)
    (tmp_path / "ask").write_text("it lived on, and ends now")


def test_the_end_of_the_program_ends_its_children(group_of: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "line")
    code = "import signal, sys; open(sys.argv[1], 'w').write('up'); signal.pause()"
    outcomes: list[Outcome] = []

    def run() -> None:
        outcomes.append(run_python(code, str(tmp_path / "line"), group_of=group_of))

    thread = threading.Thread(target=run)
    thread.start()
    (tmp_path / "line").read_text()
    end_all()
    thread.join()
    assert outcomes[0].ending is Ending.SIGNALLED


def test_a_command_that_cannot_be_started_raises(group_of: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        run_threaded(str(tmp_path / "nothing"), ["nothing"], env={}, group_of=group_of)


def test_the_job_is_let_go_of_and_a_process_that_shares_our_group_has_none() -> None:
    branch = WindowsBranch()
    run_python("pass", group_of=branch)
    assert len(branch.jobs.closed) == 1
    assert branch.jobs.resumed == branch.jobs.closed
    run_python("pass", group_of=branch, own_group=False)
    assert len(branch.jobs.closed) == 1


def test_without_a_job_the_process_itself_is_ended() -> None:
    class NoJobs(SimulatedJobs):
        def new_job(self, process_handle: int) -> int:
            raise OSError(5, "Access is denied")

    branch = WindowsBranch()
    branch.jobs = NoJobs()
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    outcome = run_python(code, group_of=branch, limits=replace(PATIENT, seconds=0.01, grace_seconds=0.01))
    assert outcome.ending is Ending.TIMED_OUT
