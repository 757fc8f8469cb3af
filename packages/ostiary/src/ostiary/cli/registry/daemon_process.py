"""The process of ``ostiary registry serve``: its listeners, its signals, and its lifetime."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from ostiary.cli.arguments import UsageError
from ostiary.cli.registry.options import config_and_bin_dir
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.process import RunLimits
from ostiary.core.provider_switches import Switches
from ostiary.core.service_manager import ServiceManager
from ostiary.core.text import printable
from ostiary.core.unix_socket import listen_privately, passed_socket
from ostiary.errors import ConfigurationError
from ostiary.registry.daemon.engine import CredentialDaemon
from ostiary.registry.daemon.server import BACKLOG, DaemonTls, HttpApi, SocketServer
from ostiary.registry.keyring import Keyring
from ostiary.registry.user_config import NO_SOCKET, search_path, socket_path

IDLE_CHECK_SECONDS = 1.0
log = logging.getLogger("ostiary.registry")


@dataclass(frozen=True, slots=True)
class _DaemonListeners:
    unix: socket.socket | None
    http: HttpApi | None
    told: str


def run_daemon(arguments: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr, force=True)
    # No core dumps: the memory contains passwords.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limits = RunLimits(seconds=arguments.timeout)
    daemon = CredentialDaemon(switches=Switches(), search_path=search_path(), limits=limits)
    with ExitStack() as stack:
        listeners = _listeners(arguments, daemon, stack)
        asyncio.run(_run(daemon, listeners, idle=arguments.idle))
    return 0


async def _run(daemon: CredentialDaemon, listeners: _DaemonListeners, *, idle: float | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, daemon.reload)
    manager = ServiceManager.from_environment()
    manager.status = listeners.told
    server = None if listeners.unix is None else SocketServer(daemon, listeners.unix)
    if server is not None:
        await server.start()
    if listeners.http is not None:
        listeners.http.start()
    log.info("%s", listeners.told)
    manager.tell_started()
    while not stop.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), None if idle is None else min(idle, IDLE_CHECK_SECONDS))
        if idle is not None and _is_idle(daemon, server, idle):
            log.info("nobody has asked for %g s", idle)
            stop.set()
    if listeners.http is not None:
        listeners.http.close()
    if server is not None:
        await server.close()


def _is_idle(daemon: CredentialDaemon, server: SocketServer | None, idle: float) -> bool:
    is_quiet = SYSTEM_CLOCK.monotonic() - daemon.asked_at >= idle
    # Do not exit while a response is cached: it would be fetched again, and the purpose of the daemon is one run per
    # lifetime.
    return is_quiet and not (server is not None and server.connections) and daemon.kept_answers() == 0


def _listeners(arguments: argparse.Namespace, daemon: CredentialDaemon, stack: ExitStack) -> _DaemonListeners:
    unix, told = _unix_listener(arguments, stack)
    if arguments.listen is None:
        for option in ("tls_cert", "tls_key", "client_ca", "client_name", "config", "bin_dir"):
            if getattr(arguments, option):
                raise UsageError(f"--{option.replace('_', '-')} needs --listen", hint="programs name their own files")
        if unix is None:
            raise UsageError("there is nothing to listen on", hint="leave --socket out, or add --listen ADDRESS:PORT")
        return _DaemonListeners(unix, None, told)
    http, address = _http_api(arguments, daemon, stack)
    return _DaemonListeners(unix, http, f"{told} and {address}" if told else f"listening on {address}")


def _unix_listener(arguments: argparse.Namespace, stack: ExitStack) -> tuple[socket.socket | None, str]:
    try:
        passed = passed_socket()
        if passed is not None:
            return stack.enter_context(passed), f"listening on {printable(str(passed.getsockname()))}, from systemd"
        path = arguments.socket or socket_path()
        if arguments.socket == NO_SOCKET or (path is None and arguments.listen is not None):
            return None, ""
        if path is None:
            raise UsageError("there is no place for the socket", hint="name one: --socket PATH, or set XDG_RUNTIME_DIR")
        path = os.path.abspath(path)
        listener = stack.enter_context(listen_privately(path, backlog=BACKLOG))
        stack.callback(_remove, path, os.stat(path).st_ino)
    except OSError as error:
        raise ConfigurationError(
            "the credential daemon cannot listen",
            cause=error.strerror or str(error),
            where=printable(str(arguments.socket or socket_path() or "")),
            code="registry-socket-unusable",
        ) from None
    return listener, f"listening on {printable(path)}"


def _remove(path: str, inode: int) -> None:
    """Remove the socket, unless another daemon has replaced it in the meantime."""
    with suppress(OSError):
        if os.lstat(path).st_ino == inode:
            os.unlink(path)


def _http_api(arguments: argparse.Namespace, daemon: CredentialDaemon, stack: ExitStack) -> tuple[HttpApi, str]:
    for option in ("tls_cert", "tls_key", "client_ca", "client_name"):
        if not getattr(arguments, option):
            # Closed by default: a server of secrets must not accept every client.
            raise UsageError(f"--listen needs --{option.replace('_', '-')}")
    path, bin_dir = config_and_bin_dir(arguments, search_path=search_path())
    if path is None:
        raise UsageError("--listen needs a provider configuration", hint="name one: --config FILE --bin-dir DIR")
    path, bin_dir = os.path.abspath(path), os.path.abspath(bin_dir)

    def keyring() -> Keyring:
        return daemon.keyring(path, bin_dir)

    daemon.config(path, bin_dir)
    tls = DaemonTls(arguments.tls_cert, arguments.tls_key, arguments.client_ca)
    host, _, port = arguments.listen.rpartition(":")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = stack.enter_context(socket.create_server((host.strip("[]"), int(port)), family=family, backlog=128))
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigurationError(
            "the credential daemon cannot listen",
            cause=getattr(error, "strerror", None) or "it is not ADDRESS:PORT",
            where=printable(arguments.listen),
            code="registry-socket-unusable",
        ) from None
    name = ":".join(str(part) for part in listener.getsockname()[:2])
    return HttpApi(listener, context=tls.context, keyring=keyring, clients=arguments.client_name), name
