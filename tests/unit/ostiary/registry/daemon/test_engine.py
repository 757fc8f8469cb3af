"""The daemon without its process: what it keeps, what is bounded, and what it says to those who ask badly."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ostiary.core.provider_switches import Switches
from ostiary.core.unix_socket import listen_privately
from ostiary.registry.daemon import protocol
from ostiary.registry.daemon import server as socket_server
from ostiary.registry.daemon.engine import MOST_CONFIGS, CredentialDaemon
from ostiary.registry.daemon.server import SocketServer
from ostiary.testing import FakeClock
from tests.support.registry_daemon import DaemonSite

CANARY = "c4n4ry-c4n4ry-c4n4ry"


@pytest.fixture
def site(tmp_path: Path) -> DaemonSite:
    site = DaemonSite(tmp_path)
    site.provider.answer({"*.registry.io": ("robot", CANARY)}, duration="1h")
    return site


@pytest.fixture
def daemon(site: DaemonSite) -> CredentialDaemon:
    return CredentialDaemon(switches=Switches([str(site.switches)], variable=""))


def ask(daemon: CredentialDaemon, verb: bytes, *texts: object) -> tuple[int, str, str]:
    data = [text if isinstance(text, bytes) else str(text).encode() for text in (*texts, "", "", "")[:3]]
    answer = protocol.read_answer(asyncio.run(daemon.answer(verb, data)))
    assert answer is not None
    return answer[0], answer[1].decode(), answer[2].decode()


def get(daemon: CredentialDaemon, site: DaemonSite, server: str = "a.registry.io") -> tuple[int, str, str]:
    return ask(daemon, protocol.GET, site.config, site.provider.bin_dir, server)


def test_a_configuration_that_cannot_be_used_is_an_error_until_it_can(
    daemon: CredentialDaemon, site: DaemonSite
) -> None:
    text = site.config.read_text()
    site.config.unlink()
    code, _, stderr = get(daemon, site)
    assert (code, "config" in stderr) == (1, True)
    site.config.write_text(text)
    assert json.loads(get(daemon, site)[1])["Secret"] == CANARY


def test_providers_are_found_on_path_if_the_daemon_was_told_so(
    site: DaemonSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{site.provider.bin_dir}:{os.environ['PATH']}")
    switches = Switches([str(site.switches)], variable="")
    for search_path, code in ((True, 0), (False, 1)):
        daemon = CredentialDaemon(switches=switches, search_path=search_path)
        assert ask(daemon, protocol.GET, site.config, tmp_path / "empty", "a.registry.io")[0] == code


@pytest.mark.parametrize("server", ["build-server", "a.registry.io:port/x y", "\udcff"])
def test_a_server_that_is_none_gets_nothing(daemon: CredentialDaemon, site: DaemonSite, server: str) -> None:
    data = server.encode("utf-8", "surrogateescape")
    assert ask(daemon, protocol.GET, site.config, site.provider.bin_dir, data)[0] == 1
    assert site.provider.runs == 0


def test_a_question_counts_whichever_way_it_comes(site: DaemonSite) -> None:
    clock = FakeClock()
    daemon = CredentialDaemon(switches=Switches([str(site.switches)], variable=""), clock=clock)
    clock.advance(minutes=5)
    daemon.config(str(site.config), str(site.provider.bin_dir))
    assert (daemon.questions, clock.monotonic() - daemon.asked_at) == (0, 300)
    daemon.keyring(str(site.config), str(site.provider.bin_dir))
    assert (daemon.questions, clock.monotonic() - daemon.asked_at) == (1, 0)


def test_only_so_many_configurations_are_kept(daemon: CredentialDaemon, site: DaemonSite) -> None:
    for number in range(MOST_CONFIGS + 3):
        path = site.folder / f"config-{number}.json"
        path.write_text(site.config.read_text())
        assert ask(daemon, protocol.GET, path, site.provider.bin_dir, "a.registry.io")[0] == 0
    status = daemon.status()
    assert len(status["configs"]) == MOST_CONFIGS
    assert status["configs"][-1]["path"] == str(path)
    assert daemon.kept_answers() == MOST_CONFIGS
    assert CANARY not in json.dumps(status)


@pytest.mark.parametrize("stdin", [b"", b"{", b"[]", b'{"kind": "CredentialProviderRequest"}', b"\xff"])
def test_a_request_of_the_kubelet_that_is_none_is_one_error(
    daemon: CredentialDaemon, site: DaemonSite, stdin: bytes
) -> None:
    code, stdout, stderr = ask(daemon, protocol.PROVIDE, site.folder / "absent", "name", stdin)
    assert (code, stdout) == (1, "")
    assert "credential-provider-request-invalid" in stderr


def test_reload_can_forget_everything(daemon: CredentialDaemon, site: DaemonSite) -> None:
    get(daemon, site)
    assert json.loads(ask(daemon, protocol.RELOAD)[1])["keptAnswers"] == 1
    assert json.loads(ask(daemon, protocol.RELOAD, "drop")[1])["keptAnswers"] == 0
    get(daemon, site)
    assert site.provider.runs == 2


# --- the socket ---

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bytes]]


def talk(daemon: CredentialDaemon, site: DaemonSite, conversation: Talk) -> bytes:
    async def run() -> bytes:
        server = SocketServer(daemon, listen_privately(str(site.socket), backlog=8))
        await server.start()
        reader, writer = await asyncio.open_unix_connection(str(site.socket))
        try:
            return await asyncio.wait_for(conversation(reader, writer), 30)
        finally:
            writer.close()
            await server.close()

    return asyncio.run(run())


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\n", b"ostiary-registry 9 status 0 0 0\n"])
def test_what_it_does_not_know_it_says_so(daemon: CredentialDaemon, site: DaemonSite, said: bytes) -> None:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(said)
        return await reader.read()

    assert talk(daemon, site, conversation).startswith(protocol.MAGIC + b"cannot ")


def test_a_connection_has_one_question_whatever_else_it_sends(daemon: CredentialDaemon, site: DaemonSite) -> None:
    """So no connection keeps the daemon from the others."""

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(protocol.question(protocol.STATUS) * 1000)
        # It closes with most of that unread.
        received = bytearray()
        with suppress(ConnectionError):
            while more := await reader.read(65536):
                received += more
        return bytes(received)

    assert talk(daemon, site, conversation).count(protocol.MAGIC + b"answer ") <= 1


def test_half_a_question_is_not_waited_for_longer_than_a_moment(
    daemon: CredentialDaemon, site: DaemonSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "QUESTION_SECONDS", 0.05)

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"ostiary-registry 1 docker-get 5 5 5\nab")
        return await reader.read()

    assert talk(daemon, site, conversation) == b""


def test_too_many_at_once_are_told_so_until_others_are_done(
    daemon: CredentialDaemon, site: DaemonSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_server, "MOST_SOCKET_CONNECTIONS", 1)

    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        second, _ = await asyncio.open_unix_connection(str(site.socket))
        assert b"too many ask at once" in await second.read()
        writer.write(protocol.question(protocol.STATUS, b"", b"", b""))
        assert (await reader.read()).startswith(protocol.ASKED)
        third, to_third = await asyncio.open_unix_connection(str(site.socket))
        to_third.write(protocol.question(protocol.STATUS, b"", b"", b""))
        return await third.read()

    assert talk(daemon, site, conversation).startswith(protocol.ASKED)


def test_a_program_that_went_away_leaves_its_answer_for_the_next(daemon: CredentialDaemon, site: DaemonSite) -> None:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        question = protocol.question(
            protocol.GET, str(site.config).encode(), str(site.provider.bin_dir).encode(), b"a.registry.io"
        )
        connection: socket.socket = writer.get_extra_info("socket")
        assert connection.family is socket.AF_UNIX
        writer.write(question)
        said = await reader.readexactly(len(protocol.ASKED))
        writer.transport.abort()
        return said

    assert talk(daemon, site, conversation) == protocol.ASKED
    get(daemon, site)
    assert site.provider.runs == 1
