"""The exec plugin ``ostiary connect token NAME``: requests a token from the running proxy and prints it.

    kubectl -> connect token -> the proxy's Unix socket -> ExecCredential with a token for 127.0.0.1, unchanged
                   |
                   +-> no response, or an error: `ostiary_gateway.local_proxy.start` starts the proxy or reports it

Like `ostiary.cli.cached_token`, it imports only modules of the interpreter, because the user waits. The slower commands
call `ask`, too.

A connection carries one request, which is a line, and then the response until the server closes it:

    token VERSION NAME    ->  ok\\n, and the ExecCredential; or error\\n, and a JSON object with the parts of the error
    check NAME, status, stop, forget NAME    ->  the same with a JSON object
"""

import posix
import sys
import time

from ostiary.cli.cached_token import asked_version, print_answer, state_folder

OK, ERROR = b"ok\n", b"error\n"
# An exec plugin behind the proxy may take a minute.
SECONDS = 90.0
LARGEST_REPLY = 1024 * 1024
LONGEST_NAME = 200
# Peer credentials of a Unix socket: level, option, size, and the position of the user id. Python has no constant for
# LOCAL_PEERCRED (macOS, FreeBSD): level 0, option 1, same position.
_PEER_SIZE, _USER = 12, slice(4, 8)
_LOCAL_PEERCRED = (0, 1, 76)

# The error response, so that the slower path does not request, and perhaps run a plugin, a second time.
failure: bytes | None = None


class SocketNotOurs(Exception):
    """The process at the socket belongs to another user."""


def print_token(argv: list[str]) -> bool:
    """Print the token for the command line *argv*. False if the running proxy did not return one."""
    global failure
    version = asked_version()
    if len(argv) != 1 or argv[0].startswith("-") or not is_name(argv[0]) or version not in (b"v1", b"v1beta1"):
        return False
    try:
        reply = ask(b"token %s %s" % (version, argv[0].encode()))
    except (OSError, ValueError, SocketNotOurs):
        return False
    if reply.startswith(OK):
        return print_answer(reply[len(OK) :])
    failure = reply
    return False


def is_name(name: str) -> bool:
    """Whether *name* fits into a line of the protocol."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable()


def ask(line: bytes, seconds: float = SECONDS) -> bytes:
    """Send one request and return the whole response. Raises `OSError` without a response, and `SocketNotOurs`."""
    import _socket

    folder = runtime_folder()
    if folder is None:
        raise FileNotFoundError("there is no home directory")
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    deadline = time.monotonic() + seconds
    try:
        connection.settimeout(seconds)
        connection.connect(socket_path(folder))
        if peer_user(connection) != posix.geteuid():
            # Check before sending anything: even the name of a context is private.
            raise SocketNotOurs
        connection.send(line + b"\n")
        return _read_all(connection, deadline)
    finally:
        connection.close()


def _read_all(connection, deadline: float) -> bytes:  # type: ignore[no-untyped-def]  # naming it would import `socket`
    reply = b""
    while part := connection.recv(65536):
        reply += part
        left = deadline - time.monotonic()
        if len(reply) > LARGEST_REPLY or left <= 0:
            raise OSError("the reply is too long, or took too long")
        connection.settimeout(left)
    if not reply.startswith((OK, ERROR)):
        # The process ended before it finished the response.
        raise ConnectionResetError("the reply is incomplete")
    return reply


def peer_user(connection) -> int:  # type: ignore[no-untyped-def]
    """Return the user id of the process at the other end of a Unix socket, as reported by the kernel."""
    import _socket

    option = getattr(_socket, "SO_PEERCRED", None)
    where = _LOCAL_PEERCRED if option is None else (_socket.SOL_SOCKET, option, _PEER_SIZE)
    return int.from_bytes(connection.getsockopt(*where)[_USER], sys.byteorder)


def runtime_folder(environ: dict[bytes, bytes] = posix.environ) -> str | None:
    """Return the folder of the socket, one per user and machine. None without a home directory.

    /run/user/UID is used even if XDG_RUNTIME_DIR is not set, as in a cron job: otherwise there would be a second proxy.
    Without that folder, it is in the state folder and has the machine's name, because several machines may share that.
    """
    base = environ.get(b"XDG_RUNTIME_DIR", b"")
    if not base.startswith(b"/"):
        base = b"/run/user/%d" % posix.geteuid()
        if not _is_folder_of_ours(base):
            state = state_folder(environ)
            return None if state is None else f"{state}/run-{posix.uname().nodename}"
    try:
        return f"{base.decode()}/ostiary"
    except UnicodeDecodeError:
        return None


def _is_folder_of_ours(path: bytes) -> bool:
    try:
        status = posix.stat(path)
    except OSError:
        return False
    return status.st_mode & 0o170000 == 0o040000 and status.st_uid == posix.geteuid()


def socket_path(folder: str) -> str:
    return f"{folder}/connect.sock"
