"""``ostiary get-token``: the exec plugin of those who sign in at a gateway; here, the way that is taken every time.

    kubectl -> get-token -> a credential that is still good lies ready in a file -> its bytes, as they are
                  |
                  +-> anything else at all: `get_token_slow`, which renews, signs in, and explains

One thing cannot be seen in that file: that the gateway has withdrawn the credential. No client tells its plugin of a
401, but it runs it again, though what it was given is still good. So a second file remembers who asked (`asks_again`).

Somebody waits for this before every kubectl command, and each module that is imported here is waited for. So there
are `time` and `posix`, which are part of the interpreter, and nothing else: no argparse, no json, not even `os`.

A file holds one line, and then the finished ExecCredential in each version that a client may ask for:

    ostiary 1 <obtained> <renew at> <length of v1> <length of v1beta1>
"""

import posix
import time

WITH_VALUE = ("--server", "--account", "--provider", "--ca", "--store", "--timeout")
FLAGS = ("--device", "--no-browser")
DEFAULT_ACCOUNT = "default"
LARGEST = 64 * 1024
LONGEST_NAME = 200
# Some clients run us for every request: they are not to make us ask the gateway more often than this.
BELIEVED_SECONDS = 30
LARGEST_LIST = 1024
# A clock that was set back would make an old credential look new for as long.
CLOCK_SLACK = 60

_SAFE = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-")
_REGULAR, _KIND, _OTHERS = 0o100000, 0o170000, 0o077
_VERSION = b'"client.authentication.k8s.io/'


def main(argv: list[str]) -> int:
    found = _ready(argv)
    if found is None:
        from ostiary.cli.get_token_slow import main as slow

        return slow(argv)
    while found:
        found = found[posix.write(1, found) :]
    return 0


def configure(parser):  # type: ignore[no-untyped-def]  # naming the type would import argparse
    """The same options for argparse: for the help, for completions, and for everything that is not ready."""
    from ostiary.cli.get_token_slow import configure as slow

    slow(parser)


def _ready(argv: list[str]) -> bytes | None:
    """The answer, if it lies ready; None if there is anything to think about."""
    options = _options(argv)
    version = _asked_version()
    folder = state_folder()
    if options is None or version is None or folder is None:
        return None
    name = file_name(options["--server"], options.get("--account", DEFAULT_ACCOUNT))
    data = None if name is None else _content(f"{folder}/{name}.token")
    now = time.time()
    found = None if data is None else usable_answer(data, version, now)
    return None if found is None or asks_again(f"{folder}/{name}.asked", now) else found


def _options(argv: list[str]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        option, equals, value = word.partition("=")
        if option in WITH_VALUE:
            found[option] = value if equals else next(words, "")
        elif word not in FLAGS:
            return None
    return found if found.get("--server") and found.get("--account", DEFAULT_ACCOUNT) else None


def _asked_version() -> bytes | None:
    """Found without reading the JSON: if the quoted name stands there once, its value is what is asked for.

    Inside of any string of the JSON its quotes would have backslashes.
    """
    info = posix.environ.get(b"KUBERNETES_EXEC_INFO")
    if info is None:
        # Several clients tell their plugins nothing, and take v1.
        return b"v1"
    _, name, rest = info.partition(b'"apiVersion"')
    start = rest.lstrip(b" :")
    if not name or b'"apiVersion"' in rest or not start.startswith(_VERSION):
        return None
    return start[len(_VERSION) :].partition(b'"')[0]


# --- the file; `get_token_slow` and `signin` use these too, so that both ways agree ---


def state_folder(environ: dict[bytes, bytes] = posix.environ) -> str | None:
    """Where the credentials of this account of this machine lie; None without a home.

    The number is part of the name: whoever works as another with ``sudo`` and the same home must not leave files
    that the first one can no longer read.
    """
    state = environ.get(b"XDG_STATE_HOME", b"")
    home = environ.get(b"HOME", b"")
    # As the specification of these directories says, a relative path counts as none.
    if not state.startswith(b"/"):
        if not home.startswith(b"/"):
            return None
        state = home + b"/.local/state"
    try:
        return f"{state.decode()}/ostiary-{posix.geteuid()}"
    except UnicodeDecodeError:
        return None


def file_name(server: str, account: str) -> str | None:
    """One name for one account of one gateway, on file systems that ignore case as well; None if it is too long."""
    name = f"{_spelled(server.rstrip('/'))}+{_spelled(account)}"
    return name if len(name) <= LONGEST_NAME else None


def _spelled(text: str) -> str:
    return "".join(char if char in _SAFE else f"_{ord(char):x}_" for char in text)


def _content(path: str) -> bytes | None:
    """What is in the file, if it is ours and nobody else's. Why not, if not, is found out on the slow way."""
    try:
        descriptor = posix.open(path, posix.O_RDONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC | posix.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        return posix.read(descriptor, LARGEST) if is_private(posix.fstat(descriptor)) else None
    except OSError:
        return None
    finally:
        posix.close(descriptor)


def is_private(seen: posix.stat_result) -> bool:
    """Whether it is a file of ours that nobody else may read or write."""
    return seen.st_mode & _KIND == _REGULAR and seen.st_uid == posix.geteuid() and not seen.st_mode & _OTHERS


def usable_answer(data: bytes, version: bytes, now: float) -> bytes | None:
    """The ExecCredential in *version*, if the file is whole and its credential good for a while."""
    head, _, rest = data.partition(b"\n")
    words = head.split(b" ")
    if len(words) != 6 or words[0] != b"ostiary" or words[1] != b"1":
        return None
    try:
        obtained, renew_at, first, second = map(int, words[2:])
    except ValueError:
        return None
    whole = len(rest) == first + second and rest[:1] == b"{" and rest[-2:] == b"}\n"
    if not whole or not obtained - CLOCK_SLACK <= now < renew_at:
        return None
    if version == b"v1":
        return rest[:first]
    return rest[first:] if version == b"v1beta1" else None


def file_content(*, obtained: int, renew_at: int, v1: bytes, v1beta1: bytes) -> bytes:
    """What `usable_answer` reads."""
    return b"ostiary 1 %d %d %d %d\n%b%b" % (obtained, renew_at, len(v1), len(v1beta1), v1, v1beta1)


# --- who asked ---


def asks_again(path: str, now: float) -> bool:
    """Whether the program that runs us got this credential before, and so may have been refused with it.

    Remembers it if not. After `believe` it is no news for a while. A client that tells us nothing is taken for one that
    runs us for every request, or for a person, and never counts.
    """
    if b"KUBERNETES_EXEC_INFO" not in posix.environ:
        return False
    asker, asked = posix.getppid(), _askers(path)
    if asker in asked:
        # The clock may have been set back meanwhile.
        return not 0 <= now - asked[asker] < BELIEVED_SECONDS
    _remember(path, asker, 0)
    return False


def believe(path: str, now: float) -> None:
    """The gateway was asked just now about what this program gets."""
    _remember(path, posix.getppid(), int(now))


def _askers(path: str) -> dict[int, int]:
    """Processes, and when the gateway was last asked for them; 0 for never. The last word on each counts."""
    words = (_content(path) or b"").split()
    try:
        return {int(process): int(at) for process, _, at in (word.partition(b":") for word in words)}
    except ValueError:
        return {}


def _remember(path: str, asker: int, at: int) -> None:
    # Appended in one piece: many may ask at the same moment, and none of them is lost.
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND | posix.O_NOFOLLOW | posix.O_CLOEXEC | posix.O_NONBLOCK
    try:
        descriptor = posix.open(path, flags, 0o600)
    except OSError:
        # A home that cannot be written to is no reason to keep a credential from anybody.
        return
    try:
        seen = posix.fstat(descriptor)
        # A second name would be that of another file, which is not ours to change.
        if is_private(seen) and seen.st_nlink == 1:
            if seen.st_size > LARGEST_LIST:
                posix.ftruncate(descriptor, 0)
            posix.write(descriptor, b"%d:%d\n" % (asker, at))
    except OSError:
        return
    finally:
        posix.close(descriptor)
