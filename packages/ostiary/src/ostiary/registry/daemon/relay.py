"""Hands the question of a program to the daemon, and writes the answer where the program would.

Called by the docker helper and the kubelet's provider before they do anything themselves. Imports what `client` does.
"""

import os
import sys

from ostiary.registry.user_config import SOCKET_VARIABLE, socket_path

# The kubelet ends its provider after a minute, and then nobody says why.
PROVIDE_SECONDS = 50.0


def absolute(path: str) -> str:
    """As the daemon can read it: it works in a directory of its own."""
    return os.path.abspath(path)


def ask(program: str, verb: bytes, *texts: str | bytes, seconds: float | None = None) -> int | None:
    """The exit code, when the daemon has answered; None if the program has to find the answer itself.

    Raises `ConfigurationError` if somebody else listens in the daemon's place, and `CredentialError` if the daemon was
    asked and has not answered in time.
    """
    path = socket_path()
    if path is None or os.environ.get("OSTIARY_REGISTRY_PROVIDERS") or _has_own_switches():
        # The daemon has an environment of its own, and must not overrule this one.
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
    """Whether there is a switch file that only this environment names: the daemon may not know that one."""
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
        # The program will say what is wrong with it.
        return True
    return True


def leave_at_once(code: int) -> None:
    """All is written. Taking the interpreter apart would take longer than asking the daemon has."""
    os._exit(code)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
