"""Relays a program's request to the daemon and writes the response to stdout and stderr.

Used by the docker helper and the kubelet's provider before they do anything themselves. Has the same import
restrictions as `client`.
"""

import os
import sys

from ostiary.registry.user_config import SOCKET_VARIABLE, socket_path

# The kubelet kills its provider after a minute, which would hide the reason.
PROVIDE_SECONDS = 50.0


def absolute(path: str) -> str:
    """Return *path* as an absolute path, because the daemon has another working directory."""
    return os.path.abspath(path)


def ask(program: str, verb: bytes, *texts: str | bytes, seconds: float | None = None) -> int | None:
    """Return the daemon's exit code; None if the program must do the lookup itself.

    Raises `ConfigurationError` if another user's process listens on the daemon's socket, and `CredentialError` if the
    daemon received the request and has not responded in time.
    """
    path = socket_path()
    if path is None or os.environ.get("OSTIARY_REGISTRY_PROVIDERS") or _has_own_switches():
        # The daemon has another environment, which must not override this one.
        return None
    if not os.environ.get(SOCKET_VARIABLE) and not os.path.lexists(path):
        return None

    from ostiary.registry.daemon import client

    data = [os.fsencode(text) if isinstance(text, str) else text for text in texts]
    limit = client.ANSWER_SECONDS if seconds is None else seconds
    try:
        code, stdout, stderr = client.ask(path, verb, *data, seconds=limit)
    except client.NoAnswer as error:
        if error.reason or os.environ.get(SOCKET_VARIABLE):
            reason = error.reason or "nobody listens there"
            sys.stderr.write(f"{program}: the daemon at {path} is not used: {reason}\n")
        return None
    except (client.ForeignSocket, client.Overdue) as error:
        from ostiary.registry.daemon.client_errors import error_for

        raise error_for(path, error) from None
    _write(2, stderr)
    _write(1, stdout)
    return code


def _has_own_switches() -> bool:
    """Return whether a switch file exists that is named only by this environment: the daemon may not use it."""
    path = os.environ.get("OSTIARY_REGISTRY_SWITCHES")
    folder = os.environ.get("XDG_CONFIG_HOME")
    if not path and folder and os.geteuid() != 0:
        path = os.path.join(folder, "ostiary", "registry-disabled")
    if not path or os.path.abspath(path) == os.path.expanduser("~/.config/ostiary/registry-disabled"):
        return False
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        # The program reports the error.
        return True
    return True


def leave_at_once(code: int) -> None:
    """Exit without cleanup: finalizing the interpreter would take longer than the call of the daemon did."""
    os._exit(code)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
