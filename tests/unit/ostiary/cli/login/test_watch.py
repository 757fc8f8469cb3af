"""``get-token --output-dir``: files as in a service account volume, refreshed ahead of expiry, removed after it."""

from __future__ import annotations

import argparse
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from ostiary.cli import main
from ostiary.cli.login.gateway import ExchangedToken
from ostiary.cli.login.watch import EARLIEST, LATEST, SignalWait, TokenDirectory, TokenWatcher, run
from ostiary.errors import ConfigurationError, LoginRefused, OstiaryError, ProviderError
from ostiary.model import Secret
from ostiary_gateway.testing import FakeClock

HOUR = timedelta(hours=1)
UNREACHABLE = ProviderError("the gateway is unreachable", cause="connection refused", code="gateway-unreachable")
Captured = pytest.CaptureFixture[str]


class Gateway:
    """Issues numbered tokens that live for an hour, or fails."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.issued = clock, 0
        self.error: OstiaryError | None = None

    def __call__(self) -> ExchangedToken:
        if self.error is not None:
            raise self.error
        self.issued += 1
        return ExchangedToken(Secret(f"token-{self.issued}"), self.clock.now() + HOUR)


class Setup:
    def __init__(self, clock: FakeClock, path: Path, *, keep_expired: bool = False) -> None:
        self.clock, self.gateway, self.path = clock, Gateway(clock), path
        self.notes: list[str] = []
        self.ready_file = path / "ready"
        self.directory = TokenDirectory(str(path), ready_file=str(self.ready_file), keep_expired=keep_expired)
        self.watcher = TokenWatcher(
            self.gateway, self.directory, clock=clock, notify=self.notes.append, uniform=lambda low, high: high
        )

    def token(self) -> str | None:
        file = self.path / "token"
        return file.read_text() if file.exists() else None

    def wait_until_refresh(self) -> timedelta:
        return self.watcher.refresh() - self.clock.now()


@pytest.fixture
def setup(clock: FakeClock, tmp_path: Path) -> Setup:
    return Setup(clock, tmp_path)


def directory_of(path: Path, **options: object) -> TokenDirectory:
    return TokenDirectory(str(path), **options)  # type: ignore[arg-type]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- the files ---


def test_the_files_are_those_of_a_service_account_volume(tmp_path: Path) -> None:
    path = tmp_path / "new"
    directory = directory_of(path, mode=0o640, authorities_pem="a certificate", namespace="shop")
    directory.prepare()
    directory.write(Secret("first"))
    assert {each.name: each.read_text() for each in path.iterdir()} == {
        "token": "first",
        "ca.crt": "a certificate",
        "namespace": "shop",
    }
    assert (mode_of(path), mode_of(path / "token"), mode_of(path / "ca.crt")) == (0o700, 0o640, 0o644)


def test_the_token_is_private_by_default_and_no_umask_changes_its_mode(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        directory_of(tmp_path, mode=0o644).write(Secret("x"))
        assert mode_of(tmp_path / "token") == 0o644
        os.umask(0)
        directory_of(tmp_path).write(Secret("x"))
        assert mode_of(tmp_path / "token") == 0o600
    finally:
        os.umask(before)


def test_a_client_with_the_old_file_open_reads_the_whole_old_token(tmp_path: Path) -> None:
    directory = directory_of(tmp_path)
    directory.write(Secret("first"))
    with (tmp_path / "token").open() as opened:
        directory.write(Secret("the second, which is longer"))
        assert opened.read() == "first"
    assert (tmp_path / "token").read_text() == "the second, which is longer"
    assert [each.name for each in tmp_path.iterdir()] == ["token"]


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not ours")
    path = tmp_path / "directory"
    path.mkdir()
    (path / ".token.new").symlink_to(elsewhere)
    directory_of(path).write(Secret("x"))
    assert elsewhere.read_text() == "not ours"
    assert (path / "token").read_text() == "x"


def test_an_error_names_the_path_and_not_the_token(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    attempts: list[Callable[[], None]] = [
        directory_of(tmp_path / "file/x").prepare,
        lambda: directory_of(Path("/proc/x")).write(Secret("secret")),
    ]
    for attempt in attempts:
        with pytest.raises(ConfigurationError) as raised:
            attempt()
        assert raised.value.code == "token-file-unwritable"
        assert "secret" not in str(raised.value)


# --- when the token is refreshed ---


def test_each_token_is_replaced_before_it_expires(setup: Setup) -> None:
    for number in range(1, 5):
        wait = setup.wait_until_refresh()
        assert wait == LATEST * HOUR
        assert setup.token() == f"token-{number}"
        setup.clock.advance(wait.total_seconds())
        setup.watcher.remove_if_expired()
        assert setup.token() == f"token-{number}"
    assert setup.notes == []


def test_watchers_that_started_together_do_not_refresh_together(clock: FakeClock, tmp_path: Path) -> None:
    gateway = Gateway(clock)
    waits = {TokenWatcher(gateway, directory_of(tmp_path), clock=clock).refresh() - clock.now() for _ in range(50)}
    assert len(waits) > 40
    assert min(waits) >= EARLIEST * HOUR
    assert max(waits) <= LATEST * HOUR


def test_retries_back_off_and_the_current_token_stays_until_it_expires(setup: Setup) -> None:
    setup.watcher.refresh()
    setup.gateway.error = UNREACHABLE
    waits = [setup.wait_until_refresh() for _ in range(12)]
    assert waits[0] == timedelta(seconds=1)
    assert waits == sorted(waits)
    assert waits[-1] == timedelta(minutes=1)
    (note,) = setup.notes
    assert "the gateway is unreachable: connection refused; the token is valid until" in note
    setup.clock.advance(HOUR.total_seconds() - 1)
    setup.watcher.remove_if_expired()
    assert setup.token() == "token-1"
    setup.clock.advance(1)
    setup.watcher.remove_if_expired()
    assert setup.token() is None
    assert not setup.ready_file.exists()
    assert setup.notes[1].startswith("the token expired at")
    setup.gateway.error = None
    setup.watcher.refresh()
    assert setup.token() == "token-2"
    assert setup.ready_file.exists()
    assert setup.notes[2].startswith("the token was refreshed")


def test_retries_are_spread(clock: FakeClock, tmp_path: Path) -> None:
    gateway = Gateway(clock)
    gateway.error = UNREACHABLE
    waits = set()
    for _ in range(50):
        watcher = TokenWatcher(gateway, directory_of(tmp_path), clock=clock, notify=lambda note: None)
        waits.add(watcher.refresh() - clock.now())
    assert len(waits) > 40
    assert timedelta(seconds=0.5) <= min(waits) <= max(waits) <= timedelta(seconds=1)


def test_a_token_that_requests_its_own_successor_is_not_removed(clock: FakeClock, tmp_path: Path) -> None:
    setup = Setup(clock, tmp_path, keep_expired=True)
    setup.watcher.refresh()
    clock.advance(HOUR.total_seconds())
    setup.watcher.remove_if_expired()
    assert setup.token() == "token-1"
    assert not setup.ready_file.exists()


def test_denied_and_failed_are_told_apart(setup: Setup) -> None:
    setup.gateway.error = UNREACHABLE
    setup.watcher.refresh()
    setup.gateway.error = LoginRefused("the gateway denied the token", cause="the account is disabled")
    setup.watcher.refresh()
    assert [note.split(":")[0] for note in setup.notes] == ["the token refresh failed", "the token refresh was denied"]
    assert setup.notes[0].endswith("there is no token; retrying")


def test_a_token_that_cannot_be_written_does_not_replace_the_current_one(setup: Setup) -> None:
    setup.watcher.refresh()
    expires_at = setup.watcher.expires_at
    setup.clock.advance(60)
    (setup.path / ".token.new").mkdir()
    setup.watcher.refresh()
    assert (setup.token(), setup.watcher.expires_at) == ("token-1", expires_at)
    assert "the token cannot be written" in setup.notes[0]
    assert "token-2" not in setup.notes[0]


def test_without_its_ready_file_the_new_token_still_counts(setup: Setup) -> None:
    setup.watcher.refresh()
    setup.clock.advance(60)
    (setup.path / ".ready.new").mkdir()
    setup.watcher.refresh()
    assert (setup.token(), setup.watcher.expires_at) == ("token-2", setup.clock.now() + HOUR)


# --- signals ---


class RaisingGateway(Gateway):
    """Sends this process a signal with each token, the last of which is SIGTERM."""

    def __call__(self) -> ExchangedToken:
        issued = super().__call__()
        signal.raise_signal(signal.SIGHUP if self.issued < 4 else signal.SIGTERM)
        return issued


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no SIGHUP")
def test_sighup_refreshes_at_once_and_sigterm_ends_it(clock: FakeClock, tmp_path: Path) -> None:
    gateway, ready_file = RaisingGateway(clock), tmp_path / "ready"
    watcher = TokenWatcher(gateway, directory_of(tmp_path, ready_file=str(ready_file)), clock=clock)
    with SignalWait() as signals:
        watcher.run(signals)
    assert gateway.issued == 4
    assert (tmp_path / "token").read_text() == "token-4"
    assert not ready_file.exists()


# One signal for each wait, a little later each time, so that one of them meets every moment of it.
PROGRAM = """
import signal
from datetime import timedelta
from ostiary.cli.login.watch import SignalWait

def wait_once(signals):
    while not signals.wait(timedelta(hours=1)):
        pass

signal.signal(signal.SIGALRM, lambda *_: None)
with SignalWait() as signals:
    for turn in range(20_000):
        signal.setitimer(signal.ITIMER_REAL, 1e-6 * (1 + turn % 50))
        wait_once(signals)
    assert not signals.terminated
    signal.raise_signal(signal.SIGTERM)
    wait_once(signals)
    assert signals.terminated
print("done")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer, which Windows does not have")
def test_a_signal_ends_the_wait_at_any_moment() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stderr


def test_the_handlers_are_restored_and_more_signals_than_fit_are_no_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with SignalWait() as signals:
        assert signal.getsignal(signal.SIGTERM) is not before
        assert not signals.wait(timedelta(0))
        for _ in range(5_000):
            signal.raise_signal(signal.SIGTERM)
        assert signals.wait(timedelta(hours=1))
        assert signals.terminated
    assert signal.getsignal(signal.SIGTERM) is before
    assert signal.set_wakeup_fd(-1) == -1


# --- the command line ---


def test_the_probe_reads_until_when_the_token_is_valid(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "ready"

    def probe() -> int:
        return run(argparse.Namespace(probe=True, ready_file=str(path)))

    assert probe() == 1
    for content, code in (
        ("2999-01-01T00:00:00+00:00\n", 0),
        ("2020-01-01T00:00:00+00:00\n", 1),
        ("2999-01-01T00:00:00\n", 1),
        ("soon", 1),
        ("\xff", 1),
    ):
        path.write_text(content, encoding="latin-1")
        assert probe() == code, content
    notes = capsys.readouterr().err.splitlines()
    assert "not ready: No such file or directory" in notes[0]
    assert "the token is valid until 2999" in notes[1]
    assert "the token expired at" in notes[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--watch",), "--watch needs --output-dir"),
        (("--service-account", "shop/deployer"), "--service-account needs --output-dir"),
        (("--mode", "0640"), "--mode needs --output-dir"),
        (("--probe",), "--probe needs --ready-file"),
        (("--output-dir", "x", "--jwt-for", "y"), "--output-dir and --jwt-for cannot be combined"),
        (("--output-dir", "x", "--for", "1h"), "--for needs --service-account"),
        (("--output-dir", "x", "--gateway-token-file", "y"), "--gateway-token-file needs --service-account"),
        (("--output-dir", "x", "--service-account", "deployer"), "NAMESPACE/NAME"),
        (("--output-dir", "x", "--service-account", "shop/deployer", "--for", "soon"), "--for needs a time"),
        (
            ("--output-dir", "x", "--service-account", "a/b", "--from", "file", "--gateway-token-file", "y"),
            "--from and --gateway-token-file cannot be combined",
        ),
    ],
)
def test_a_wrong_command_line_does_nothing(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["get-token", "--server", "https://127.0.0.1:1", *words]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_the_files_module_is_imported_only_for_these_options(tmp_path: Path) -> None:
    script = (
        "import sys; from ostiary.cli import main; code = main(sys.argv[1:]); "
        "print(code, 'ostiary.cli.login.watch' in sys.modules, file=sys.stderr)"
    )

    def imported(*words: str) -> str:
        command = [sys.executable, "-c", script, "get-token", "--server", "https://127.0.0.1:1", *words]
        environment = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stderr.splitlines()[-1]

    assert imported() == "1 False"
    assert imported("--output-dir", str(tmp_path / "files")) == "1 True"
