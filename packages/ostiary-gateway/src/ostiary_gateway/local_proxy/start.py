"""Asks the proxy, and starts it first if it does not run: once, however many ask at the same moment.

    ask -> a reply          done
        -> nobody answers   take the lock of those who start -> ask again -> start the process -> ask

The process holds a lock of its own as long as it lives (`proxy.process`). A socket without a process behind it is
replaced by the next process, under that lock.
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
    """What the proxy replies; None if it does not run. Raises the `OstiaryError` that it replies with."""
    folder = ensured_folder()
    try:
        return content_of(ask(line.encode()))
    except SocketNotOurs:
        raise foreign_socket(socket_path(folder), "the process that answers there is another user's") from None
    except (FileNotFoundError, ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        return None
    except OSError as error:
        # A socket of ours that we cannot use, or a process that does not answer.
        raise _unavailable(error.strerror or str(error), socket_path(folder)) from None


def ask_or_start(line: str) -> bytes:
    """The same, after starting the proxy if need be."""
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
                # One that is ending still has its lock.
                time.sleep(LOOK_AGAIN_SECONDS)
    raise _unavailable(f"it has not started within {START_SECONDS:.0f} seconds", ensured_folder())


def content_of(reply: bytes) -> bytes:
    """The reply without its first line; raises the error that it holds."""
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
    """Start the process; False if there is another one. Raises `OstiaryError` if it cannot be started."""
    import httptools  # noqa: F401  # The process in the background could tell nobody.

    reading, writing = os.pipe()
    try:
        try:
            # -P: what lies in the folder that somebody works in is not ours.
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
    """What the new process says about itself, to the end of it."""
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


# ``ostiary connect token NAME`` when asking the running proxy was not enough: start it, or say what is wrong.
#
# Called by the command after `quick_token` has printed nothing. Stdout is for the credential alone.

_SPOKEN = ("v1", "v1beta1")


def print_token(name: str) -> int:
    """Raises `OstiaryError`; what it says is all that a person behind kubectl sees."""
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
