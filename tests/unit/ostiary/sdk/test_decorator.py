"""A plugin made with the SDK, as a client sees it: a process, its stdout, its stderr and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ostiary.conformance.exec_plugin import check
from ostiary.errors import AnswerInvalid, ConfigurationError
from ostiary.sdk import ExecInfo, SignInRefused, Token, exec_plugin
from ostiary.wire import client_authentication as wire
from ostiary.wire.client_authentication import API_VERSIONS, V1, V1ALPHA1, decode_answer, encode_info
from ostiary_gateway.testing import FakeClock

CANARY = "c4n4ry-c4n4ry-c4n4ry"

TEMPLATE = """\
#!{python}
import atexit, os, subprocess, sys, threading
from datetime import timedelta
from ostiary.sdk import Certificate, ExecInfo, SignInRefused, Token, exec_plugin
{before}
@exec_plugin
{define} main(info: ExecInfo):
{body}
if __name__ == "__main__":
    main()
{after}
"""


class SdkPlugin:
    """A plugin script whose function has the given body."""

    def __init__(self, path: Path, body: str, *, before: str = "", after: str = "", define: str = "def") -> None:
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        path.write_text(TEMPLATE.format(python=sys.executable, before=before, define=define, body=lines, after=after))
        path.chmod(0o755)
        self.path = path

    def run(
        self, version: str = V1, *, as_proposed: bool = False, info: str | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        told = encode_info(wire.ExecCredentialSpec(version, False, as_proposed=as_proposed)) if info is None else info
        environ = {**os.environ, "KUBERNETES_EXEC_INFO": told, **env}
        return subprocess.run(
            [self.path], env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
        )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "acme-login"


def token_of(done: subprocess.CompletedProcess[str], version: str = V1) -> str:
    assert done.returncode == 0, done.stderr
    token = decode_answer(done.stdout.encode(), api_version=version).token
    assert token is not None
    return token.reveal()


# --- the answer ---


@pytest.mark.parametrize("version", API_VERSIONS)
def test_the_answer_is_in_the_version_that_was_asked_for(path: Path, version: str) -> None:
    done = SdkPlugin(path, 'return Token("t", expires_in=timedelta(minutes=15))').run(version)
    fields = json.loads(done.stdout)
    assert (fields["kind"], fields["apiVersion"]) == ("ExecCredential", version)
    assert fields["status"]["token"] == "t"
    assert fields["status"]["expirationTimestamp"].endswith("Z")
    assert done.stderr == ""


def test_who_asks_in_the_words_of_the_proposal_is_answered_in_them(path: Path) -> None:
    done = SdkPlugin(path, 'return Token("t", expires_in=timedelta(minutes=15))').run(V1ALPHA1, as_proposed=True)
    fields = json.loads(done.stdout)
    assert (fields["kind"], fields["token"]) == ("ExecCredentials", "t")
    assert isinstance(fields["expiry"], int)


def test_an_async_function_is_awaited(path: Path) -> None:
    plugin = SdkPlugin(path, 'import asyncio\nawait asyncio.sleep(0)\nreturn Token("t")', define="async def")
    assert token_of(plugin.run()) == "t"


def test_a_plugin_made_with_the_sdk_passes_every_rule(path: Path) -> None:
    plugin = SdkPlugin(path, 'print("hello")\nreturn Token("a-token-of-some-length", expires_in=timedelta(hours=1))')
    report = check([str(plugin.path)], versions=API_VERSIONS)
    assert [finding for finding in report.findings if finding.result.value in ("fail", "warn")] == []


# --- stdout ---

STRAY = {
    "a print": 'print("stray")',
    "a write without its newline": 'sys.stdout.write("stray")',
    "the original stdout": 'print("stray", file=sys.__stdout__)',
    "the descriptor itself": 'os.write(1, b"stray\\n")',
    "a child": 'subprocess.run(["echo", "stray"], check=True)',
    "a shell": 'os.system("echo stray")',
    "a thread": 't = threading.Thread(target=print, args=("stray",)); t.start(); t.join()',
    "an exit handler": 'atexit.register(print, "stray")',
    "an exit handler that writes": 'atexit.register(os.write, 1, b"stray\\n")',
}


@pytest.mark.parametrize("stray", STRAY.values(), ids=STRAY)
def test_stray_output_goes_to_stderr_and_spoils_nothing(path: Path, stray: str) -> None:
    done = SdkPlugin(path, f'{stray}\nreturn Token("t")').run()
    assert token_of(done) == "t"
    assert "stray" not in done.stdout
    assert "stray" in done.stderr


def test_what_was_printed_before_and_after_spoils_nothing_either(path: Path) -> None:
    plugin = SdkPlugin(path, 'return Token("t")', before='print("early")', after='print("late")')
    done = plugin.run(PYTHONUNBUFFERED="")
    assert token_of(done) == "t"
    assert done.stderr.split() == ["early", "late"]


def test_a_child_that_lives_on_does_not_hold_stdout(path: Path, tmp_path: Path) -> None:
    """The client sees the end of stdout although the child that the plugin started is still there."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDWR)
    start = f'subprocess.Popen(["sh", "-c", "read x < {fifo}"], stderr=subprocess.DEVNULL, close_fds=False)'
    plugin = SdkPlugin(path, f'{start}\nreturn Token("t")')
    try:
        # Not captured through stderr: only the end of stdout may end this.
        environ = {**os.environ, "KUBERNETES_EXEC_INFO": encode_info(wire.ExecCredentialSpec(V1, False))}
        with subprocess.Popen([plugin.path], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            assert b'"token":"t"' in process.stdout.read()
    finally:
        os.write(held, b"\n")
        os.close(held)


def test_an_answer_larger_than_a_pipe_arrives_whole(path: Path) -> None:
    assert token_of(SdkPlugin(path, 'return Token("x" * 500_000)').run()) == "x" * 500_000


def test_nothing_is_printed_on_stdout_when_there_is_no_answer(path: Path) -> None:
    """E54."""
    done = SdkPlugin(path, 'print("stray")\nraise SignInRefused("no")').run()
    assert (done.returncode, done.stdout) == (1, "")


def test_a_closed_stdout_is_told_and_not_taken_for_another_file(path: Path) -> None:
    plugin = SdkPlugin(path, 'return Token("t")')
    environ = {**os.environ, "KUBERNETES_EXEC_INFO": encode_info(wire.ExecCredentialSpec(V1, False))}
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" >&-', plugin.path], env=environ, stderr=subprocess.PIPE, text=True, timeout=100
    )
    assert done.returncode == 1
    assert "stdout is closed" in done.stderr


def test_a_closed_stderr_does_not_let_strays_into_stdout(path: Path) -> None:
    plugin = SdkPlugin(path, 'os.write(1, b"stray")\nreturn Token("t")')
    environ = {**os.environ, "KUBERNETES_EXEC_INFO": encode_info(wire.ExecCredentialSpec(V1, False))}
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" 2>&-', plugin.path], env=environ, stdout=subprocess.PIPE, text=True, timeout=100
    )
    assert token_of(done) == "t"


# --- refusals and mistakes ---


def test_a_refusal_is_one_message_with_its_hint(path: Path) -> None:
    done = SdkPlugin(path, 'raise SignInRefused("the account is locked", hint="call the help desk")').run()
    assert done.returncode == 1
    assert done.stderr == ("acme-login: the account is locked\n  hint   call the help desk\n  code   sign-in-refused\n")


def test_an_unforeseen_exception_is_one_message_without_a_traceback(path: Path) -> None:
    done = SdkPlugin(path, 'raise RuntimeError("the moon is full")').run(OSTIARY_DEBUG="")
    assert done.returncode == 1
    assert "acme-login: RuntimeError: the moon is full\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_traceback_is_shown_where_it_is_asked_for(path: Path) -> None:
    done = SdkPlugin(path, 'raise RuntimeError("the moon is full")').run(OSTIARY_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    "text", [f"Bearer {CANARY}", f"token={CANARY}", f"https://me:{CANARY}@idp.example/", f"\\x1b[31mpassword: {CANARY}"]
)
def test_what_looks_like_a_secret_is_taken_out_of_an_exceptions_text(path: Path, text: str) -> None:
    done = SdkPlugin(path, f'raise RuntimeError("{text}")').run()
    assert "RuntimeError" in done.stderr
    assert CANARY not in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("return None", "returned NoneType"),
        (f'return Token("{CANARY}\\n")', "line break"),
        (f'return Token("{CANARY}\\ud800")', "not UTF-8"),
        ('return Token("")', "neither a token"),
        (f'return Certificate("{CANARY}", "{CANARY}")', "not a PEM certificate"),
        (f'return Token("{CANARY}", expires_in=timedelta(seconds=-1))', "expired already"),
    ],
)
def test_an_answer_that_no_client_could_use_is_not_printed(path: Path, body: str, cause: str) -> None:
    """E54."""
    done = SdkPlugin(path, body).run()
    assert (done.returncode, done.stdout) == (1, "")
    assert cause in done.stderr
    assert CANARY not in done.stderr


@pytest.mark.parametrize("info", ["", "not json", '{"kind":"Pod","apiVersion":"v1"}'])
def test_a_missing_or_broken_info_is_told_with_its_code_and_nothing_is_run(path: Path, info: str) -> None:
    done = SdkPlugin(path, 'os.write(2, b"the function ran")\nreturn Token("t")').run(info=info)
    assert (done.returncode, done.stdout) == (1, "")
    assert "exec-info-missing" in done.stderr
    assert "the function ran" not in done.stderr


@pytest.mark.parametrize(
    ("leave", "code", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ('sys.exit("go away")', 1, "go away"),
        ("sys.exit()", 1, "ended without an answer"),
        ("raise KeyboardInterrupt", 130, "interrupted"),
    ],
)
def test_leaving_early_never_looks_like_success(path: Path, leave: str, code: int, said: str) -> None:
    done = SdkPlugin(path, leave).run()
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


# --- for the tests of those who write plugins ---


@exec_plugin
def main(info: ExecInfo) -> Token:
    """Sign in."""
    if info.config == "refuse":
        raise SignInRefused("no")
    return Token("t", expires_in=timedelta(minutes=15))


def environ_for(**cluster: Any) -> dict[str, str]:
    told = wire.ClusterInfo("https://c", **cluster)
    return {"KUBERNETES_EXEC_INFO": encode_info(wire.ExecCredentialSpec(V1, False, told))}


def test_a_plugin_can_be_tested_without_a_process(clock: FakeClock) -> None:
    found = decode_answer(main.answer(environ_for(), clock=clock).encode(), api_version=V1)
    assert found.expires_at == datetime(2026, 1, 1, 0, 15, tzinfo=UTC)
    with pytest.raises(SignInRefused):
        main.answer(environ_for(config="refuse"))
    with pytest.raises(ConfigurationError):
        main.answer({})


def test_the_decorated_function_keeps_its_name_and_can_be_called() -> None:
    assert (main.__name__, main.__doc__) == ("main", "Sign in.")
    assert main.__wrapped__(ExecInfo(V1, False)) == Token("t", expires_in=timedelta(minutes=15))


def test_a_wrong_result_is_an_error_and_not_an_answer(clock: FakeClock) -> None:
    with pytest.raises(AnswerInvalid):
        exec_plugin(lambda info: "token").answer(environ_for(), clock=clock)  # type: ignore[arg-type,return-value]
