"""Query the proxy, and start it first if it is not running; only once if several clients do so concurrently.

    query -> response       done
          -> no process     take the start lock -> query again -> start the process -> query

The process holds a lock of its own as long as it lives (`local_proxy.process`). Under that lock it replaces a stale
socket.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

from ostiary.cli import quick_token
from ostiary.cli.login.sessions import LOOK_AGAIN_SECONDS, hold_lock
from ostiary.cli.quick_token import ERROR, OK, SocketNotOurs, ask, socket_path
from ostiary.core.process.start import start_detached
from ostiary.errors import CODES, ConfigurationError, CredentialError, OstiaryError
from ostiary.wire.client_authentication import INFO_VARIABLE, V1, decode_info
from ostiary_gateway.local_proxy.runtime import ensured_folder, foreign_socket

START_SECONDS = 30.0
_SERVE = "from ostiary_gateway.local_proxy.process import main; main()"
_TAKEN = b"taken\n"
_READY = b"ready\n"


def ask_running(line: str) -> bytes | None:
    """Return the proxy's response, or None if it is not running. Raises the `OstiaryError` in the response."""
    folder = ensured_folder()
    try:
        return content_of(ask(line.encode()))
    except SocketNotOurs:
        raise foreign_socket(socket_path(folder), "the process that answers there is another user's") from None
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        return None
    except OSError as error:
        # The socket is the user's but unusable, or the process does not respond.
        raise _unavailable(error.strerror or str(error), socket_path(folder)) from None


def ask_or_start(line: str) -> bytes:
    """Like `ask_running`, but starts the proxy if necessary."""
    reply = ask_running(line)
    if reply is not None:
        return reply
    deadline = time.monotonic() + START_SECONDS
    with hold_lock(os.path.join(ensured_folder(), "connect.start"), START_SECONDS) as ours:
        while ours and time.monotonic() < deadline:
            reply = ask_running(line)
            if reply is not None:
                return reply
            if not _start(deadline):
                # A process that is ending still holds the lock.
                time.sleep(LOOK_AGAIN_SECONDS)
    raise _unavailable(f"it has not started within {START_SECONDS:.0f} seconds", ensured_folder())


def content_of(reply: bytes) -> bytes:
    """Return the response without its status line. Raises the error that it contains."""
    if reply.startswith(OK):
        return reply[len(OK) :]
    raise _error_of(reply.removeprefix(ERROR))


def _error_of(content: bytes) -> OstiaryError:
    try:
        parts = json.loads(content)
        summary, code = str(parts.pop("summary")), parts.pop("code", "")
    except (ValueError, KeyError, AttributeError):
        return _unavailable("its reply cannot be read", None)
    known = {name: str(parts[name]) for name in ("cause", "where", "hint") if name in parts}
    return CredentialError(summary, **known, code=code if code in CODES else "connect-unavailable")


def _start(deadline: float) -> bool:
    """Start the process. Returns False if another one is running. Raises `OstiaryError` if it cannot be started."""
    import httptools  # noqa: F401  # The background process could not report a missing module.

    reading, writing = os.pipe()
    try:
        try:
            # -P: do not import modules from the user's working directory.
            command = [sys.executable, "-P", "-c", _SERVE, str(writing)]
            start_detached(command, keep_open=(writing,), without=(INFO_VARIABLE,))
        finally:
            os.close(writing)
        said = _read(reading, deadline)
    finally:
        os.close(reading)
    if said in (_READY, _TAKEN):
        return said == _READY
    if said.startswith(b"{"):
        raise _error_of(said)
    raise _unavailable("the process ended at once", None)


def _read(descriptor: int, deadline: float) -> bytes:
    """Read the status message of the new process until it closes the pipe."""
    said = b""
    while select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(descriptor, 4096)
        if not part:
            break
        said += part
    return said


def _unavailable(cause: str, where: str | None) -> ConfigurationError:
    return ConfigurationError(
        "the proxy of ostiary connect does not answer",
        cause=cause,
        where=where,
        hint="ostiary connect --stop ends it; its log is connect.log beside your sessions",
        code="connect-unavailable",
    )


# ``ostiary connect token NAME`` when querying the running proxy has failed: start it, or report the error. Stdout is
# for the credential only.

_SPOKEN = ("v1", "v1beta1")


def print_token(name: str) -> int:
    """Print the credential. Raises `OstiaryError`, whose text is all that a kubectl user sees."""
    if quick_token.failure is not None:
        content_of(quick_token.failure)
    text = os.environ.get(INFO_VARIABLE)
    version = (decode_info(text).api_version if text else V1).rpartition("/")[2]
    if version not in _SPOKEN:
        raise ConfigurationError(
            "the client asks for a version of the exec API that is not spoken here",
            cause=f"it asks for {version}",
            hint="set apiVersion: client.authentication.k8s.io/v1 in the kubeconfig",
            code="exec-info-missing",
        )
    if not quick_token.is_name(name):
        raise ConfigurationError("this cannot be the name of a context", code="connect-context-unknown")
    sys.stdout.write(ask_or_start(f"token {version} {name}").decode())
    return 0
