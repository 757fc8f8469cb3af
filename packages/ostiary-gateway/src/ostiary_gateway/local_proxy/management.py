"""Create, show and remove the contexts of ``ostiary connect``."""

from __future__ import annotations

import json
import os
import secrets
import socket
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ostiary import kubeconfig as kubeconfigs
from ostiary.cli.kubeconfig_file import kubeconfig_files, merge_into_file, tell_merged
from ostiary.cli.quick_token import is_name
from ostiary.core.clock import SYSTEM_CLOCK
from ostiary.core.yaml.edit import dump
from ostiary.errors import ConfigurationError, OstiaryError
from ostiary.wire.kubeconfig import connect_kubeconfig
from ostiary_gateway.local_proxy import record as records
from ostiary_gateway.local_proxy.certificate import ADDRESS, make_certificate
from ostiary_gateway.local_proxy.record import DEFAULT_IDLE_SECONDS, ConnectRecord
from ostiary_gateway.local_proxy.start import ask_or_start, ask_running
from ostiary_gateway.local_proxy.supported_contexts import check_connectable

# Below the ephemeral port range, so that an outgoing connection does not take the port.
FIRST_PORT, LAST_PORT = 20_000, 32_000
ATTEMPTS = 200
SUFFIX = "@ostiary"


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Command-line options of a new context. With *starts* the context is tested immediately, in the background."""

    kubeconfig: str | None = None
    name: str | None = None
    port: int | None = None
    idle_seconds: float | None = None
    merges: bool = True
    force: bool = False
    starts: bool = True


@dataclass(frozen=True, slots=True)
class MadeContext:
    """A new context. `text` is its kubeconfig, and `described` the JSON output."""

    text: str
    described: dict[str, object]


def make(context: str, options: ContextOptions) -> MadeContext:
    """Create or update the context for *context*. Raises `OstiaryError`, and then changes nothing."""
    paths = kubeconfig_files() if options.kubeconfig is None else [os.path.abspath(options.kubeconfig)]
    namespace = _checked_namespace(context, paths)
    record, old = _record(context, os.pathsep.join(paths), options)
    records.save(record)
    try:
        if options.starts:
            record = _try(record, may_move=options.port is None)
        kubeconfig = connect_kubeconfig(
            record.server, name=record.name, authorities_pem=record.certificate.authority_pem, namespace=namespace
        )
        path = ""
        if options.merges:
            merged = merge_into_file(kubeconfig, force=options.force, may_move=old is not None, paths=paths)
            path = merged.path
            tell_merged(kubeconfig, merged)
    except OstiaryError:
        if old is None:
            records.remove(record.name)
        else:
            records.save(old)
        raise
    described: dict[str, object] = {"name": record.name, "context": context, "server": record.server}
    return MadeContext(dump(kubeconfig), {**described, "kubeconfig": path or None, "expires": _expires(record)})


def _checked_namespace(context: str, paths: list[str]) -> str | None:
    """Return the namespace of the context. Raises `ConfigurationError` if the proxy cannot serve the context."""
    config = kubeconfigs.load(environ={"KUBECONFIG": os.pathsep.join(paths)})
    selection = kubeconfigs.select(config, context=context)
    check_connectable(selection)
    return config.contexts[context].namespace or None


def _record(context: str, kubeconfig: str, options: ContextOptions) -> tuple[ConnectRecord, ConnectRecord | None]:
    """Return the record to write, and the existing one."""
    name = options.name or context + SUFFIX
    if not is_name(name):
        raise ConfigurationError(
            "this cannot be the name of a context of ostiary connect",
            cause="it is too long, or has characters that cannot be printed",
            hint="choose another one with --name",
            code="connect-context-unknown",
        )
    old = records.load_if_known(name)
    if old is not None and (old.context, old.kubeconfig) != (context, kubeconfig) and not options.force:
        raise ConfigurationError(
            f"the name {name!r} is taken",
            cause=f"it is for context {old.context!r} of {old.kubeconfig}",
            hint="choose another name with --name, or replace it with --force",
            code="kubeconfig-name-taken",
        )
    keeps = old is not None and not old.certificate.should_be_renewed(SYSTEM_CLOCK.now())
    record = ConnectRecord(
        name=name,
        context=context,
        kubeconfig=kubeconfig,
        port=options.port or (old.port if old is not None else free_port()),
        certificate=old.certificate if old is not None and keeps else make_certificate(SYSTEM_CLOCK),
        idle_seconds=options.idle_seconds or (old.idle_seconds if old is not None else DEFAULT_IDLE_SECONDS),
    )
    return record, old


def _try(record: ConnectRecord, *, may_move: bool) -> ConnectRecord:
    """Let the proxy serve the context, with the credential. Move to another port if the port was taken meanwhile."""
    try:
        ask_or_start(f"check {record.name}")
    except OstiaryError as error:
        if error.code != "connect-port-taken" or not may_move:
            raise
    else:
        return record
    record = replace(record, port=free_port())
    records.save(record)
    ask_or_start(f"check {record.name}")
    return record


def free_port() -> int:
    """Return a port that nothing listens on and no other context uses."""
    known = {record.port for record in records.all_records()}
    for _ in range(ATTEMPTS):
        port = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT)
        if port not in known and _is_free(port):
            return port
    raise ConfigurationError(
        "no free port was found on 127.0.0.1", hint="choose one with --port", code="connect-port-taken"
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((ADDRESS, port))
        except OSError:
            return False
    return True


def status() -> dict[str, object]:
    """Return the status of the proxy and of all contexts, including those that it does not currently serve."""
    reply = ask_running("status")
    live: dict[str, object] = {"running": False} if reply is None else json.loads(reply)
    served = live.get("contexts", [])
    assert isinstance(served, list)
    by_name = {each["name"]: each for each in served}
    contexts = [
        {
            "name": record.name,
            "context": record.context,
            "server": record.server,
            **by_name.get(record.name, {}),
            "expires": _expires(record),
        }
        for record in records.all_records()
    ]
    return {**live, "contexts": contexts}


def stop() -> bool:
    """Stop the proxy. Returns False if it is not running."""
    return ask_running("stop") is not None


def remove(names: list[str]) -> None:
    for name in names:
        records.load(name)
    for name in names:
        records.remove(name)
        ask_running(f"forget {name}")


def serve_in_foreground() -> bool:
    """Serve until Ctrl-C. Returns False if another process already serves."""
    from ostiary_gateway.local_proxy.log_file import log_to_terminal
    from ostiary_gateway.local_proxy.process import serve_in_foreground as serve

    log_to_terminal()
    return serve()


def _expires(record: ConnectRecord) -> str:
    return datetime.fromtimestamp(record.certificate.expires_at, UTC).date().isoformat()
