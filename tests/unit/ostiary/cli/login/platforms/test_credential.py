"""One exchange for a whole job: what is cached, for whom, and what ``get-token``, ``login`` and ``whoami`` say."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostiary.cli import main
from ostiary.cli.login import sessions as files
from ostiary.cli.login.platforms.credential import WorkloadTurn, exchange_proof
from ostiary.cli.login.platforms.proof import PlatformChoice
from ostiary.errors import LoginRefused, ProviderError
from ostiary_gateway.testing import FakeClock
from tests.support.http_server import Response
from tests.support.platform_tokens import CANARY, unsigned_token
from tests.support.signin_server import SigninServer

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def token_file(server: SigninServer, tmp_path: Path) -> Path:
    path = tmp_path / "identity"
    path.write_text(unsigned_token(server.url, sub="job-1"))
    return path


@pytest.fixture
def turn(server: SigninServer, token_file: Path, authority: str, clock: FakeClock) -> Callable[..., WorkloadTurn]:
    def make(**fields: Any) -> WorkloadTurn:
        choice = PlatformChoice(server.url, "file", token_file=str(token_file), **fields)
        return WorkloadTurn(choice, Path(authority).read_text(), clock)

    # The token of the platform is good by the clock of the test, too.
    token_file.write_text(unsigned_token(server.url, sub="job-1", exp=int(clock.now().timestamp()) + 10**8))
    return make


def cached_files() -> list[Path]:
    folder = Path(files.sessions_folder())
    return sorted(folder.glob("workload+*")) if folder.exists() else []


Turn = Callable[..., WorkloadTurn]


# --- what is cached ---


def test_a_job_exchanges_once_until_the_token_should_be_renewed(
    turn: Turn, server: SigninServer, clock: FakeClock
) -> None:
    first = turn().token()
    assert turn().token() == first
    clock.advance(minutes=13, seconds=59)
    assert turn().token() == first
    clock.advance(seconds=1)
    assert turn().token() != first
    assert server.count["exchanged"] == 2


def test_the_file_is_private_and_holds_neither_token_in_the_clear(turn: Turn) -> None:
    token = turn().token().reveal()
    (path,) = [path for path in cached_files() if path.suffix == ".token"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token.encode() not in path.read_bytes()
    assert CANARY.encode() not in path.read_bytes()
    assert b"osr_" not in path.read_bytes()


def test_another_job_with_the_same_home_does_not_get_the_token(
    turn: Turn, token_file: Path, server: SigninServer, clock: FakeClock
) -> None:
    first = turn().token()
    expires = int(clock.now().timestamp()) + 10**8
    token_file.write_text(unsigned_token(server.url, sub="job-2", exp=expires))
    assert turn().token() != first
    assert server.count["exchanged"] == 2


def test_a_file_under_the_name_of_another_job_cannot_be_opened(
    turn: Turn, token_file: Path, server: SigninServer, clock: FakeClock
) -> None:
    first = turn().token()
    (path,) = [path for path in cached_files() if path.suffix == ".token"]
    expires = int(clock.now().timestamp()) + 10**8
    token_file.write_text(unsigned_token(server.url, sub="job-2", exp=expires))
    turn().token()
    (other,) = [each for each in cached_files() if each.suffix == ".token" and each != path]
    other.write_bytes(path.read_bytes())
    assert turn().token() != first
    assert server.count["exchanged"] == 3


def test_a_scope_has_a_token_of_its_own_and_reaches_the_gateway(turn: Turn, server: SigninServer) -> None:
    rules = ("get pods -n shop", "list pods -A")
    whole, less, exact = turn().token(), turn(can=rules).token(), turn(scope="; ".join(rules)).token()
    assert len({whole, less, exact}) == 3
    sent = [form.get("scope") for form in server.exchanges]
    assert sent == [None, "discovery; get pods -n shop; list pods -A", "get pods -n shop; list pods -A"]


def test_files_of_ended_jobs_are_cleared_away(
    turn: Turn, token_file: Path, server: SigninServer, clock: FakeClock
) -> None:
    for number in range(3):
        expires = int(clock.now().timestamp()) + 10**8
        token_file.write_text(unsigned_token(server.url, sub=f"job-{number}", exp=expires))
        turn().token()
    assert len([path for path in cached_files() if path.suffix == ".token"]) == 3
    clock.advance(hours=1)
    turn().token()
    assert len([path for path in cached_files() if path.suffix == ".token"]) == 1
    assert len(cached_files()) == 2, "its lock, and nothing of the others"


def test_without_a_place_for_files_a_job_works_without_a_cache(
    turn: Turn, server: SigninServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert turn().token() != turn().token()
    assert server.count["exchanged"] == 2


def test_many_processes_of_a_job_exchange_once(turn: Turn, server: SigninServer) -> None:
    tokens: list[str] = []
    threads = [threading.Thread(target=lambda: tokens.append(turn().token().reveal())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(tokens) == 6
    assert (len(set(tokens)), server.count["exchanged"]) == (1, 1)


def test_a_token_that_the_gateway_no_longer_knows_is_exchanged_again(turn: Turn, server: SigninServer) -> None:
    first = turn().token()
    answer, granted = turn().credential(doubted=True)
    assert (answer.token, granted) == (first, None)
    server.end_sessions()
    answer, granted = turn().credential(doubted=True)
    assert granted is not None
    assert answer.token == granted.token != first
    assert turn().token() == granted.token


# --- what the gateway says ---


@pytest.mark.parametrize(
    ("status", "fields", "kind", "says"),
    [
        (400, {"error": "invalid_grant", "error_description": "no rule for job-1"}, LoginRefused, "no rule for job-1"),
        (400, {"error": "invalid_scope"}, LoginRefused, "--can as in"),
        (403, {"message": "not you"}, LoginRefused, "not you"),
        (404, {}, ProviderError, "invalid response"),
        (503, {"message": "the store is away"}, ProviderError, "the store is away"),
        (200, {"access_token": "t", "token_type": "Bearer"}, ProviderError, "how long"),
        (200, {"access_token": "t", "token_type": "N_A", "expires_in": "5"}, ProviderError, "how long"),
        (200, {"access_token": "t\n", "token_type": "Bearer", "expires_in": 5}, ProviderError, "bearer token"),
        (200, {"access_token": "t", "token_type": "mac", "expires_in": 5}, ProviderError, "bearer token"),
        (200, {"token_type": "Bearer", "expires_in": 5}, ProviderError, "access_token is missing"),
    ],
)
def test_no_differs_from_could_not_ask_and_nothing_is_cached(
    turn: Turn, server: SigninServer, status: int, fields: dict[str, Any], kind: type[Exception], says: str
) -> None:
    server.exchange_refusal = Response(status, fields)
    with pytest.raises(kind) as raised:
        turn().token()
    assert says in str(raised.value)
    assert CANARY not in str(raised.value)
    assert [path for path in cached_files() if path.suffix == ".token"] == []


def test_a_token_that_was_not_limited_to_the_scope_is_not_used(turn: Turn, server: SigninServer) -> None:
    server.exchange_refusal = Response(200, {"access_token": "t", "token_type": "Bearer", "expires_in": 300})
    with pytest.raises(ProviderError, match="scope"):
        turn(can=("get pods -n shop",)).token()
    assert [path for path in cached_files() if path.suffix == ".token"] == []


def test_a_program_gets_token_platform_and_subject_from_one_function(turn: Turn, server: SigninServer) -> None:
    wanted = turn()
    granted = exchange_proof(wanted.choice, authorities_pem=wanted.authorities_pem, clock=wanted.clock)
    assert (granted.platform, granted.subject) == ("file", "job-1")
    assert granted.expires_at == wanted.clock.now() + timedelta(minutes=15)
    assert granted.token.reveal() in server.tokens
    assert cached_files() == []


# --- the commands, as processes: get-token takes its stdout for itself ---


def run(
    command: str, server: SigninServer, token_file: Path, authority: str, *more: str, platform: str = "file"
) -> subprocess.CompletedProcess[str]:
    words = ["--server", server.url, "--ca", authority, "--from", platform, "--token-file", str(token_file), *more]
    program = [sys.executable, "-m", "ostiary", command, *words]
    return subprocess.run(program, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)


def test_get_token_prints_a_credential_and_nothing_else(server: SigninServer, token_file: Path, authority: str) -> None:
    for _ in range(2):
        done = run("get-token", server, token_file, authority)
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["status"]["token"] in server.tokens
    assert server.count["exchanged"] == 1


def test_verbose_says_on_stderr_what_was_found_and_never_a_token(
    server: SigninServer, token_file: Path, authority: str
) -> None:
    for says in (f"file: the token of job-1 from {token_file} was exchanged", "the cached token of this job is used"):
        done = run("get-token", server, token_file, authority, "--verbose", platform="auto")
        assert (done.returncode, says in done.stderr) == (0, True)
        assert CANARY not in done.stderr
        assert json.loads(done.stdout)["status"]["token"] not in done.stderr


def test_login_tells_a_script_who_it_is_and_get_token_uses_what_it_cached(
    server: SigninServer, token_file: Path, authority: str
) -> None:
    done = run("login", server, token_file, authority)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"signed in at {server.url} as ann" in done.stderr
    assert run("get-token", server, token_file, authority).returncode == 0
    assert "ann" in run("whoami", server, token_file, authority).stdout
    assert server.count["exchanged"] == 1


def test_login_of_a_job_leaves_no_session_for_others(server: SigninServer, token_file: Path, authority: str) -> None:
    assert run("login", server, token_file, authority).returncode == 0
    names = os.listdir(files.sessions_folder())
    assert names
    assert all(name.startswith("workload+") for name in names), names


@pytest.mark.parametrize("command", ["get-token", "login", "whoami"])
def test_a_refusal_is_an_error_with_its_hint_and_no_output(
    server: SigninServer, token_file: Path, authority: str, command: str
) -> None:
    server.exchange_refusal = Response(400, {"error": "invalid_grant"})
    done = run(command, server, token_file, authority)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the gateway refused the platform's token" in done.stderr
    assert "hint" in done.stderr
    assert CANARY not in done.stderr


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--audience", "x"], "--audience needs --from"),
        (["--token-file", "x"], "--token-file needs --from"),
        (["--can", "x"], "--can needs --from"),
        (["--scope", "x"], "--scope needs --from"),
        (["--from", "file", "--can", "get pods -A", "--scope", "get pods -A"], "--can and --scope cannot be combined"),
        (["--from", "file", "--account", "a"], "--from and --account cannot be combined"),
        (["--from", "file", "--device"], "--from and --device cannot be combined"),
        (["--from", "file", "--store", "file"], "--from and --store cannot be combined"),
        (["--from", "github", "--token-file", "x"], "reads no token file"),
        (["--from", "file", "--token-variable", "x"], "needs --from gitlab"),
        (["--from", "file", "--can", " "], "--can is empty"),
        (["--from", "file", "--audience", ""], "--audience is empty"),
        (["--from", "nowhere"], "--from is one of"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(more: list[str], says: str, capsys: Captured) -> None:
    for command in ("get-token", "login"):
        assert main([command, "--server", "https://gateway.example", *more]) == 2
        assert says in capsys.readouterr().err


def test_a_job_must_name_its_gateway(capsys: Captured) -> None:
    assert main(["login", "--from", "auto"]) == 2
    assert "OSTIARY_SERVER" in capsys.readouterr().err


def test_kubeconfig_writes_a_context_that_asks_nobody(capsys: Captured) -> None:
    scope = ["--can", "get pods -n shop", "--can", "list pods -A"]
    assert main(["kubeconfig", "--server", "https://gateway.example", "--from", "gitlab", *scope]) == 0
    (user,) = yaml.safe_load(capsys.readouterr().out)["users"]
    plugin = user["user"]["exec"]
    assert plugin["interactiveMode"] == "Never"
    assert plugin["args"] == [
        *("get-token", "--server", "https://gateway.example", "--from", "gitlab"),
        *("--can", "get pods -n shop", "--can", "list pods -A"),
    ]


def test_a_context_of_a_job_does_not_take_the_place_of_a_persons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    given = ["kubeconfig", "--server", "https://gateway.example", "--merge"]
    assert main(given) == 0
    assert main([*given, "--from", "github"]) == 1
    assert "in another way" in capsys.readouterr().err
    assert main([*given, "--from", "github", "--name", "job"]) == 0
    assert main([*given, "--from", "github", "--name", "job"]) == 0, "it is the same"
    assert main([*given, "--from", "github", "--name", "job", "--can", "get pods -A"]) == 1


@pytest.mark.parametrize("option", ["--can", "--scope"])
def test_a_scope_that_cannot_be_read_is_told_before_anybody_is_asked(option: str, capsys: Captured) -> None:
    for command in ("login", "kubeconfig", "whoami"):
        assert main([command, "--server", "https://127.0.0.1:1", "--from", "file", option, "list pods"]) == 1
        assert "scope-invalid" in capsys.readouterr().err
