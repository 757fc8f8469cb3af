"""Starts the gateway: binds its addresses, and serves in this process or with several workers.

    SIGTERM, SIGINT    stop: accept nothing more, finish what was begun      a second one: stop now
    SIGHUP             read the configuration again; a broken one changes nothing

systemd is told of start, reload and stop, if it asks for that (`service_manager`).

Called by ``ostiary serve``. With one worker everything happens in this process. With more, `supervisor` starts a
process for each.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine

from ostiary.errors import ConfigurationError
from ostiary.gateway.config.settings import GatewayConfig
from ostiary.gateway.config.values import Address
from ostiary.gateway.process.config_source import ConfigSource
from ostiary.gateway.process.listener import bind
from ostiary.gateway.process.service_manager import ServiceManager
from ostiary.gateway.process.signals import SIGNALS
from ostiary.gateway.process.supervisor import Supervisor
from ostiary.gateway.process.worker_process import serve_alone, serve_for_supervisor

# Called with the address where the gateway listens, and the one for health and metrics.
OnListening = Callable[[str, str], None]


def run(
    source: ConfigSource, config: GatewayConfig, *, on_listening: OnListening = lambda address, health: None
) -> None:
    """Serve until a signal says stop. Raises `ConfigurationError` if an address cannot be had."""
    # Blocked until they are handled: from here on somebody may know our address and send one.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    service = ServiceManager.from_environment()
    with _listen_on(config.listen.address, "listen") as listener, _listen_on(config.health, "health") as health:
        on_listening(_address(listener), _address(health))
        service.status = f"serving on {_address(listener)}"
        if config.listen.workers == 1:
            _run_loop(serve_alone(source, config, listener, health, service))
        else:
            _run_loop(Supervisor(source, config, listener, health, service).run())


def run_worker(
    source: ConfigSource, *, listener_fd: int, channel_fd: int, on_config: Callable[[GatewayConfig], None]
) -> None:
    """Be one of several workers: what it is given was opened by the process that started this one."""
    with socket.socket(fileno=listener_fd) as listener, socket.socket(fileno=channel_fd) as channel:
        listener.setblocking(False)
        _run_loop(serve_for_supervisor(source, listener, channel, on_config))


def _run_loop(work: Coroutine[object, object, None]) -> None:
    try:
        import uvloop
    except ImportError:  # pragma: no cover - a platform without it
        asyncio.run(work)
    else:
        uvloop.run(work)


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _listen_on(address: Address, section: str) -> socket.socket:
    """The listening socket. An error names the setting, even if the address is the default."""
    try:
        return bind(address)
    except ConfigurationError as error:
        failure = error
    what = "requests" if section == "listen" else "health and metrics"
    raise ConfigurationError(
        f"the gateway cannot listen on {address} for {what}",
        cause=failure.cause,
        where=f"{section}.address",
        hint=f"{failure.hint}: {section}: {{address: 127.0.0.1:PORT}}",
        code=failure.code,
    )
