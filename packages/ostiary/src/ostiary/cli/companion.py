"""A background process that opens the browser for a step-up while the requesting client still runs.

    kubectl -> get-token -> credential                          kubectl sends its request, which the gateway may hold
                   |
                   +-> after a second, if kubectl still runs    `ostiary.cli.login.step_up`: queries the gateway
                                                                for pending step-ups, and opens the browser

get-token starts it only if the gateway has step-up rules and a user is present. Nearly every command ends within that
second, before anything is imported or sent. Like `cached_token`, it imports only modules of the interpreter, because
the user waits for the credential.
"""

import sys
import time

# As in `cached_token`, which imports this module.
try:
    import posix

    system = posix
except ImportError:
    from ostiary.core.platform.parent_process import windows_interpreter

    system = windows_interpreter()  # type: ignore[assignment]

# Most commands have ended by then.
SECONDS = 1.0
LOOK_AGAIN_SECONDS = 0.25
_ACCOMPANY = "from ostiary.cli.login.step_up import main; main()"
# For systems without fork: the new interpreter waits as well.
_WAIT_AND_ACCOMPANY = f"""
import sys
from ostiary.cli.companion import is_still_there
if is_still_there(int(sys.argv[3])):
    {_ACCOMPANY}
"""


def begin(server: str, account: str) -> None:
    """Start one for our parent process if a user is present. The credential has already been printed."""
    if not has_person():
        return
    program = system.getppid()
    if not hasattr(system, "fork"):
        _begin_detached(server, account, program)
        return
    try:
        if system.fork():
            return
    except OSError:
        # Without a companion, requests that need a step-up get their 401.
        return
    try:
        _leave_descriptors()
        if is_still_there(program):
            # Exec a new interpreter, because a fork does not copy threads. -P: do not import modules from the user's
            # current folder.
            words = [sys.executable, "-P", "-c", _ACCOMPANY, server, account, str(program)]
            system.execv(sys.executable, words)
    finally:
        system._exit(0)


def _begin_detached(server: str, account: str, program: int) -> None:
    from ostiary.core.process.detached import start_detached

    try:
        start_detached([sys.executable, "-P", "-c", _WAIT_AND_ACCOMPANY, server, account, str(program)])
    except OSError:
        return


def has_person() -> bool:
    """Whether a user can be prompted: the client says so, or stderr is a terminal."""
    info = system.environ.get(b"KUBERNETES_EXEC_INFO")
    return info is not None and (b'"interactive":true' in info.replace(b" ", b"") or system.isatty(2))


def runs(program: int) -> bool:
    """Whether the process *program* runs and is ours."""
    if not hasattr(system, "kill"):
        from ostiary.core.platform.win32 import windows

        return windows().runs(program)
    try:
        system.kill(program, 0)
    except OSError:
        return False
    # Process 1 adopts orphaned processes.
    return program > 1


def is_still_there(program: int) -> bool:
    """Wait briefly and return False if *program* has ended by then."""
    for _ in range(int(SECONDS / LOOK_AGAIN_SECONDS)):
        time.sleep(LOOK_AGAIN_SECONDS)
        if not runs(program):
            return False
    return True


def _leave_descriptors() -> None:
    """Redirect stdin and stdout to /dev/null, because the client reads our stdout to its end.

    Keep stderr if it is a terminal.
    """
    nowhere = system.open("/dev/null", system.O_RDWR)
    for descriptor in (0, 1) if system.isatty(2) else (0, 1, 2):
        system.dup2(nowhere, descriptor)
    system.close(nowhere)
