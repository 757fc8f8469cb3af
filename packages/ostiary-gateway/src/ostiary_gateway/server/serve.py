"""Starts the gateway: binds its addresses, and serves in this process or with several workers.

    SIGTERM, SIGINT    stop: accept nothing more, finish what was begun      a second one: stop now
    SIGHUP             read the configuration again; a broken one changes nothing

systemd is told of start, reload and stop, if it asks for that (`service_manager`).

Called by ``ostiary-gateway serve``. With one worker everything happens in this process. With more, `supervisor` starts
a process for each.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager

from ostiary.core.service_manager import ServiceManager
from ostiary.errors import ConfigurationError
from ostiary_gateway.config.gateway_config import GatewayConfig
from ostiary_gateway.config.values import Address
from ostiary_gateway.server.config_source import ConfigSource
from ostiary_gateway.server.haproxy_listener import bind_agents, close_sockets
from ostiary_gateway.server.listener import Listeners, Sockets, bind
from ostiary_gateway.server.signals import SIGNALS

# Called with the address for health and metrics, and the one for gRPC, if any.
OnListening = Callable[[str, str | None], None]
# Called with the address for requests.
OnServing = Callable[[str], None]


def run(
    source: ConfigSource,
    config: GatewayConfig,
    *,
    on_listening: OnListening = lambda health, grpc: None,
    on_serving: OnServing = lambda address: None,
) -> None:
    """Serve until a signal says stop. Raises `ConfigurationError` if an address cannot be had.

    *on_listening* is called when all addresses are bound, *on_serving* when every worker answers requests: who is told
    so may use what a worker makes when it starts, such as the file of the token store.
    """
    # A supervisor does not import these, and each of its workers would fail.
    # Blocked until they are handled: from here on somebody may know an address of ours and send one.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    service = ServiceManager.from_environment()
    with ExitStack() as stack:
        listener = stack.enter_context(_listen_on(config.listen.address, "listen"))
        health = stack.enter_context(_listen_on(config.health, "health"))
        grpc = None
        if config.listen.grpc is not None:
            grpc = stack.enter_context(_listen_on(config.listen.grpc.address, "listen.grpc"))
        on_listening(_address(health), None if grpc is None else _address(grpc))
        address = _address(listener)
        service.on_started = lambda: on_serving(address)
        service.status = f"serving on {address}"
        listeners = Listeners(listener, grpc, stack.enter_context(_agents(config)))
        # A supervisor does not import the application, which only its workers need.
        if config.listen.workers == 1:
            from ostiary_gateway.server.worker_process import serve_alone

            _run_loop(serve_alone(source, config, listeners, health, service))
        else:
            from ostiary_gateway.server.supervisor import Supervisor

            _run_loop(Supervisor(source, config, listeners, health, service).run())


def run_worker(
    source: ConfigSource,
    *,
    listeners: Iterable[str],
    channel_fd: int,
    on_config: Callable[[GatewayConfig], None],
) -> None:
    """Be one of several workers: what it is given was opened by the process that started this one.

    *listeners* are those of `Listeners.filenos`, as words.
    """
    from ostiary_gateway.server.worker_process import serve_for_supervisor

    with closing(Listeners.from_words(listeners)) as shared, socket.socket(fileno=channel_fd) as channel:
        _run_loop(serve_for_supervisor(source, shared, channel, on_config))


@contextmanager
def _agents(config: GatewayConfig) -> Iterator[Sockets]:
    sockets = bind_agents(config)
    try:
        yield sockets
    finally:
        close_sockets(sockets)


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


_PURPOSES = {"listen": "requests", "health": "health and metrics", "listen.grpc": "gRPC"}


def _listen_on(address: Address, section: str) -> socket.socket:
    """The listening socket. An error names the setting, even if the address is the default."""
    try:
        return bind(address)
    except ConfigurationError as error:
        failure = error
    what = _PURPOSES[section]
    raise ConfigurationError(
        f"the gateway cannot listen on {address} for {what}",
        cause=failure.cause,
        where=f"{section}.address",
        hint=f"{failure.hint}: {section}: {{address: 127.0.0.1:PORT}}",
        code=failure.code,
    )
