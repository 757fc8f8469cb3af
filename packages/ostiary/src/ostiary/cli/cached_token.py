"""The cached credential of ``ostiary get-token``: prints it while it is valid, and defines the cache files.

    kubectl -> get-token -> the token file has a valid credential -> its bytes, unchanged
                   |
                   +-> otherwise: `ostiary.cli.login.get_token`, which refreshes it, signs in, or reports an error

Runs before every kubectl command, so only modules of the interpreter are imported: `time`, `sys` and `posix`, but no
argparse, json, or even `os`. Without `posix`, `ostiary.core.platform.parent_process` provides the same names.

A cached credential may have been revoked by the gateway. Clients do not report a 401 to their exec
plugin; they only run it again although the credential has not expired. A second file therefore records the process that
requested it (`asks_again`).

A token file has one line, and then the ExecCredential in each version that a client may request:

    ostiary 1 <obtained> <renew at> <length of v1> <length of v1beta1> [step-up]

With ``step-up`` the gateway has step-up rules: a request may wait there until the user completes a step-up, and
`ostiary.cli.companion` opens the browser for that.
"""

import sys
import time

try:
    import posix

    system = posix
except ImportError:
    from ostiary.core.platform.parent_process import windows_interpreter

    system = windows_interpreter()  # type: ignore[assignment]

WITH_VALUE = ("--server", "--account", "--provider", "--ca", "--store", "--timeout", "--jwt-for")
FLAGS = ("--device", "--no-browser")
DEFAULT_ACCOUNT = "default"
LARGEST = 64 * 1024
LONGEST_NAME = 200
# The limit of file systems, less the suffix and the name of a temporary file.
LONGEST_FILE_NAME = 225
# Some clients run us for every request: query the gateway at most this often per client process.
BELIEVED_SECONDS = 30
LARGEST_LIST = 1024
# A credential from the future means that the clock was set back. Small corrections are harmless.
CLOCK_SLACK = 60

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-")
_REGULAR, _KIND, _OTHERS = 0o100000, 0o170000, 0o077
_VERSION = b'"client.authentication.k8s.io/'
_STEP_UP = b"step-up"


def print_cached(argv: list[str]) -> bool:
    """Print the cached credential for the command line *argv*. False if there is no usable one."""
    options = _options(argv)
    cached = None if options is None else _cached_answer(options)
    if options is None or cached is None or not print_answer(cached[0]):
        return False
    if cached[1]:
        from ostiary.cli.companion import begin

        begin(options["--server"], options.get("--account", DEFAULT_ACCOUNT))
    return True


def print_answer(answer: bytes) -> bool:
    while answer:
        answer = answer[system.write(1, answer) :]
    return True


def _cached_answer(options: dict[str, str]) -> tuple[bytes, bool] | None:
    """Return the ExecCredential to print, and whether the gateway has step-up rules.

    None if anything about the command line, the client or the file is unusual.
    """
    version = asked_version()
    folder = state_folder()
    if version is None or folder is None:
        return None
    name = file_name(options["--server"], options.get("--account", DEFAULT_ACCOUNT))
    kind = "token"
    if name is not None and "--jwt-for" in options:
        name, kind = jwt_file_name(name, options["--jwt-for"]), "jwt"
    data = None if name is None else private_content(f"{folder}/{name}.{kind}")
    now = time.time()
    answer = None if data is None else usable_answer(data, version, now)
    if data is None or answer is None or asks_again(f"{folder}/{name}.asked", now):
        return None
    return answer, kind == "token" and tells_of_step_up(data)


def _options(argv: list[str]) -> dict[str, str] | None:
    options: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        if option in WITH_VALUE:
            options[option] = value if equals else next(words, "")
        elif word not in FLAGS:
            return None
    return options if options.get("--server") and options.get("--account", DEFAULT_ACCOUNT) else None


def asked_version() -> bytes | None:
    """Return the version that the client requests. Does not parse the JSON: the quoted name must occur exactly once.

    Inside a JSON string its quotes would be escaped with backslashes.
    """
    info = system.environ.get(b"KUBERNETES_EXEC_INFO")
    if info is None:
        # Several clients pass no information to plugins, and accept v1.
        return b"v1"
    _, name, rest = info.partition(b'"apiVersion"')
    start = rest.lstrip(b" :")
    if not name or b'"apiVersion"' in rest or not start.startswith(_VERSION):
        return None
    return start[len(_VERSION) :].partition(b'"')[0]


# --- token file ---


def state_folder(environ: dict[bytes, bytes] = system.environ, platform: str = sys.platform) -> str | None:
    """Return the folder for credentials of this OS user, or None without a home directory.

    The user id is part of the name: with ``sudo`` and the same home, a second user would otherwise leave files that the
    first one cannot read. On Windows, profiles are per user.
    """
    try:
        if platform == "win32":
            folder = environ.get(b"LOCALAPPDATA", b"").decode()
            return f"{folder}/ostiary" if _is_windows_path(folder) else None
        state = environ.get(b"XDG_STATE_HOME", b"").decode()
        home = environ.get(b"HOME", b"").decode()
    except UnicodeDecodeError:
        return None
    # The XDG specification says to ignore a relative path.
    if not state.startswith("/"):
        if not home.startswith("/"):
            return None
        state = home + ("/Library/Application Support" if platform == "darwin" else "/.local/state")
    return f"{state}/ostiary-{system.geteuid()}"


def _is_windows_path(path: str) -> bool:
    """Whether the path is absolute: with a drive, or on another machine."""
    return path[1:3] in (":\\", ":/") or path.startswith("\\\\")


def file_name(server: str, account: str) -> str | None:
    """Return a file name for one account of one gateway, unique even if case is ignored. None if it is too long."""
    name = f"{_escape(server.rstrip('/'))}+{_escape(account)}"
    return name if len(name) <= LONGEST_NAME else None


def jwt_file_name(name: str, audience: str) -> str | None:
    """Like `file_name`, for a JWT of the account *name* for *audience*."""
    name = f"{name}+{_escape(audience)}"
    return name if len(name) <= LONGEST_FILE_NAME else None


def _escape(text: str) -> str:
    return "".join(char if char in _SAFE else f"_{ord(char):x}_" for char in text)


def private_content(path: str) -> bytes | None:
    """Return the content of a file that only we can read, else None. `login.sessions` reports the reason."""
    try:
        descriptor = system.open(path, system.O_RDONLY | system.O_NOFOLLOW | system.O_CLOEXEC | system.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        return system.read(descriptor, LARGEST) if is_private(system.fstat(descriptor)) else None
    except OSError:
        return None
    finally:
        system.close(descriptor)


def is_private(status: system.stat_result) -> bool:
    """Whether it is a regular file that we own and no other user may read or write."""
    return status.st_mode & _KIND == _REGULAR and status.st_uid == system.geteuid() and not status.st_mode & _OTHERS


def usable_answer(data: bytes, version: bytes, now: float) -> bytes | None:
    """Return the ExecCredential in *version* if the file is complete and no refresh is due yet."""
    head, _, rest = data.partition(b"\n")
    words = head.split(b" ")
    if len(words) not in (6, 7) or words[0] != b"ostiary" or words[1] != b"1":
        return None
    try:
        obtained, renew_at, first, second = map(int, words[2:6])
    except ValueError:
        return None
    whole = len(rest) == first + second and rest[:1] == b"{" and rest[-2:] == b"}\n"
    if not whole or not obtained - CLOCK_SLACK <= now < renew_at:
        return None
    if version == b"v1":
        return rest[:first]
    return rest[first:] if version == b"v1beta1" else None


def tells_of_step_up(data: bytes) -> bool:
    """Whether a token file says that the gateway has step-up rules."""
    return data.partition(b"\n")[0].endswith(b" " + _STEP_UP)


def file_content(*, obtained: int, renew_at: int, v1: bytes, v1beta1: bytes, step_up: bool = False) -> bytes:
    """Return the content of a token file, in the format of `usable_answer` and `tells_of_step_up`."""
    mark = b" " + _STEP_UP if step_up else b""
    return b"ostiary 1 %d %d %d %d%b\n%b%b" % (obtained, renew_at, len(v1), len(v1beta1), mark, v1, v1beta1)


# --- requesting processes ---


def asks_again(path: str, now: float) -> bool:
    """Whether our parent process already got this credential, so the server may have rejected it.

    Records the process if not. After `believe` the result is False for a while. It is always False for a client that
    passes no information: it may run us for every request, or be a user's shell.
    """
    if b"KUBERNETES_EXEC_INFO" not in system.environ:
        return False
    asker, askers = system.getppid(), _askers(path)
    if asker in askers:
        # The clock may have been set back in the meantime.
        return not 0 <= now - askers[asker] < BELIEVED_SECONDS
    _remember(path, asker, 0)
    return False


def believe(path: str, now: float) -> None:
    """Record that the gateway has just confirmed the credential for our parent process."""
    _remember(path, system.getppid(), int(now))


def _askers(path: str) -> dict[int, int]:
    """Return process ids and when the gateway was last queried for each, 0 for never.

    The last entry of a process counts.
    """
    words = (private_content(path) or b"").split()
    try:
        return {int(process): int(at) for process, _, at in (word.partition(b":") for word in words)}
    except ValueError:
        return {}


def _remember(path: str, asker: int, at: int) -> None:
    # Appended with a single write, so that entries of concurrent processes are not lost.
    flags = (
        system.O_WRONLY | system.O_CREAT | system.O_APPEND | system.O_NOFOLLOW | system.O_CLOEXEC | system.O_NONBLOCK
    )
    try:
        descriptor = system.open(path, flags, 0o600)
    except OSError:
        # Without a writable home the credential is still returned.
        return
    try:
        status = system.fstat(descriptor)
        # A second hard link may be another application's file, which must not be changed.
        if is_private(status) and status.st_nlink == 1:
            if status.st_size > LARGEST_LIST:
                system.ftruncate(descriptor, 0)
            system.write(descriptor, b"%d:%d\n" % (asker, at))
    except OSError:
        return
    finally:
        system.close(descriptor)
