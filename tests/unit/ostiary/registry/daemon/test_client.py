"""What a program makes of a daemon that is not there, hangs, or says something strange. Real sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ostiary.errors import OstiaryError
from ostiary.registry.daemon import client, protocol, relay
from ostiary.registry.daemon.client_errors import error_for

Serve = Callable[[socket.socket], None]
ANSWER = protocol.answer(0, b"out", b"err")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "s")


@pytest.fixture(autouse=True)
def attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon of the test may be slow on a busy machine."""
    monkeypatch.setattr(client, "ATTENTION_SECONDS", 60.0)


@pytest.fixture
def daemon(path: str) -> Iterator[Callable[[bytes], None]]:
    """A daemon that reads the question, says some bytes, and closes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threads = []

    def say(data: bytes, *, hold: threading.Event | None = None) -> None:
        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(data)
                if hold is not None:
                    hold.wait(30)

        threads.append(threading.Thread(target=serve))
        threads[-1].start()

    yield say
    for thread in threads:
        thread.join(30)
    listener.close()


def test_the_answer_is_what_the_daemon_said(path: str, daemon: Callable[[bytes], None]) -> None:
    daemon(protocol.ASKED + ANSWER)
    assert client.ask(path, protocol.STATUS) == (0, b"out", b"err")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (b"", "ended before"),
        (protocol.ASKED, "ended before"),
        (protocol.ASKED + ANSWER[:-1], "ended before"),
        (protocol.ASKED + ANSWER + b"more", "ended before"),
        (protocol.refusal("too many ask at once"), "too many ask at once"),
        (b"HTTP/1.1 400 Bad Request and more\r\n\r\n", "another version"),
    ],
)
def test_what_is_no_answer_lets_the_program_do_it_itself(
    path: str, daemon: Callable[[bytes], None], said: bytes, reason: str
) -> None:
    daemon(said)
    with pytest.raises(client.NoAnswer) as raised:
        client.ask(path, protocol.STATUS)
    assert reason in raised.value.reason


def test_nobody_there_is_not_worth_a_word(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (path, str(tmp_path / "file" / "s"), str(tmp_path / "file")):
        with pytest.raises(client.NoAnswer) as raised:
            client.ask(place, protocol.STATUS)
        assert raised.value.reason == ""


def test_a_daemon_that_says_nothing_is_left_after_a_moment(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ATTENTION_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(client.NoAnswer, match="does not respond"):
            client.ask(path, protocol.STATUS)


def test_one_that_was_asked_and_does_not_answer_is_an_error(path: str, daemon: Callable[..., None]) -> None:
    hold = threading.Event()
    daemon(protocol.ASKED, hold=hold)
    with pytest.raises(client.Overdue) as raised:
        client.ask(path, protocol.STATUS, seconds=0.05)
    hold.set()
    assert error_for(path, raised.value).code == "registry-daemon-unreachable"


def test_the_relay_says_which_daemon_it_does_not_use_and_raises_for_what_is_not_ours(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OSTIARY_REGISTRY_SOCKET", path)
    monkeypatch.delenv("OSTIARY_REGISTRY_PROVIDERS", raising=False)
    assert relay.ask("program", protocol.GET, "a", "b", "c") is None
    assert f"the daemon at {path} is not used: nobody listens there" in capsys.readouterr().err

    def refuse(*_: object, **__: object) -> None:
        raise client.ForeignSocket("user 7")

    monkeypatch.setattr(client, "ask", refuse)
    with pytest.raises(OstiaryError) as raised:
        relay.ask("program", protocol.GET)
    assert raised.value.code == "registry-socket-not-ours"
    monkeypatch.setenv("OSTIARY_REGISTRY_SOCKET", "none")
    assert relay.ask("program", protocol.GET) is None


@pytest.mark.parametrize("variable", ["OSTIARY_REGISTRY_SWITCHES", "XDG_CONFIG_HOME"])
def test_the_relay_asks_no_daemon_that_may_not_know_this_users_switches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    file = tmp_path / "conf" / "ostiary" / "registry-disabled"
    file.parent.mkdir(parents=True)
    for name in ("OSTIARY_REGISTRY_PROVIDERS", "OSTIARY_REGISTRY_SWITCHES", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OSTIARY_REGISTRY_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv(variable, str(file if variable == "OSTIARY_REGISTRY_SWITCHES" else tmp_path / "conf"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(client, "ask", lambda *_, **__: (7, b"", b""))
    assert relay.ask("program", protocol.GET) == 7, "nothing was switched"
    file.write_text("*\n")
    assert relay.ask("program", protocol.GET) is None
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "conf").rename(tmp_path / ".config")
    monkeypatch.setenv(variable, os.environ[variable].replace("/conf", "/.config"))
    assert relay.ask("program", protocol.GET) == 7, "the file that the daemon knows"
