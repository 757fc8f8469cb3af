"""What a person runs on their own machine can be imported on Windows and macOS: no module of another system at its top.

Simulated: the modules and names that those systems lack are taken away from this one, and what they call themselves is
set. What runs on a real Python for Windows is in `tests/interop/test_windows.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"
# Folders and modules that are on the paths of login, get-token, ostiary.sdk and the adapters.
ON_THE_PATHS = (
    "ostiary/cli/*.py",
    "ostiary/cli/login",
    "ostiary/client",
    "ostiary/conformance/exec_*.py",
    "ostiary/conformance/findings.py",
    "ostiary/core",
    "ostiary/kubeconfig",
    "ostiary/sdk",
    "ostiary/wire",
    "ostiary_gateway/interfaces",
    "ostiary_gateway/wire",
)

SIMULATION = """
import json, sys, types
import os, pathlib, signal, socket, socketserver, select, selectors

platform, modules = sys.argv[1], json.loads(sys.argv[2])
gone = {
    "win32": (
        (os, "geteuid getuid getgid fork killpg fchmod fchown mkfifo memfd_create pidfd_open register_at_fork "
             "uname waitid set_blocking environb O_NOFOLLOW O_CLOEXEC O_NONBLOCK O_NOCTTY O_DIRECTORY getpgid "
             "setsid openpty"),
        (signal, "SIGHUP SIGKILL SIGCHLD SIGUSR1 SIGUSR2 SIGPIPE SIGALRM pthread_sigmask sigwait"),
        (socket, "AF_UNIX SO_PEERCRED SO_REUSEPORT CMSG_LEN SCM_RIGHTS"),
        (socketserver, "UnixStreamServer ThreadingUnixStreamServer ForkingMixIn ForkingTCPServer"),
        (select, "poll epoll PIPE_BUF"),
        (selectors, "PollSelector EpollSelector"),
    ),
    "darwin": (
        (os, "memfd_create pidfd_open MFD_CLOEXEC sched_setaffinity sched_getaffinity"),
        (socket, "SO_PEERCRED"),
        (select, "epoll"),
        (selectors, "EpollSelector"),
    ),
}
absent = {
    "win32": "posix fcntl pwd grp termios resource tty pty syslog curses readline _posixsubprocess",
    "darwin": "spwd msvcrt _winapi nt",
}

# Twice: what others need of this system is in memory after the first time.
for name in modules:
    __import__(name)
for name in [name for name in sys.modules if name.partition(".")[0] in ("ostiary", "ostiary_gateway")]:
    del sys.modules[name]

nt = types.ModuleType("nt")
for name in ("open read write close stat fstat ftruncate isatty _exit getpid getppid "
             "O_RDONLY O_WRONLY O_CREAT O_APPEND").split():
    setattr(nt, name, getattr(os, name))
nt.O_NOINHERIT, nt.O_BINARY = 128, 32768
nt.environ = {"LOCALAPPDATA": "C:\\\\Users\\\\ann\\\\AppData\\\\Local"}

for module, names in gone[platform]:
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for name in absent[platform].split():
    sys.modules[name] = None
if platform == "win32":
    os.name = "nt"
    pathlib.WindowsPath = pathlib.PosixPath  # the paths themselves stay those of this system
    sys.modules["nt"] = nt
sys.platform = platform

failures = {}
for name in modules:
    try:
        __import__(name)
    except Exception as error:
        failures[name] = f"{type(error).__name__}: {error}"
folder = sys.modules["ostiary.cli.cached_token"].state_folder()
print(json.dumps([failures, folder]))
"""


COMMAND_MODULES = """
from importlib.metadata import entry_points
from ostiary.cli import COMMANDS
from ostiary_gateway.cli import COMMANDS as GATEWAY_COMMANDS
modules = [module for module, _ in (*COMMANDS.values(), *GATEWAY_COMMANDS.values())]
# One that has no module is a command of another distribution.
print(*filter(None, modules), *(point.module for point in entry_points(group="ostiary.command")))
"""


def modules() -> list[str]:
    names = set[str]()
    for entry in ON_THE_PATHS:
        for path in PACKAGES.glob(f"*/src/{entry}" if entry.endswith(".py") else f"*/src/{entry}/**/*.py"):
            parts = path.with_suffix("").parts
            names.add(".".join(parts[parts.index("src", len(PACKAGES.parts)) + 1 :]).removesuffix(".__init__"))
    # The exec plugin of ostiary connect, whose proxy has a Unix socket.
    names.discard("ostiary.cli.quick_token")
    # Whatever the command is, its help and its completion must come.
    printed = subprocess.run([sys.executable, "-c", COMMAND_MODULES], capture_output=True, text=True, check=True).stdout
    return sorted(names | set(printed.split()))


def imported_on(platform: str, names: list[str]) -> tuple[dict[str, str], str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SIMULATION, platform, json.dumps(names)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    failures, folder = json.loads(done.stdout)
    return failures, folder


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_everything_on_a_persons_paths_can_be_imported(platform: str) -> None:
    names = modules()
    assert {
        "ostiary.cli.login.sessions",
        "ostiary.client.adapters.httpx",
        "ostiary_gateway.local_proxy.command",
    } <= set(names)
    failures, folder = imported_on(platform, names)
    assert failures == {}
    assert "AppData" in folder if platform == "win32" else "/Library/Application Support/" in folder


def test_the_simulation_notices_what_windows_lacks() -> None:
    failures, _ = imported_on("win32", ["ostiary.cli.cached_token", "ostiary_gateway.limits.counts"])
    assert list(failures) == ["ostiary_gateway.limits.counts"], "it has fcntl at its top, and only the gateway needs it"
