"""Real processes, and nothing by the clock: a test knows by a pipe that a process lives or has ended."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostiary.core.process import Ending, Outcome, RunLimits, Stderr, Stdin, end_all, find_executable, run, threaded
from ostiary.core.process import start as service
from ostiary.core.process.children import RunningChild, starting
from tests.support.descriptors import descriptors
from tests.support.waiting import until

ENV = {"LANG": "C.UTF-8"}
# Far longer than a test may take: a test in which somebody waits for this to pass does not pass itself.
FOR_EVER = 3600.0
PATIENT = RunLimits(seconds=None, linger_seconds=FOR_EVER, grace_seconds=FOR_EVER)
# The time is up when the test has returned from `while_waiting`, which always comes before the limit.
IMPATIENT = replace(PATIENT, seconds=2e-6, notice_seconds=1e-6)
IMPATIENT_WITHOUT_GRACE = replace(IMPATIENT, grace_seconds=0.01)

# poll and ppoll, as Linux numbers them on x86 and on ARM.
POLL_CALLS = {"7", "271", "73"}


class Lifeline:
    """A named pipe that a process holds open for as long as it lives."""

    HOLD = "import sys; line = open(sys.argv[1], 'wb', 0); line.write(b'up')\n"
    """For the process: take hold of the pipe, and say so."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._held = False
        self._reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(self._reader, True)

    def wait_until_held(self, _: float = 0) -> None:
        if not self._held:
            select.select([self._reader], [], [])
            self._held = os.read(self._reader, 2) == b"up"
        assert self._held

    def wait_until_dropped(self) -> None:
        self.wait_until_held()
        assert os.read(self._reader, 1) == b""

    def wait_until_nobody_holds_it(self) -> None:
        """Also if nobody ever did."""
        while os.read(self._reader, 2):
            pass

    def close(self) -> None:
        os.close(self._reader)


class Survivor:
    """A process that answers when it is asked whether it is alive, and then ends."""

    LIVE = "import sys; open(sys.argv[1]).read(); open(sys.argv[2], 'w').write('alive')\n"

    def __init__(self, directory: Path) -> None:
        self.paths = (str(directory / "ask"), str(directory / "answer"))
        for path in self.paths:
            os.mkfifo(path)

    def says(self) -> str:
        ask, answer = self.paths
        Path(ask).write_text("?")
        return Path(answer).read_text()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No run may leave a descriptor, nor a child that nobody has reaped."""
    before = descriptors(), children()
    yield
    until(lambda: descriptors() <= before[0])
    assert children() <= before[1]


@pytest.fixture
def lifeline(tmp_path: Path) -> Iterator[Lifeline]:
    line = Lifeline(tmp_path / "lifeline")
    yield line
    line.close()


@pytest.fixture
def survivor(tmp_path: Path) -> Survivor:
    return Survivor(tmp_path)


@pytest.fixture
def our_stdin() -> Iterator[int]:
    """Where to write what this program, and who inherits it, will read on descriptor 0."""
    reader, writer = os.pipe()
    before = os.dup(0)
    os.dup2(reader, 0)
    yield writer
    os.dup2(before, 0)
    for descriptor in (before, reader, writer):
        os.close(descriptor)


@pytest.fixture(params=["pidfd", "waitid in a thread", "wait in a thread"])
def way_to_watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to learn of the child's end: on Linux, elsewhere, and where there is no waitid either."""
    if request.param != "pidfd":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    if request.param == "wait in a thread":
        monkeypatch.delattr(os, "waitid", raising=False)


def children() -> set[str]:
    """The process ids of our children, those that wait to be reaped included, where the system tells."""
    found: set[str] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        # A thread may end between being listed and being asked.
        with suppress(FileNotFoundError, ProcessLookupError):
            found.update(path.read_text().split())
    return found


def wait_until_main_thread_polls() -> None:
    """A signal just before the system call is noticed only after it, which no program can help."""
    syscall = Path(f"/proc/self/task/{threading.main_thread().native_id}/syscall")
    while syscall.read_text().split()[0] not in POLL_CALLS:
        os.sched_yield()


def python(
    code: str,
    *args: str,
    env: dict[str, str] = ENV,
    stdin: Stdin | bytes = Stdin.NOTHING,
    stderr: Stderr = Stderr.CAPTURE,
    limits: RunLimits = PATIENT,
    own_group: bool = True,
    while_waiting: Callable[[float], None] | None = None,
) -> Outcome:
    return run(
        sys.executable,
        [sys.executable, "-I", "-S", "-c", code, *args],
        env=env,
        stdin=stdin,
        stderr=stderr,
        limits=limits,
        own_group=own_group,
        while_waiting=while_waiting,
    )


def shell(script: str, *, stderr: Stderr = Stderr.CAPTURE, limits: RunLimits = PATIENT) -> Outcome:
    return run("/bin/sh", ["sh", "-c", script], env=ENV, stderr=stderr, limits=limits)


def program(code: str, *args: str) -> list[str]:
    """The command line of a program of its own that uses what is tested here."""
    return [sys.executable, "-c", PROGRAM + code, *args]


PROGRAM = """
import os, signal, sys, threading
from ostiary.core.process import *
def python(code, *args, **options):
    return run(sys.executable, [sys.executable, "-I", "-S", "-c", code, *args], env=os.environ, **options)
"""


@pytest.mark.usefixtures("way_to_watch")
class TestHowARunEnds:
    def test_a_child_that_exits_gives_its_output_and_exit_code(self) -> None:
        assert shell("echo out; echo err >&2; exit 3") == Outcome(3, b"out\n", b"err\n", Ending.EXITED)

    def test_a_child_that_a_signal_ends_has_a_negative_exit_code(self) -> None:
        outcome = shell("echo partial; kill -USR1 $$")
        assert outcome == Outcome(-signal.SIGUSR1, b"partial\n", b"", Ending.SIGNALLED)

    def test_a_child_that_takes_too_long_is_asked_to_end_and_may_say_good_bye(self, lifeline: Lifeline) -> None:
        code = (
            "import os, signal; os.write(1, b'out')\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
            + Lifeline.HOLD
            + "signal.sigwait({signal.SIGTERM}); os.write(2, b'bye'); os._exit(4)"
        )
        outcome = python(code, lifeline.path, limits=IMPATIENT, while_waiting=lifeline.wait_until_held)
        assert outcome == Outcome(4, b"out", b"bye", Ending.TIMED_OUT)

    def test_a_child_that_takes_too_long_and_ignores_sigterm_is_killed(self, lifeline: Lifeline) -> None:
        code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + Lifeline.HOLD + "signal.pause()"
        outcome = python(code, lifeline.path, limits=IMPATIENT_WITHOUT_GRACE, while_waiting=lifeline.wait_until_held)
        assert outcome == Outcome(-signal.SIGKILL, b"", b"", Ending.TIMED_OUT)
        lifeline.wait_until_dropped()

    @pytest.mark.parametrize(
        ("detach", "limits"),
        [("", IMPATIENT_WITHOUT_GRACE), ("os.close(1); os.close(2)", IMPATIENT)],
        ids=["holding the pipes", "holding nothing of ours"],
    )
    def test_a_time_limit_ends_grandchildren_too_even_one_that_ignores_sigterm(
        self, lifeline: Lifeline, detach: str, limits: RunLimits
    ) -> None:
        code = (
            "import os, signal\n"
            "if os.fork() == 0:\n"
            f"    signal.signal(signal.SIGTERM, signal.SIG_IGN); {detach}\n"
            f"    {Lifeline.HOLD}"
            "signal.pause()"
        )
        outcome = python(code, lifeline.path, limits=limits, while_waiting=lifeline.wait_until_held)
        assert (outcome.exit_code, outcome.ending) == (-signal.SIGTERM, Ending.TIMED_OUT)
        lifeline.wait_until_dropped()

    def test_in_our_own_group_a_time_limit_ends_the_child_alone(self, lifeline: Lifeline, survivor: Survivor) -> None:
        code = (
            "import signal, subprocess, sys\n"
            f"subprocess.Popen([sys.executable, '-I', '-S', '-c', {Survivor.LIVE!r}, *sys.argv[2:]])\n"
            + Lifeline.HOLD
            + "signal.pause()"
        )
        outcome = python(
            code,
            lifeline.path,
            *survivor.paths,
            limits=IMPATIENT_WITHOUT_GRACE,
            own_group=False,
            while_waiting=lifeline.wait_until_held,
        )
        assert (outcome.exit_code, outcome.ending) == (-signal.SIGTERM, Ending.TIMED_OUT)
        lifeline.wait_until_dropped()
        assert survivor.says() == "alive"

    def test_a_child_that_floods_stdout_is_ended_and_the_limit_is_what_is_kept(self) -> None:
        limits = replace(PATIENT, stdout_bytes=100_000)
        outcome = shell("while :; do echo yyyyyyyyyyyyyyyy; done", limits=limits)
        assert (outcome.exit_code, outcome.ending) == (-signal.SIGTERM, Ending.TOO_MUCH_OUTPUT)
        assert len(outcome.stdout) == 100_000

    def test_a_child_that_floods_stdout_is_ended_with_all_it_started(self, lifeline: Lifeline) -> None:
        code = (
            "import os, signal\n"
            "reader, writer = os.pipe()\n"
            "if os.fork() == 0:\n"
            "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            f"    {Lifeline.HOLD}"
            "    os.close(1); os.close(2); os.close(writer); signal.pause()\n"
            "os.close(writer); os.read(reader, 1)\n"
            "while True: os.write(1, b'y' * 4096)"
        )
        outcome = python(code, lifeline.path, limits=replace(PATIENT, grace_seconds=0.01))
        assert outcome.ending is Ending.TOO_MUCH_OUTPUT
        lifeline.wait_until_dropped()

    def test_stdout_may_be_exactly_as_long_as_the_limit(self) -> None:
        limits = replace(PATIENT, stdout_bytes=5)
        assert shell("printf 12345", limits=limits) == Outcome(0, b"12345", b"", Ending.EXITED)
        over = shell("printf 123456", limits=limits)
        assert (over.stdout, over.ending) == (b"12345", Ending.TOO_MUCH_OUTPUT)

    def test_a_program_that_ignores_its_childrens_end_still_learns_of_it(self) -> None:
        # Then the kernel reaps the child, and there is nothing to be had but its output.
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            assert shell("echo out").stdout == b"out\n"
        finally:
            signal.signal(signal.SIGCHLD, before)


class TestLimits:
    def test_the_defaults_are_a_minute_and_a_megabyte(self) -> None:
        assert RunLimits() == RunLimits(60.0, 1 << 20, 8192, linger_seconds=0.25, grace_seconds=1, notice_seconds=10)

    def test_a_child_that_ended_in_time_has_ended_however_late_we_look(self, survivor: Survivor) -> None:
        def oversleep(_: float) -> None:
            os.waitid(os.P_PID, int(survivor.says()), os.WEXITED | os.WNOWAIT)

        code = "import os\n" + Survivor.LIVE.replace("'alive'", "str(os.getpid())") + "print('in time')"
        outcome = python(code, *survivor.paths, limits=IMPATIENT, while_waiting=oversleep)
        assert outcome == Outcome(0, b"in time\n", b"", Ending.EXITED)

    def test_while_a_person_types_somebody_is_told_how_long_we_have_waited(self, our_stdin: int) -> None:
        waited: list[float] = []

        def tell(seconds: float) -> None:
            waited.append(seconds)
            if len(waited) == 3:
                os.write(our_stdin, b"typed\n")

        limits = replace(PATIENT, notice_seconds=0.001)
        outcome = python("print(input())", stdin=Stdin.INHERIT, limits=limits, while_waiting=tell)
        assert outcome.stdout == b"typed\n"
        assert waited == sorted(waited)
        assert waited[0] >= 0.001

    def test_a_child_out_of_our_reach_does_not_hold_us(
        self, lifeline: Lifeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reached: list[int] = []

        def refuse(group: int, _: int) -> None:
            reached.append(group)
            raise PermissionError(errno.EPERM, "not ours")

        with monkeypatch.context() as sudo:
            sudo.setattr(os, "killpg", refuse)
            for way in (service, threaded):
                sudo.setattr(way, "_KILL_SECONDS", 0.05)
            outcome = python(
                Lifeline.HOLD + "import signal; signal.pause()",
                lifeline.path,
                limits=IMPATIENT_WITHOUT_GRACE,
                while_waiting=lifeline.wait_until_held,
            )
        assert (outcome.exit_code, outcome.ending) == (-signal.SIGKILL, Ending.TIMED_OUT)
        os.killpg(reached[0], signal.SIGKILL)
        os.waitpid(reached[0], 0)


@pytest.mark.usefixtures("way_to_watch")
class TestWhatAChildLeavesBehind:
    DAEMON = (
        "import os, sys\n"
        "print('answer', flush=True)\n"
        "if os.fork(): os._exit(0)\n"
        "{detach}\n"
        "if os.fork(): os._exit(0)\n" + Survivor.LIVE
    )

    @pytest.mark.parametrize("detach", ["os.setsid()", ""], ids=["in a session of its own", "in the group"])
    def test_a_daemon_that_holds_stdout_neither_holds_us_nor_is_ended(self, survivor: Survivor, detach: str) -> None:
        limits = replace(PATIENT, linger_seconds=0.01)
        outcome = python(self.DAEMON.format(detach=detach), *survivor.paths, limits=limits)
        assert outcome == Outcome(0, b"answer\n", b"", Ending.EXITED)
        assert survivor.says() == "alive"

    def test_without_lingering_all_that_the_child_wrote_is_still_there(self, survivor: Survivor) -> None:
        code = self.DAEMON.format(detach="").replace("'answer'", "'x' * 60_000")
        outcome = python(code, *survivor.paths, limits=replace(PATIENT, linger_seconds=0))
        assert len(outcome.stdout) == 60_001
        assert survivor.says() == "alive"

    def test_a_daemon_that_holds_only_stderr_is_not_waited_for(self, survivor: Survivor) -> None:
        code = self.DAEMON.format(detach="os.close(1)").replace("print(", "os.write(2, b'note'); print(")
        outcome = python(code, *survivor.paths, limits=PATIENT)
        assert outcome == Outcome(0, b"answer\n", b"note", Ending.EXITED)
        assert survivor.says() == "alive"

    def test_late_output_of_a_grandchild_is_taken_and_ends_the_wait(self) -> None:
        code = (
            "import os\n"
            "reader, writer = os.pipe()\n"
            "if os.fork(): os._exit(0)\n"
            "os.close(writer); os.read(reader, 1)\n"  # The end of its parent.
            "os.write(1, b'late')"
        )
        assert python(code, limits=PATIENT) == Outcome(0, b"late", b"", Ending.EXITED)

    def test_a_grandchild_that_floods_stdout_after_the_childs_end_is_too_much(self) -> None:
        code = "import os\nif os.fork(): os._exit(0)\nwhile True: os.write(1, b'y' * 4096)"
        assert python(code, limits=PATIENT).ending is Ending.TOO_MUCH_OUTPUT


class TestStderr:
    def test_400_kb_on_stderr_before_the_answer_block_nobody(self) -> None:
        code = "import os; os.write(2, b'e' * 400_000 + b'end'); os.write(1, b'answer')"
        outcome = python(code, limits=replace(PATIENT, stderr_tail_bytes=10))
        assert outcome == Outcome(0, b"answer", b"eeeeeeeend", Ending.EXITED)

    def test_no_tail_is_kept_when_none_is_wanted(self) -> None:
        assert shell("echo err >&2", limits=replace(PATIENT, stderr_tail_bytes=0)).stderr_tail == b""

    def test_a_captured_stderr_is_not_shown(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert shell("echo err >&2", stderr=Stderr.CAPTURE).stderr_tail == b"err\n"
        assert capfd.readouterr().err == ""

    def test_an_inherited_stderr_is_shown_and_not_kept(self, capfd: pytest.CaptureFixture[str]) -> None:
        assert shell("echo err >&2", stderr=Stderr.INHERIT).stderr_tail == b""
        assert capfd.readouterr().err == "err\n"

    def test_a_teed_stderr_is_shown_as_it_is_and_its_tail_is_kept(self, capfd: pytest.CaptureFixture[str]) -> None:
        limits = replace(PATIENT, stderr_tail_bytes=4)
        assert shell("echo one >&2; echo two >&2", stderr=Stderr.TEE, limits=limits).stderr_tail == b"two\n"
        assert capfd.readouterr().err == "one\ntwo\n"

    def test_a_teed_message_is_shown_before_the_child_ends(self) -> None:
        code = "python('import sys; print(\"hello\", file=sys.stderr); sys.stdin.read()', stdin=Stdin.INHERIT)"
        with subprocess.Popen(program(code), stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            assert running.stdin is not None
            assert running.stderr is not None
            assert running.stderr.readline() == b"hello\n"
            running.stdin.close()
        assert running.returncode == 0

    def test_a_slow_reader_gets_all_of_a_teed_stderr(self) -> None:
        code = "python('import os; os.write(2, bytes(range(200)) * 2000)')"
        told = subprocess.run(program(code), stderr=subprocess.PIPE).stderr
        assert told == bytes(range(200)) * 2000

    def test_the_time_limit_holds_while_nobody_reads_our_stderr(self) -> None:
        code = (
            # Some room is left there, but less than there is to say.
            "os.write(2, bytes(10_000)); limits = RunLimits(seconds=.1, grace_seconds=.01)\n"
            "outcome = python('import os; os.write(2, bytes(400_000))', limits=limits)\n"
            "print(outcome.ending.name, flush=True)"
        )
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(program(code), **pipes) as running:  # type: ignore[call-overload]
            assert running.stdout.readline() == b"TIMED_OUT\n"
            running.stderr.read()

    def test_an_answer_is_not_held_back_by_a_full_stderr(self) -> None:
        code = (
            "os.set_blocking(2, False)\n"
            "try:\n"
            "    while True: os.write(2, bytes(1))\n"
            "except BlockingIOError:\n"
            "    os.set_blocking(2, True)\n"
            # More than a pipe holds, so that some of it is read only after the child's end.
            'child = \'import os; os.write(2, bytes(70_000) + b"note"); os.write(1, b"answer")\'\n'
            "outcome = python(child, limits=RunLimits(seconds=None, stderr_tail_bytes=4))\n"
            "print(outcome.stdout, outcome.stderr_tail, outcome.ending.name, flush=True)"
        )
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(program(code), **pipes) as running:  # type: ignore[call-overload]
            assert running.stdout.readline() == b"b'answer' b'note' EXITED\n"
            running.stderr.read()

    @pytest.mark.parametrize(
        "loss", ["os.close(2)", "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)"], ids=["closed", "full disk"]
    )
    def test_losing_our_stderr_does_not_lose_the_answer(self, loss: str) -> None:
        code = (
            f"{loss}\n"
            "outcome = python('import os; os.write(2, b\"note\"); os.write(1, b\"answer\")', stdin=b'x')\n"
            "print(outcome.stdout, outcome.stderr_tail, outcome.ending.name)"
        )
        told = subprocess.run(program(code), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        assert told == b"b'answer' b'note' EXITED\n"


class TestWhatTheChildIsGiven:
    def test_stdin_is_empty_unless_told_otherwise(self, our_stdin: int) -> None:
        os.write(our_stdin, b"not for the child")
        assert python("import os; print(os.read(0, 100))").stdout == b"b''\n"

    @pytest.mark.parametrize("given_bytes", [b"", b'{"kind":"CredentialProviderRequest"}\n', bytes(1 << 20)])
    def test_bytes_arrive_on_stdin_and_then_its_end(self, given_bytes: bytes) -> None:
        assert run("/bin/cat", ["cat"], env=ENV, stdin=given_bytes).stdout == given_bytes

    @pytest.mark.parametrize("code", ["pass", "import os; os.close(0); os.write(1, b'answer')"])
    def test_a_megabyte_for_a_child_that_does_not_read_it_blocks_nobody(self, code: str) -> None:
        """D4."""
        assert python(code, stdin=bytes(1 << 20)).ending is Ending.EXITED

    def test_the_environment_is_exactly_the_given_one(self) -> None:
        env = {"EMPTY": "", "NAME": "a=b $HOME\n", "PATH": "/nowhere"}
        outcome = run("/usr/bin/env", ["env", "-0"], env=env, stderr=Stderr.CAPTURE)
        assert dict(pair.split("=", 1) for pair in outcome.stdout.decode().split("\0")[:-1]) == env

    def test_no_descriptor_but_the_three_reaches_the_child(self) -> None:
        reader, writer = os.pipe()
        os.set_inheritable(writer, True)
        outcome = python("import os; print([fd for fd in range(3, 100) if os.path.exists(f'/dev/fd/{fd}')])")
        os.close(reader)
        os.close(writer)
        # Listing them takes none: the paths are looked at one by one.
        assert outcome.stdout == b"[]\n"

    # What a process cannot be given is a NUL and what has no bytes.
    texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))

    @settings(max_examples=25, deadline=None)
    @given(arguments=st.lists(texts, max_size=5))
    def test_arguments_arrive_as_they_are(self, arguments: list[str]) -> None:
        outcome = run("/usr/bin/printf", ["printf", r"%s\0", *arguments], env=ENV)
        assert outcome.stdout.decode() == "".join(argument + "\0" for argument in arguments) or not arguments

    def test_the_first_argument_is_the_childs_name_for_itself(self) -> None:
        assert run("/bin/sh", ["my name", "-c", "echo $0"], env=ENV).stdout == b"my name\n"

    @settings(max_examples=25, deadline=None)
    @given(st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True), texts, max_size=5))
    def test_variables_arrive_as_they_are(self, env: dict[str, str]) -> None:
        outcome = run("/usr/bin/env", ["env", "-0"], env=env, stderr=Stderr.CAPTURE)
        assert dict(pair.split("=", 1) for pair in outcome.stdout.decode().split("\0")[:-1]) == env

    def test_neither_output_is_in_the_repr(self) -> None:
        text = repr(shell("echo canary; echo canary >&2"))
        assert "canary" not in text
        assert "EXITED" in text


class TestWhatCannotBeStarted:
    def script(self, directory: Path, text: str, mode: int = 0o755) -> str:
        path = directory / "plugin"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def test_what_does_not_exist(self, tmp_path: Path) -> None:
        missing = str(tmp_path / "missing")
        with pytest.raises(FileNotFoundError) as caught:
            run(missing, ["missing"], env=ENV, stdin=b"x")
        assert caught.value.filename == missing

    def test_what_is_not_executable(self, tmp_path: Path) -> None:
        with pytest.raises(PermissionError):
            run(self.script(tmp_path, "#!/bin/sh\n", mode=0o644), ["plugin"], env=ENV)

    def test_what_is_no_program(self, tmp_path: Path) -> None:
        with pytest.raises(OSError) as caught:
            run(self.script(tmp_path, "echo no interpreter is named\n"), ["plugin"], env=ENV)
        assert caught.value.errno == errno.ENOEXEC

    @pytest.mark.skipif(sys.platform != "linux", reason="the limit of one variable is Linux's")
    def test_a_variable_that_is_too_large(self) -> None:
        with pytest.raises(OSError) as caught:
            run("/bin/sh", ["sh", "-c", ":"], env={"KUBERNETES_EXEC_INFO": "x" * 131_072})
        assert caught.value.errno == errno.E2BIG

    @pytest.mark.parametrize(("argument", "variable"), [("a\0b", "x"), ("x", "a\0b"), ("\ud800", "x")])
    def test_what_no_process_can_be_given(self, argument: str, variable: str) -> None:
        with pytest.raises(ValueError):
            run("/bin/sh", ["sh", argument], env={"NAME": variable}, stdin=b"x")

    def test_a_child_that_cannot_be_watched_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.delattr(os, "pidfd_open", raising=False)
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            python("import signal; signal.pause()")


class TestFindExecutable:
    @pytest.fixture
    def places(self, tmp_path: Path) -> list[Path]:
        """Two directories, each with a program of the same name that says where it is."""
        places = [tmp_path / "first", tmp_path / "second"]
        for place in places:
            place.mkdir()
            (place / "plugin").write_text(f"#!/bin/sh\necho {place.name}\n")
            (place / "plugin").chmod(0o755)
        return places

    def test_a_bare_name_is_found_on_our_path_whatever_the_childs_is(
        self, places: list[Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, theirs = places
        monkeypatch.setenv("PATH", str(ours))
        found = find_executable("plugin")
        assert found == str(ours / "plugin")
        assert run(found, ["plugin"], env={"PATH": str(theirs)}).stdout == b"first\n"

    def test_the_given_path_is_searched_in_order(self, places: list[Path]) -> None:
        first, second = places
        assert find_executable("plugin", path=f"{second}:{first}") == str(second / "plugin")
        (second / "plugin").chmod(0o644)
        assert find_executable("plugin", path=f"{second}:{first}") == str(first / "plugin")

    @pytest.mark.parametrize("command", ["missing", "", "first"])
    def test_what_is_not_there_is_none(self, places: list[Path], command: str) -> None:
        assert find_executable(command, path=f"{places[0]}:{places[0].parent}") is None
        assert find_executable(command, path="") is None

    @pytest.mark.parametrize("command", ["./plugin", "/missing/plugin", "bin/plugin"])
    def test_a_name_with_a_separator_stays_as_it_is(self, command: str) -> None:
        assert find_executable(command) == command

    @pytest.mark.parametrize("path", ["", ".", ":", "first:.", "../first"])
    def test_a_bare_name_is_not_found_in_relation_to_where_we_stand(
        self, places: list[Path], monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        monkeypatch.chdir(places[0])
        assert find_executable("plugin", path=path) is None
        assert find_executable("plugin", path=f"{path}:{places[1]}") == str(places[1] / "plugin")

    def test_run_itself_searches_nowhere(self, places: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
        here, elsewhere = places
        monkeypatch.chdir(here)
        assert run("plugin", ["plugin"], env={"PATH": str(elsewhere)}).stdout == b"first\n"
        monkeypatch.chdir("/")
        with pytest.raises(FileNotFoundError):
            run("plugin", ["plugin"], env={"PATH": str(elsewhere)})

    @settings(max_examples=50)
    @given(st.text(), st.text())
    def test_an_answer_is_never_a_bare_name(self, command: str, path: str) -> None:
        found = find_executable(command, path=path)
        assert found is None or os.path.dirname(found)


@pytest.mark.usefixtures("way_to_watch")
class TestManyAtOnce:
    def test_twenty_runs_in_twenty_threads_do_not_wait_for_each_other(self, tmp_path: Path) -> None:
        count = 20
        os.mkfifo(tmp_path / "arrived")
        arrived = os.open(tmp_path / "arrived", os.O_RDWR)
        gate = os.open(tmp_path / "gate", os.O_RDWR | os.O_CREAT)
        fcntl.flock(gate, fcntl.LOCK_EX)
        code = (
            "import fcntl, sys; open(sys.argv[1], 'wb', 0).write(b'.')\n"
            "fcntl.flock(open(sys.argv[2]), fcntl.LOCK_SH); print(sys.stdin.read())"
        )

        def one(number: int) -> bytes:
            paths = (str(tmp_path / "arrived"), str(tmp_path / "gate"))
            return python(code, *paths, stdin=b"%d" % number, limits=PATIENT).stdout

        with ThreadPoolExecutor(count) as threads:
            answers = [threads.submit(one, number) for number in range(count)]
            for _ in range(count):
                assert os.read(arrived, 1) == b"."
            fcntl.flock(gate, fcntl.LOCK_UN)
            assert [answer.result() for answer in answers] == [b"%d\n" % number for number in range(count)]
        os.close(arrived)
        os.close(gate)


class TestInterruption:
    @pytest.mark.parametrize("own_group", [True, False])
    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
    def test_an_exception_while_waiting_ends_the_child_before_it_propagates(
        self, lifeline: Lifeline, error: type[BaseException], own_group: bool
    ) -> None:
        def give_up(_: float) -> None:
            lifeline.wait_until_held()
            raise error("enough")

        with pytest.raises(error, match="enough"):
            python(
                Lifeline.HOLD + "import signal; signal.pause()",
                lifeline.path,
                limits=IMPATIENT_WITHOUT_GRACE,
                own_group=own_group,
                while_waiting=give_up,
            )
        lifeline.wait_until_dropped()

    def test_ctrl_c_ends_the_child_and_then_us(self, lifeline: Lifeline) -> None:
        code = f"python({Lifeline.HOLD!r} + 'import signal; signal.pause()', sys.argv[1])"
        with subprocess.Popen(program(code, lifeline.path), stderr=subprocess.PIPE) as running:
            lifeline.wait_until_held()
            running.send_signal(signal.SIGINT)
            _, told = running.communicate()
        assert b"KeyboardInterrupt" in told
        lifeline.wait_until_dropped()

    def test_a_ctrl_c_before_the_number_of_the_child_is_known_ends_it_too(self, lifeline: Lifeline) -> None:
        code = (
            "def interrupt(frame, event, called):\n"
            "    if event == 'c_return' and called.__name__ == 'fork_exec':\n"
            "        sys.setprofile(None)\n"
            "        os.kill(os.getpid(), signal.SIGINT)\n"
            "sys.setprofile(interrupt)\n"
            f"python({Lifeline.HOLD!r} + 'import signal; signal.pause()', sys.argv[1])"
        )
        with subprocess.Popen(program(code, lifeline.path), stderr=subprocess.PIPE) as running:
            _, errors = running.communicate()
        assert b"KeyboardInterrupt" in errors
        lifeline.wait_until_nobody_holds_it()

    def test_a_ctrl_c_while_the_child_is_being_started_ends_it_too(self, lifeline: Lifeline) -> None:
        code = (
            "def interrupt(frame, event, called):\n"
            "    if event == 'c_return' and called is os.read and frame.f_code.co_name == '_execute_child':\n"
            "        sys.setprofile(None)\n"
            "        raise KeyboardInterrupt\n"
            "sys.setprofile(interrupt)\n"
            f"python({Lifeline.HOLD!r} + 'import signal; signal.pause()', sys.argv[1])"
        )
        with subprocess.Popen(program(code, lifeline.path), stderr=subprocess.PIPE) as running:
            _, errors = running.communicate()
        assert b"KeyboardInterrupt" in errors
        lifeline.wait_until_nobody_holds_it()

    def test_a_second_ctrl_c_waits_for_no_good_bye(self, lifeline: Lifeline) -> None:
        def interrupt(_: float) -> None:
            lifeline.wait_until_held()
            # The second one comes while the child has all the time it likes.
            threading.Thread(target=press_again).start()
            raise KeyboardInterrupt

        def press_again() -> None:
            asked.wait_until_held()
            wait_until_main_thread_polls()
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        code = (
            "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
            + Lifeline.HOLD
            + "signal.sigwait({signal.SIGTERM}); asked = open(sys.argv[2], 'wb', 0); asked.write(b'up')\n"
            "signal.pause()"
        )
        asked = Lifeline(Path(lifeline.path + ".asked"))
        with pytest.raises(KeyboardInterrupt):
            python(code, lifeline.path, asked.path, limits=IMPATIENT, while_waiting=interrupt)
        lifeline.wait_until_dropped()
        asked.close()


@pytest.mark.usefixtures("way_to_watch")
class TestEndAll:
    def test_a_run_in_another_thread_ends_with_all_it_started(self, lifeline: Lifeline) -> None:
        code = (
            "import os, signal\n"
            "if os.fork() == 0:\n"
            "    signal.signal(signal.SIGTERM, signal.SIG_IGN); os.close(1); os.close(2)\n"
            f"    {Lifeline.HOLD}"
            "signal.pause()"
        )
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(python, code, lifeline.path, limits=replace(PATIENT, grace_seconds=0.01))
            lifeline.wait_until_held()
            end_all(FOR_EVER)
            assert running.result().ending is Ending.SIGNALLED
        lifeline.wait_until_dropped()

    def test_one_that_ignores_sigterm_is_killed_after_the_grace(self, lifeline: Lifeline) -> None:
        code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + Lifeline.HOLD + "signal.pause()"
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(python, code, lifeline.path, limits=PATIENT)
            lifeline.wait_until_held()
            end_all(0.01)
            assert running.result().exit_code == -signal.SIGKILL

    def test_with_nothing_running_it_returns_and_runs_can_be_started_after_it(self) -> None:
        end_all(FOR_EVER)
        assert shell("echo on").stdout == b"on\n"


class TestWhenTheInterpreterEnds:
    RUNNING = "def plugin(code): threading.Thread(target=python, args=(code, *sys.argv[1:]), daemon=True).start()\n"

    def test_what_still_runs_in_a_daemon_thread_ends_too(self, lifeline: Lifeline) -> None:
        code = self.RUNNING + f"plugin({Lifeline.HOLD!r} + 'import signal; signal.pause()'); sys.stdin.read()"
        with subprocess.Popen(program(code, lifeline.path), stdin=subprocess.PIPE) as running:
            lifeline.wait_until_held()
            running.communicate(b"")
        lifeline.wait_until_dropped()

    def test_the_end_waits_for_a_process_that_is_being_started(self) -> None:
        with starting():
            ending = threading.Thread(target=end_all)
            ending.start()
            process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            child = RunningChild(process, own_group=True)
        assert process.wait() == -signal.SIGTERM
        child.close()
        ending.join()

    def test_a_fork_of_us_that_ends_leaves_our_children_alone(self, survivor: Survivor, lifeline: Lifeline) -> None:
        code = (
            self.RUNNING
            + f"plugin({Lifeline.HOLD!r} + 'del sys.argv[1]\\n' + {Survivor.LIVE!r}); sys.stdin.readline()\n"
            "fork = os.fork()\n"
            "if fork == 0: sys.exit(7)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True); sys.stdin.readline()"
        )
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        command = program(code, lifeline.path, *survivor.paths)
        with subprocess.Popen(command, **pipes) as running:  # type: ignore[call-overload]
            lifeline.wait_until_held()
            running.stdin.write(b"\n")
            assert running.stdout.readline() == b"7\n"
            assert survivor.says() == "alive"


class TestAtATerminal:
    """A person types: the child shares our terminal and our process group."""

    PERSON = (
        "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        # Ctrl-C is ignored by what a shell starts in the background, and so is everything below that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "PERSON = dict(stdin=Stdin.INHERIT, stderr=Stderr.INHERIT, own_group=False,\n"
        "    limits=RunLimits(seconds=None, grace_seconds=3600))\n"
    )

    @pytest.fixture
    def terminal(self) -> Iterator[tuple[int, int]]:
        keyboard, terminal = pty.openpty()
        yield keyboard, terminal
        os.close(keyboard)
        os.close(terminal)

    def start(self, terminal: int, code: str, *args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            program(self.PERSON + code, *args),
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            start_new_session=True,
        )

    def test_the_child_can_ask_a_person(self, terminal: tuple[int, int]) -> None:
        """E25, F26."""
        keyboard, screen = terminal
        child = "import os; print(os.isatty(0), os.isatty(2), os.tcgetpgrp(0) == os.getpgrp(), input())"
        os.write(keyboard, b"secret\n")
        with self.start(screen, f"print(python({child!r}, **PERSON).stdout)") as running:
            told, _ = running.communicate()
        assert told == b"b'True True True secret\\n'\n"

    # It takes its time, in which a SIGTERM would be noticed.
    TIDY = (
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})\n"
        + Lifeline.HOLD
        + "signal.sigwait({signal.SIGINT}); torn = signal.sigtimedwait({signal.SIGTERM}, .3)\n"
        "open(sys.argv[2], 'w').write('torn' if torn else 'tidy')"
    )

    def test_ctrl_c_leaves_the_child_time_to_tidy_the_terminal(
        self, terminal: tuple[int, int], lifeline: Lifeline, tmp_path: Path
    ) -> None:
        keyboard, screen = terminal
        note = tmp_path / "note"
        code = f"try: python({self.TIDY!r}, *sys.argv[1:], **PERSON)\nexcept KeyboardInterrupt: print('interrupted')"
        with self.start(screen, code, lifeline.path, str(note)) as running:
            lifeline.wait_until_held()
            os.write(keyboard, b"\x03")
            told, _ = running.communicate()
        assert told == b"interrupted\n"
        assert note.read_text() == "tidy"

    def test_so_does_a_ctrl_c_that_ends_us_while_a_thread_runs_the_child(
        self, terminal: tuple[int, int], lifeline: Lifeline, tmp_path: Path
    ) -> None:
        keyboard, screen = terminal
        note = tmp_path / "note"
        code = (
            f"run_it = lambda: python({self.TIDY!r}, *sys.argv[1:], **PERSON)\n"
            "threading.Thread(target=run_it, daemon=True).start()\n"
            "try: threading.Event().wait()\n"
            "except KeyboardInterrupt: end_all(3600); print('interrupted')"
        )
        with self.start(screen, code, lifeline.path, str(note)) as running:
            lifeline.wait_until_held()
            os.write(keyboard, b"\x03")
            told, _ = running.communicate()
        assert told == b"interrupted\n"
        assert note.read_text() == "tidy"
