"""Start the gateway: bind its addresses, and serve in this process or with several workers.

    SIGTERM, SIGINT    stop: accept nothing more, finish in-flight requests      a second one: stop immediately
    SIGHUP             reload the configuration; an invalid one changes nothing

systemd is notified of start, reload and stop if it requests that (`service_manager`).
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
    """Serve until a signal requests a stop. Raises `ConfigurationError` if an address cannot be bound.

    *on_listening* is called when all addresses are bound, *on_serving* when every worker accepts requests. Files that a
    worker creates at its start, such as that of the token store, exist from then on.
    """
    # Blocked until they are handled: from here on another process may know one of our addresses and send a signal.
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
    """Run as one of several workers, with sockets that the supervisor opened.

    *listeners* are those of `Listeners.filenos`, as ``NAME=NUMBER``.
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
    """Return the listening socket. An error names the setting, even if the address is the default."""
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
