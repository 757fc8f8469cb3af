"""A process beside the program that asked for a credential, as long as that runs: it asks the person to prove more.

    kubectl -> get-token -> credential                          kubectl sends its request, which the gateway may hold
                 |
                 +-> after a second, if kubectl still runs      `ostiary.cli.login.step_up`: asks the gateway what a
                                                                request waits for, and opens the browser for that

Begun by get-token, and only where the gateway has step-up rules and a person is there. Nearly every command is over
within that second, and then nothing was imported and nobody asked. As `cached_token`, which calls it, it imports
nothing that is not part of the interpreter: somebody waits for the credential.
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

# Most commands are over by then.
SECONDS = 1.0
LOOK_AGAIN_SECONDS = 0.25
_ACCOMPANY = "from ostiary.cli.login.step_up import main; main()"
# The same where there is no fork: the new interpreter does the waiting, too.
_WAIT_AND_ACCOMPANY = f"""
import sys
from ostiary.cli.companion import is_still_there
if is_still_there(int(sys.argv[3])):
    {_ACCOMPANY}
"""


def begin(server: str, account: str) -> None:
    """Begin one for the program that runs us, if a person is there. The credential has been printed."""
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
        # Without it requests that need a step-up get their 401.
        return
    try:
        _leave_descriptors()
        if is_still_there(program):
            # Another interpreter: there may have been threads here, which a fork does not take along. -P: what lies in
            # the folder that somebody works in is not ours.
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
    """Whether somebody can be asked: the client says so, or its messages go to a terminal."""
    info = system.environ.get(b"KUBERNETES_EXEC_INFO")
    return info is not None and (b'"interactive":true' in info.replace(b" ", b"") or system.isatty(2))


def runs(program: int) -> bool:
    """Whether the process *program* runs, as ours."""
    if not hasattr(system, "kill"):
        from ostiary.core.platform.win32 import windows

        return windows().runs(program)
    try:
        system.kill(program, 0)
    except OSError:
        return False
    # Process 1 adopts whatever has lost its parent.
    return program > 1


def is_still_there(program: int) -> bool:
    """Wait a moment; False if *program* has ended by then."""
    for _ in range(int(SECONDS / LOOK_AGAIN_SECONDS)):
        time.sleep(LOOK_AGAIN_SECONDS)
        if not runs(program):
            return False
    return True


def _leave_descriptors() -> None:
    """The client reads our stdout to its end, and perhaps our stderr; only a terminal is nobody's pipe."""
    nowhere = system.open("/dev/null", system.O_RDWR)
    for descriptor in (0, 1) if system.isatty(2) else (0, 1, 2):
        system.dup2(nowhere, descriptor)
    system.close(nowhere)
